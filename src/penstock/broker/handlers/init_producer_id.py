"""InitProducerId, versions 0 to 5: an id for an idempotent producer, from any broker.

Version 3 lets a producer ask for the next epoch of the id it has; without a transactional id it is
simply given a new id, as Kafka does. An id without its epoch, or the other way round, is a mistake.
Transactional ids come with transactions.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1


def handle(
    request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | asyncio.Future[InitProducerIdResponse]:
    if request.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    taken = context.services.producer_ids.take()
    if taken is not None:
        return InitProducerIdResponse(producer_id=taken)
    return context.spawn(_next(context))


async def _next(context: RequestContext) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await context.services.producer_ids.next())


def refuse(request: InitProducerIdRequest, version: int, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
