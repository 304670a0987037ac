"""SyncGroup, versions 0 to 5: returns a member's assignment; the group's leader brings them all.

`penstock.groups` implements the rules; the handler only passes the request to its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.error_responses import refuse
from penstock.wire.messages import SyncGroupRequest, SyncGroupResponse

__all__ = ["handle", "refuse"]


def handle(
    request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    answer: SyncGroupResponse | asyncio.Future[SyncGroupResponse] = ask(
        context, request.group_id, request, lambda shard: shard.sync_group
    )
    return answer
