"""The records of consumer groups in `__consumer_offsets`, as Kafka writes them.

The version of a key is the kind of the record:

    3   the epoch of a group, and a hash of the topics that it reads
    4   the partitions of these topics; written by Kafka before 4.1, of no use here
    5   a member: what it subscribes to
    6   the epoch of the target assignment
    7   the target assignment of a member
    8   what a member owns at present
    16  the topics that match a regular expression

A record without a value is a tombstone. The records of one decision are in this order: group epoch,
member, target assignments, target epoch, present assignment. Then the state is sound after each of
them, in case the rest are lost: a group whose epoch is above that of its target gets a new target.
(Kafka, which always writes them in one batch, has the member first.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.coordination.effects import LogRecord
from penstock.groups.consumer import record_schemas as schemas
from penstock.groups.consumer.record_schemas import CODEC, KEY_KINDS
from penstock.groups.record_codec import read_version

LEFT_FOR_A_WHILE: Final = -2
"""The epoch of a static member that has left and is expected to return."""
_VALUE_VERSION: Final = 0


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    partition: int


class MemberState(IntEnum):
    STABLE = 0
    """It owns what the target assignment of its epoch gives it."""
    UNREVOKED = 1
    """It must give up partitions, and has not confirmed that it did."""
    UNRELEASED = 2
    """It waits for partitions that other members have not given up yet."""
    UNKNOWN = 127
    """Written by a newer version. The member must join again."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """How a member that speaks the classic protocol joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    names: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocol | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    epoch: int
    computed_ms: int = 0
    """When the target assignment was computed, on the wall clock."""


@dataclass(frozen=True, slots=True)
class Current:
    """What a member owns, and must give up, each with the epoch in which it was assigned."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    pending: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions that the member must give up; it may still read them."""


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    topics: frozenset[str]
    version: int
    timestamp_ms: int


class EpochEntry(NamedTuple):
    group_id: str
    value: GroupEpoch | None


class MemberEntry(NamedTuple):
    group_id: str
    member_id: str
    value: MemberMetadata | None


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
    value: Current | None


class RegexEntry(NamedTuple):
    group_id: str
    regex: str
    value: ResolvedRegex | None


Entry = EpochEntry | MemberEntry | TargetEpochEntry | TargetEntry | CurrentEntry | RegexEntry


# To bytes


def record_of(entry: Entry) -> LogRecord:
    """Returns the record of an entry; without a value, its tombstone."""
    value = None if entry.value is None else CODEC.encode(_value_of(entry), _VALUE_VERSION)
    return LogRecord(_key_of(entry), value)


def _key_of(entry: Entry) -> bytes:
    match entry:
        case EpochEntry(group_id):
            return CODEC.encode(schemas.EpochKey(group_id), 3)
        case MemberEntry(group_id, member_id):
            return CODEC.encode(schemas.MemberKey(group_id, member_id), 5)
        case TargetEpochEntry(group_id):
            return CODEC.encode(schemas.TargetEpochKey(group_id), 6)
        case TargetEntry(group_id, member_id):
            return CODEC.encode(schemas.TargetKey(group_id, member_id), 7)
        case CurrentEntry(group_id, member_id):
            return CODEC.encode(schemas.CurrentKey(group_id, member_id), 8)
        case RegexEntry(group_id, regex):
            return CODEC.encode(schemas.RegexKey(group_id, regex), 16)


def _value_of(entry: Entry) -> schemas.Value:
    value = entry.value
    match value:
        case GroupEpoch(epoch, metadata_hash):
            return schemas.EpochValue(epoch, metadata_hash)
        case MemberMetadata():
            return _member_value(value)
        case TargetEpoch(epoch, computed_ms):
            return schemas.TargetEpochValue(epoch, computed_ms)
        case Current():
            return schemas.CurrentValue(
                value.epoch,
                value.previous_epoch,
                int(value.state),
                _with_epochs(value.assigned),
                _with_epochs(value.pending),
            )
        case ResolvedRegex(topics, version, timestamp_ms):
            return schemas.RegexValue(sorted(topics), version, timestamp_ms)
        case frozenset():
            return schemas.TargetValue(
                [
                    schemas.TargetValue.Topic(topic_id, indexes)
                    for topic_id, indexes in by_topic(value).items()
                ]
            )
    raise TypeError(f"{type(entry).__name__} has no value")


