"""JoinGroup, versions 0 to 9: adds a member to a group, or lets a member rejoin to rebalance.

`penstock.groups` implements the rules; the handler only passes the request to its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.error_responses import refuse
from penstock.wire.messages import JoinGroupRequest, JoinGroupResponse

__all__ = ["handle", "refuse"]


def handle(
    request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    answer: JoinGroupResponse | asyncio.Future[JoinGroupResponse] = ask(
        context, request.group_id, request, lambda shard: shard.join_group
    )
    return answer
