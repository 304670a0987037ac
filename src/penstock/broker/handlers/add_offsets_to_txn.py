"""AddOffsetsToTxn, versions 0 to 4: a transaction is going to commit a group's offsets.

They go to the group's partition of `__consumer_offsets`, which joins the transaction as any does.
Clients of transaction.version 2 do without: their TxnOffsetCommit adds it. While the transaction
before is being ended this waits for that, within bounds.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.creation import OFFSETS_TOPIC, create_offsets_topic
from penstock.broker.handlers.transaction_requests import ask
from penstock.txns.effects import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


def handle(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | asyncio.Future[AddOffsetsToTxnResponse]:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    services = context.services
    if OFFSETS_TOPIC not in services.image.topics:
        # Whoever only commits to a group asks for its coordinator later than this.
        create_offsets_topic(services)
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    where = TopicPartition(OFFSETS_TOPIC, services.groups.index_of(request.group_id))
    answer: AddOffsetsToTxnResponse | asyncio.Future[AddOffsetsToTxnResponse] = ask(
        context,
        request.transactional_id,
        request,
        lambda shard: partial(shard.add_offsets, may_wait=True),
        where,
    )
    return answer
