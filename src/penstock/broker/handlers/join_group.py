"""JoinGroup, versions 0 to 9: a member enters a group, or enters it again to rebalance.

The rules are those of `penstock.groups`; here the request only finds its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.messages import JoinGroupRequest, JoinGroupResponse

__all__ = ["handle", "refuse"]


def handle(
    request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    answer: JoinGroupResponse | asyncio.Future[JoinGroupResponse] = ask(
        context, request.group_id, request, lambda shard: shard.join_group
    )
    return answer
