"""The records of share groups in `__consumer_offsets`, as Kafka writes them.

The version of a key is the kind of the record:

    10  a member: what it subscribes to
    11  the epoch of a group, and a hash of the topics that it reads
    12  the epoch of the target assignment
    13  the target assignment of a member
    14  what a member is assigned at present
    15  the partitions whose share state is initialized, is being initialized or deleted

A record without a value is a tombstone. The records of one decision are in this order: group
epoch, member, target assignments, target epoch, present assignment. Then the state is sound after
each of them, in case the rest are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.coordination.effects import LogRecord
from penstock.groups.consumer.records import (
    GroupEpoch,
    MemberState,
    TargetEpoch,
    TopicIdPartition,
    by_topic,
)
from penstock.groups.record_codec import read_version
from penstock.groups.share import record_schemas as schemas
from penstock.groups.share.record_schemas import CODEC, KEY_KINDS

_VALUE_VERSION: Final = 0
_STABLE: Final = int(MemberState.STABLE)
"""The only state that members of share groups have."""


@dataclass(frozen=True, slots=True)
class ShareMember:
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShareCurrent:
    """What a member is assigned."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[TopicIdPartition] = frozenset()


class TopicShares(NamedTuple):
    """Partitions of one topic."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class ShareStates:
    """Which partitions have share state, by the id of the topic.

    The partitions of a topic whose states are being deleted stay listed until that is done: so the
    next coordinator knows which to delete. Kafka removes them at once.
    """

    initializing: Mapping[bytes, TopicShares] = field(default_factory=dict)
    initialized: Mapping[bytes, TopicShares] = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.initializing or self.initialized or self.deleting)


class EpochEntry(NamedTuple):
    group_id: str
    value: GroupEpoch | None


class MemberEntry(NamedTuple):
    group_id: str
    member_id: str
    value: ShareMember | None


class TargetEpochEntry(NamedTuple):
    group_id: str
    value: TargetEpoch | None


class TargetEntry(NamedTuple):
    group_id: str
    member_id: str
    value: frozenset[TopicIdPartition] | None


class CurrentEntry(NamedTuple):
    group_id: str
    member_id: str
    value: ShareCurrent | None


class StatesEntry(NamedTuple):
    group_id: str
    value: ShareStates | None


Entry = EpochEntry | MemberEntry | TargetEpochEntry | TargetEntry | CurrentEntry | StatesEntry


# To bytes


def record_of(entry: Entry) -> LogRecord:
    """Returns the record of an entry; without a value, its tombstone."""
    value = None if entry.value is None else CODEC.encode(_value_of(entry), _VALUE_VERSION)
    return LogRecord(_key_of(entry), value)


def _key_of(entry: Entry) -> bytes:
    match entry:
        case MemberEntry(group_id, member_id):
            return CODEC.encode(schemas.MemberKey(group_id, member_id), 10)
        case EpochEntry(group_id):
            return CODEC.encode(schemas.EpochKey(group_id), 11)
        case TargetEpochEntry(group_id):
            return CODEC.encode(schemas.TargetEpochKey(group_id), 12)
        case TargetEntry(group_id, member_id):
            return CODEC.encode(schemas.TargetKey(group_id, member_id), 13)
        case CurrentEntry(group_id, member_id):
            return CODEC.encode(schemas.CurrentKey(group_id, member_id), 14)
        case StatesEntry(group_id):
            return CODEC.encode(schemas.PartitionsKey(group_id), 15)


def _value_of(entry: Entry) -> schemas.Value:
    match entry.value:
        case ShareMember(client_id, client_host, rack_id, names):
            return schemas.MemberValue(rack_id, client_id, client_host, sorted(names))
        case GroupEpoch(epoch, metadata_hash):
            return schemas.EpochValue(epoch, metadata_hash)
        case TargetEpoch(epoch, computed_ms):
            return schemas.TargetEpochValue(epoch, computed_ms)
        case ShareCurrent(epoch, previous_epoch, assigned):
            topics = [schemas.CurrentValue.Topic(*each) for each in by_topic(assigned).items()]
            return schemas.CurrentValue(epoch, previous_epoch, _STABLE, topics)
        case ShareStates(initializing, initialized, deleting):
            return schemas.PartitionsValue(
                _listed(initializing),
                _listed(initialized),
                [schemas.PartitionsValue.Topic(*each) for each in sorted(deleting.items())],
            )
        case frozenset() as target:
            return schemas.TargetValue(
                [schemas.TargetValue.Topic(*each) for each in by_topic(target).items()]
            )
    raise TypeError(f"{type(entry).__name__} has no value")


def _listed(topics: Mapping[bytes, TopicShares]) -> list[schemas.PartitionsValue.Partitions]:
    return [
        schemas.PartitionsValue.Partitions(topic_id, name, sorted(partitions))
        for topic_id, (name, partitions) in sorted(topics.items())
    ]


# From bytes


def read_entry(key: bytes, value: bytes | None) -> Entry | None:
    """Decodes a record. Returns None if it is of another kind; raises ProtocolError if it is
    damaged."""
    kind = read_version("a key", key)
    if kind not in KEY_KINDS:
        return None
    found = CODEC.decode(KEY_KINDS[kind], key)
    match found:
        case schemas.MemberKey():
            member = None if value is None else _read_member(value)
            return MemberEntry(found.group, found.member, member)
        case schemas.EpochKey():
            return EpochEntry(found.group, None if value is None else _read_epoch(value))
        case schemas.TargetEpochKey():
            epoch = None if value is None else _read_target_epoch(value)
            return TargetEpochEntry(found.group, epoch)
        case schemas.TargetKey():
            target = None if value is None else _read_target(value)
            return TargetEntry(found.group, found.member, target)
        case schemas.CurrentKey():
            current = None if value is None else _read_current(value)
            return CurrentEntry(found.group, found.member, current)
        case schemas.PartitionsKey():
            return StatesEntry(found.group, None if value is None else _read_states(value))
    return None


def _read_member(data: bytes) -> ShareMember:
    value = CODEC.decode(schemas.MemberValue, data)
    names = frozenset(value.subscribed_topic_names)
    return ShareMember(value.client_id, value.client_host, value.rack_id, names)


def _read_epoch(data: bytes) -> GroupEpoch:
    value = CODEC.decode(schemas.EpochValue, data)
    return GroupEpoch(value.epoch, value.metadata_hash)


def _read_target_epoch(data: bytes) -> TargetEpoch:
    value = CODEC.decode(schemas.TargetEpochValue, data)
    return TargetEpoch(value.assignment_epoch, value.timestamp)


def _read_target(data: bytes) -> frozenset[TopicIdPartition]:
    value = CODEC.decode(schemas.TargetValue, data)
    return _partitions((topic.topic_id, topic.partitions) for topic in value.topics)


def _read_current(data: bytes) -> ShareCurrent:
    value = CODEC.decode(schemas.CurrentValue, data)
    assigned = _partitions((topic.topic_id, topic.partitions) for topic in value.assigned)
    return ShareCurrent(value.member_epoch, value.previous_member_epoch, assigned)


def _read_states(data: bytes) -> ShareStates:
    value = CODEC.decode(schemas.PartitionsValue, data)
    return ShareStates(
        _read_listed(value.initializing),
        _read_listed(value.initialized),
        {topic.topic_id: topic.topic_name for topic in value.deleting},
    )


def _read_listed(
    topics: Iterable[schemas.PartitionsValue.Partitions],
) -> Mapping[bytes, TopicShares]:
    return {
        topic.topic_id: TopicShares(topic.topic_name, frozenset(topic.partitions))
        for topic in topics
    }


def _partitions(topics: Iterable[tuple[bytes, list[int]]]) -> frozenset[TopicIdPartition]:
    return frozenset(
        TopicIdPartition(topic_id, index) for topic_id, indexes in topics for index in indexes
    )
