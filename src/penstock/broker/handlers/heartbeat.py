"""Heartbeat, versions 0 to 4: keeps a member alive and informs it of a rebalance.

`penstock.groups` implements the rules; the handler only passes the request to its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.error_responses import refuse
from penstock.wire.messages import HeartbeatRequest, HeartbeatResponse

__all__ = ["handle", "refuse"]


def handle(
    request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
    answer: HeartbeatResponse | asyncio.Future[HeartbeatResponse] = ask(
        context, request.group_id, request, lambda shard: shard.heartbeat
    )
    return answer
