"""LeaveGroup, versions 0 to 5: removes members from a group, from version 3 on several at once.

`penstock.groups` implements the rules; the handler only passes the request to its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.error_responses import refuse
from penstock.wire.messages import LeaveGroupRequest, LeaveGroupResponse

__all__ = ["handle", "refuse"]


def handle(
    request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
    answer: LeaveGroupResponse | asyncio.Future[LeaveGroupResponse] = ask(
        context, request.group_id, request, lambda shard: shard.leave_group
    )
    return answer
