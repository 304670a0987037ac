"""What ShareFetch and ShareAcknowledge have in common.

Acknowledgements of a partition are given to its share partition at once, and answered when they are
durable. If this broker does not lead a partition, the response names the leader and its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices, Steps
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.shares.led_partition import LedPartition
from penstock.security.acls import AclOperation
from penstock.shares.events import AckBatch
from penstock.shares.sessions import SessionKey, SharedPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Acks = dict[SharedPartition, tuple[AckBatch, ...]]
Response = ShareFetchResponse | ShareAcknowledgeResponse


class Outcome(NamedTuple):
    """What became of the acknowledgements of one partition."""

    code: ErrorCode
    message: str | None = None


def is_large(request: ShareFetchRequest | ShareAcknowledgeRequest, context: RequestContext) -> bool:
    """Whether the request must be processed in slices."""
    batches = sum(
        len(asked.acknowledgement_batches) for topic in request.topics for asked in topic.partitions
    )
    partitions = sum(len(topic.partitions) for topic in request.topics)
    if isinstance(request, ShareFetchRequest):
        partitions += sum(len(topic.partitions) for topic in request.forgotten_topics_data)
    return partitions + batches > context.slicing.elements


def acks_of(request: ShareFetchRequest | ShareAcknowledgeRequest) -> Steps[Acks]:
    """Returns the acknowledgements of each partition that has any, in steps."""
    found: dict[SharedPartition, list[AckBatch]] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            if asked.acknowledgement_batches:
                partition = SharedPartition(topic.topic_id, asked.partition_index)
                of_partition = found.setdefault(partition, [])
                for each in asked.acknowledgement_batches:
                    types = tuple(each.acknowledge_types)
                    of_partition.append(AckBatch(each.first_offset, each.last_offset, types))
                    yield
            yield
    return {partition: tuple(batches) for partition, batches in found.items()}


def led_partition(context: RequestContext, partition: SharedPartition) -> LedPartition:
    """Returns the share groups of a partition.

    Raises `KafkaError` if the client may not read it, or if this broker does not lead it.
    """
    services = context.services
    topic = services.image.topic_by_id(partition.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    context.require_topic(AclOperation.READ, topic.name)
    hosted = services.replicas.require(topic.name, partition.partition)
    if hosted.topic_id != partition.topic_id:
        raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
    return services.shares.lead(hosted)


async def acknowledge(
    context: RequestContext, key: SessionKey, acks: Acks, *, is_renew: bool
) -> list[tuple[SharedPartition, asyncio.Future[ErrorCode] | Outcome]]:
    """Gives all acknowledgements to their share partitions. Those that wait have a future."""
    begun: list[tuple[SharedPartition, asyncio.Future[ErrorCode] | Outcome]] = []
    slices = context.slices()
    for partition, batches in acks.items():
        try:
            led = led_partition(context, partition)
            answer = led.acknowledge(key.group_id, key.member_id, batches, is_renew)
            begun.append((partition, answer))
        except EXPECTED_ERRORS as error:
            begun.append((partition, Outcome(code_of(error), _message(error))))
        await slices.give_way()
    return begun


async def outcomes(
    begun: Sequence[tuple[SharedPartition, asyncio.Future[ErrorCode] | Outcome]], slices: Slices
) -> dict[SharedPartition, Outcome]:
    """Waits until all acknowledgements are durable, or have failed."""
    found: dict[SharedPartition, Outcome] = {}
    for partition, answer in begun:
        found[partition] = answer if isinstance(answer, Outcome) else Outcome(await answer)
        await slices.give_way()
    return found


def _message(error: Exception) -> str | None:
    return error.message if isinstance(error, KafkaError) else None


def current_leader(context: RequestContext, partition: SharedPartition) -> tuple[int, int]:
    """Returns the leader and its epoch as far as this broker knows them, otherwise -1."""
    image = context.services.image
    topic = image.topic_by_id(partition.topic_id)
    found = None if topic is None else image.partition(topic.name, partition.partition)
    return (-1, -1) if found is None else (found.leader, found.leader_epoch)


def add_endpoints(response: Response, context: RequestContext, leaders: Iterable[int]) -> None:
    """Adds the addresses of leaders, so that clients need not ask for them."""
    brokers = context.services.image.brokers
    nodes = response.node_endpoints = []
    for broker_id in sorted(set(leaders)):
        broker = brokers.get(broker_id)
        address = None if broker is None else broker.endpoint(context.identity.listener)
        if broker is not None and address is not None:
            nodes.append(type(response).NodeEndpoint(broker_id, *address, broker.rack))
