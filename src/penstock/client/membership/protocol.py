"""Encodes and decodes subscriptions and assignments of group members. Pure.

The coordinator forwards these bytes without reading them: each member's `Subscription` to the
leader of the group, and each member's assignment from the leader. Members of one group may use
different libraries and versions, so what is read may be older or newer than what this module
writes. Fields that an old version lacks get their defaults, and data that a newer version added at
the end is ignored.

A subscription is written in version 3, the first that has all fields. An assignment looks the same
in all versions and is written as version 0, which every library accepts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.topic_partition import TopicPartition
from penstock.wire.codec import decode_embedded, encode_embedded
from penstock.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1

_SUBSCRIPTION_VERSION: Final = 3
_ASSIGNMENT_VERSION: Final = 0
_GENERATION_SINCE: Final = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member subscribes to, and what it owns."""

    topics: tuple[str, ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    """The partitions it keeps reading during the rebalance; empty for an eager member."""
    generation: int | None = None
    """The generation of the assignment that `owned` is from; None if the writer is too old to
    say."""
    user_data: bytes | None = None
    """Data for the assignor of this name."""
    rack: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    generation = subscription.generation
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic, partitions)
            for topic, partitions in by_topic(subscription.owned).items()
        ],
        generation_id=NO_GENERATION if generation is None else generation,
        rack_id=subscription.rack or None,
    )
    return encode_embedded(message, _SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes) -> Subscription:
    """Decodes a subscription. Raises `ProtocolError` if the bytes are not one."""
    version, message = decode_embedded(ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        owned=tuple(
            TopicPartition(owned.topic, partition)
            for owned in message.owned_partitions
            for partition in owned.partitions
        ),
        generation=message.generation_id if version >= _GENERATION_SINCE else None,
        user_data=message.user_data,
        rack=message.rack_id,
    )


def encode_assignment(
    topic_partitions: Iterable[TopicPartition], user_data: bytes | None = None
) -> bytes:
    message = ConsumerProtocolAssignment(
        [
            ConsumerProtocolAssignment.TopicPartition(topic, partitions)
            for topic, partitions in by_topic(topic_partitions).items()
        ],
        user_data,
    )
    return encode_embedded(message, _ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decodes an assignment. Raises `ProtocolError` if the bytes are not one.

    Empty bytes are an empty assignment: a leader may send them to a member that it does not know.
    """
    if not data:
        return ()
    _, message = decode_embedded(ConsumerProtocolAssignment, data)
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )


def by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in topic_partitions:
        topics[topic].append(partition)
    return {topic: sorted(partitions) for topic, partitions in sorted(topics.items())}
