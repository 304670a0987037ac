"""Heartbeat, versions 0 to 4: a member says that it is alive and learns of a rebalance.

The rules are those of `penstock.groups`; here the request only finds its shard.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.messages import HeartbeatRequest, HeartbeatResponse

__all__ = ["handle", "refuse"]


def handle(
    request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
    answer: HeartbeatResponse | asyncio.Future[HeartbeatResponse] = ask(
        context, request.group_id, request, lambda shard: shard.heartbeat
    )
    return answer
