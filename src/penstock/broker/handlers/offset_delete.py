"""OffsetDelete, version 0: forget offsets that a group committed for some partitions."""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

__all__ = ["handle", "refuse"]


def handle(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    answer: OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse] = ask(
        context, request.group_id, request, lambda shard: shard.offset_delete
    )
    return answer
