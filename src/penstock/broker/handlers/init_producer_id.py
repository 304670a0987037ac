"""InitProducerId, versions 0 to 5: assigns an id to an idempotent or transactional producer.

Without a transactional id any broker answers. From version 3 on a producer can ask for the next
epoch of the id it has; it gets a new id then, as in Kafka. A producer id without an epoch, or an
epoch without an id, is INVALID_REQUEST.

With a transactional id its coordinator answers: it fences the previous producer with that id, and
aborts its open transaction. From version 3 on a producer can name its own id and epoch to continue
under a new epoch, unless it was fenced itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.transaction_requests import ask
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import InitProducerIdRequest, InitProducerIdResponse

_NONE: Final = -1


def handle(
    request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | asyncio.Future[InitProducerIdResponse]:
    if request.transactional_id is not None:
        context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
    elif not context.may_any(AclOperation.WRITE, ResourceType.TOPIC):
        context.require_cluster(AclOperation.IDEMPOTENT_WRITE)
    if request.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        answer: InitProducerIdResponse | asyncio.Future[InitProducerIdResponse] = ask(
            context, request.transactional_id, request, lambda shard: shard.init_producer_id
        )
        return answer
    taken = context.services.producer_ids.take()
    if taken is not None:
        return InitProducerIdResponse(producer_id=taken)
    return context.spawn(_next(context))


async def _next(context: RequestContext) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await context.services.producer_ids.next())


def refuse(request: InitProducerIdRequest, version: int, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
