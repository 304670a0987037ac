"""What classic consumers send inside JoinGroup and get inside SyncGroup: subscriptions and
assignments by topic name. Consumer groups know topics by their ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.groups.consumer.records import TopicIdPartition, by_topic
from penstock.groups.consumer.topics import Topics
from penstock.wire.codec import decode_embedded, encode_embedded
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription

_VERSION_MAX: Final = 3
_VERSION_BYTES: Final = 2


class Subscription(NamedTuple):
    names: frozenset[str]
    rack_id: str | None
    owned: frozenset[TopicIdPartition]
    """What the member still has. Empty if it gives up everything before it joins."""


class Assignment(NamedTuple):
    partitions: frozenset[TopicIdPartition]
    has_user_data: bool
    """An assignor of the client's own has added data, which the broker cannot make."""


def read_subscription(metadata: bytes, topics: Topics) -> Subscription:
    """Raises ProtocolError if it cannot be read."""
    _require_version(metadata)
    _, found = decode_embedded(ConsumerProtocolSubscription, metadata)
    owned = _partitions(((each.topic, each.partitions) for each in found.owned_partitions), topics)
    return Subscription(frozenset(found.topics), found.rack_id or None, owned)


def read_assignment(data: bytes, topics: Topics) -> Assignment:
    """Raises ProtocolError if it cannot be read. A member that got none yet has no data."""
    if not data:
        return Assignment(frozenset(), False)
    _require_version(data)
    _, found = decode_embedded(ConsumerProtocolAssignment, data)
    given = ((each.topic, each.partitions) for each in found.assigned_partitions)
    return Assignment(_partitions(given, topics), bool(found.user_data))


def write_assignment(
    partitions: Iterable[TopicIdPartition], subscription: bytes, topics: Topics
) -> bytes:
    """Returns an assignment in the version of the member's subscription. Topics that were deleted
    are left out."""
    named = sorted(
        (name, indexes)
        for topic_id, indexes in by_topic(partitions).items()
        if (name := topics.name_of(topic_id)) is not None
    )
    given = [ConsumerProtocolAssignment.TopicPartition(*each) for each in named]
    version = int.from_bytes(subscription[:_VERSION_BYTES], "big", signed=True)
    return encode_embedded(ConsumerProtocolAssignment(given), min(max(version, 0), _VERSION_MAX))


def _require_version(data: bytes) -> None:
    if int.from_bytes(data[:_VERSION_BYTES], "big", signed=True) < 0:
        raise ProtocolError("a consumer's subscription or assignment has a negative version")


def _partitions(
    named: Iterable[tuple[str, Iterable[int]]], topics: Topics
) -> frozenset[TopicIdPartition]:
    return frozenset(
        TopicIdPartition(found.topic_id, index)
        for name, indexes in named
        if (found := topics.find(name)) is not None
        for index in indexes
    )
