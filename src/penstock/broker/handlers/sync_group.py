"""SyncGroup, versions 0 to 5: a member asks for its part of the assignment; the leader brings it.

The rules are those of `penstock.groups`; here the request only finds its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.messages import SyncGroupRequest, SyncGroupResponse

__all__ = ["handle", "refuse"]


def handle(
    request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    answer: SyncGroupResponse | asyncio.Future[SyncGroupResponse] = ask(
        context, request.group_id, request, lambda shard: shard.sync_group
    )
    return answer