def _member_value(value: MemberMetadata) -> schemas.MemberValue:
    classic = None
    if value.classic is not None:
        classic = schemas.MemberValue.Classic(
            value.classic.session_timeout_ms,
            [schemas.MemberValue.Protocol(*each) for each in value.classic.protocols],
        )
    return schemas.MemberValue(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=sorted(value.names),
        subscribed_topic_regex=value.regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.assignor,
        classic=classic,
    )


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Returns the sorted partitions of each topic."""
    found: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return found


def _with_epochs(owned: Mapping[TopicIdPartition, int]) -> list[schemas.CurrentValue.Topic]:
    return [
        schemas.CurrentValue.Topic(
            topic_id, indexes, [owned[TopicIdPartition(topic_id, index)] for index in indexes]
        )
        for topic_id, indexes in by_topic(owned).items()
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
        case schemas.EpochKey():
            return EpochEntry(found.group, None if value is None else _read_epoch(value))
        case schemas.MemberKey():
            metadata = None if value is None else _read_member(value)
            return MemberEntry(found.group, found.member, metadata)
        case schemas.TargetEpochKey():
            epoch = None if value is None else _read_target_epoch(value)
            return TargetEpochEntry(found.group, epoch)
        case schemas.TargetKey():
            target = None if value is None else _read_target(value)
            return TargetEntry(found.group, found.member, target)
        case schemas.CurrentKey():
            current = None if value is None else _read_current(value)
            return CurrentEntry(found.group, found.member, current)
        case schemas.RegexKey():
            resolved = None if value is None else _read_regex(value)
            return RegexEntry(found.group, found.regex, resolved)
    return None


def _read_epoch(data: bytes) -> GroupEpoch:
    value = CODEC.decode(schemas.EpochValue, data)
    return GroupEpoch(value.epoch, value.metadata_hash)


def _read_member(data: bytes) -> MemberMetadata:
    value = CODEC.decode(schemas.MemberValue, data)
    classic = None
    if value.classic is not None:
        protocols = tuple((each.name, each.metadata) for each in value.classic.protocols)
        classic = ClassicProtocol(value.classic.session_timeout_ms, protocols)
    return MemberMetadata(
        value.client_id,
        value.client_host,
        value.instance_id,
        value.rack_id,
        frozenset(value.subscribed_topic_names),
        value.subscribed_topic_regex or None,
        value.rebalance_timeout_ms,
        value.server_assignor,
        classic,
    )


def _read_target_epoch(data: bytes) -> TargetEpoch:
    value = CODEC.decode(schemas.TargetEpochValue, data)
    return TargetEpoch(value.assignment_epoch, value.timestamp)


def _read_target(data: bytes) -> frozenset[TopicIdPartition]:
    value = CODEC.decode(schemas.TargetValue, data)
    return frozenset(
        TopicIdPartition(topic.topic_id, index)
        for topic in value.topics
        for index in topic.partitions
    )


def _read_current(data: bytes) -> Current:
    value = CODEC.decode(schemas.CurrentValue, data)
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        _read_owned(value.assigned, value.member_epoch),
        _read_owned(value.pending, value.member_epoch),
    )


def _read_owned(
    topics: list[schemas.CurrentValue.Topic], member_epoch: int
) -> Mapping[TopicIdPartition, int]:
    owned: dict[TopicIdPartition, int] = {}
    for topic in topics:
        # Kafka before 4.3 wrote no epochs of partitions.
        epochs = topic.assignment_epochs or [max(member_epoch, 0)] * len(topic.partitions)
        for index, epoch in zip(topic.partitions, epochs, strict=False):
            owned[TopicIdPartition(topic.topic_id, index)] = epoch
    return owned


def _read_regex(data: bytes) -> ResolvedRegex:
    value = CODEC.decode(schemas.RegexValue, data)
    return ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
