"""AddOffsetsToTxn, versions 0 to 4: announces that a transaction will commit a group's offsets.

The offsets go to the group's partition of `__consumer_offsets`, which joins the transaction as any
other partition does. Clients of transaction.version 2 do not send this: their TxnOffsetCommit adds
the partition. If the previous transaction is still being ended, the request waits for that, for a
limited time.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.topic_creation import create_offsets_topic
from penstock.broker.handlers.transaction_requests import ask
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


def handle(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | asyncio.Future[AddOffsetsToTxnResponse]:
    context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
    context.require_group(AclOperation.READ, request.group_id)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    services = context.services
    if OFFSETS_TOPIC not in services.image.topics:
        # A producer that only commits offsets looks up the group's coordinator later than this, so
        # the topic may not exist yet.
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
