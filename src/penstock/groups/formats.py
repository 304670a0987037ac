"""The records of `__consumer_offsets`, byte for byte as Kafka writes them.

Keys and values each begin with a 16-bit version. The version of a key tells the kind of the record:
0 and 1 are offsets, 2 is a group; higher ones belong to other types of groups (`consumer.records`,
`share.records`). Values have their own versions. This module writes what Kafka writes, so that
Kafka's tools and brokers can read the log, and it reads everything that Kafka ever wrote:

    offset   version 3, or 1 if the client set its own retention time: only 1 has a field for it
    group    version 3; 4 is the first with tagged fields, which a reader skips
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.coordination.effects import LogRecord
from penstock.groups.record_codec import RecordCodec, read_version
from penstock.wire.messages.base import EMPTY, Message, Struct

_CODEC: Final = RecordCodec("""
OffsetKey  versions 0-1  flexible never
  Group      string  0+
  Topic      string  0+
  Partition  int32   0+

GroupKey  versions 2-2  flexible never
  Group  string  2+

OffsetValue  versions 0-4  flexible 4+
  Offset           int64   0+
  LeaderEpoch      int32   3+  = -1  ignorable
  Metadata         string  0+
  CommitTimestamp  int64   0+
  ExpireTimestamp  int64   1   = -1  ignorable

GroupValue  versions 0-4  flexible 4+
  ProtocolType           string    0+
  Generation             int32     0+
  Protocol               string?   0+
  Leader                 string?   0+
  CurrentStateTimestamp  int64     2+  = -1  ignorable
  Members                [Member]  0+
    MemberId             string    0+
    GroupInstanceId      string?   3+  = null  ignorable
    ClientId             string    0+
    ClientHost           string    0+
    RebalanceTimeout     int32     1+  = -1  ignorable
    SessionTimeout       int32     0+
    Subscription         bytes     0+
    Assignment           bytes     0+
""")

NO_TIMESTAMP: Final = -1
_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_VALUE_VERSION: Final = 3


class OffsetKey(Message):
    __slots__ = ("group", "partition", "topic")

    def __init__(self, group: str, topic: str, partition: int) -> None:
        self.group = group
        self.topic = topic
        self.partition = partition


class GroupKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class OffsetValue(Message):
    """A committed offset; `expire_timestamp` is -1 if the broker's retention applies."""

    __slots__ = ("commit_timestamp", "expire_timestamp", "leader_epoch", "metadata", "offset")

    def __init__(
        self,
        offset: int,
        leader_epoch: int = -1,
        metadata: str = "",
        commit_timestamp: int = NO_TIMESTAMP,
        expire_timestamp: int = NO_TIMESTAMP,
    ) -> None:
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp = commit_timestamp
        self.expire_timestamp = expire_timestamp


class GroupValue(Message):
    """A generation of a group: its members and their assignments."""

    __slots__ = (
        "current_state_timestamp",
        "generation",
        "leader",
        "members",
        "protocol",
        "protocol_type",
    )

    class Member(Struct):
        __slots__ = (
            "assignment",
            "client_host",
            "client_id",
            "group_instance_id",
            "member_id",
            "rebalance_timeout",
            "session_timeout",
            "subscription",
        )

        def __init__(
            self,
            *,
            member_id: str,
            group_instance_id: str | None,
            client_id: str,
            client_host: str,
            rebalance_timeout: int,
            session_timeout: int,
            subscription: bytes,
            assignment: bytes,
        ) -> None:
            self.member_id = member_id
            self.group_instance_id = group_instance_id
            self.client_id = client_id
            self.client_host = client_host
            self.rebalance_timeout = rebalance_timeout
            self.session_timeout = session_timeout
            self.subscription = subscription
            self.assignment = assignment

    def __init__(
        self,
        protocol_type: str,
        generation: int,
        *,
        protocol: str | None = None,
        leader: str | None = None,
        current_state_timestamp: int = NO_TIMESTAMP,
        members: list[GroupValue.Member] = EMPTY,
    ) -> None:
        self.protocol_type = protocol_type
        self.generation = generation
        self.protocol = protocol
        self.leader = leader
        self.current_state_timestamp = current_state_timestamp
        self.members = [] if members is EMPTY else members


class OffsetEntry(NamedTuple):
    key: OffsetKey
    value: OffsetValue | None


class GroupEntry(NamedTuple):
    key: GroupKey
    value: GroupValue | None


def offset_record(group: str, topic: str, partition: int, value: OffsetValue | None) -> LogRecord:
    """Returns the record of a committed offset, or without a value its tombstone."""
    key = _CODEC.encode(OffsetKey(group, topic, partition), _OFFSET_KEY_VERSION)
    if value is None:
        return LogRecord(key, None)
    if value.expire_timestamp == NO_TIMESTAMP:
        return LogRecord(key, _CODEC.encode(value, _OFFSET_VALUE_VERSION))
    return LogRecord(key, _CODEC.encode(value, _OFFSET_VALUE_VERSION_WITH_EXPIRY))


def group_record(group: str, value: GroupValue | None) -> LogRecord:
    """Returns the record of a group's generation, or without a value its tombstone."""
    key = _CODEC.encode(GroupKey(group), _GROUP_KEY_VERSION)
    return LogRecord(key, None if value is None else _CODEC.encode(value, _GROUP_VALUE_VERSION))


def read_record(key: bytes | None, value: bytes | None) -> OffsetEntry | GroupEntry | None:
    """Decodes a record. Returns None for an unknown kind; raises ProtocolError if it is damaged."""
    if key is None:
        return None
    version = read_version("a key", key)
    if version in (0, _OFFSET_KEY_VERSION):
        about = _CODEC.decode(OffsetKey, key)
        return OffsetEntry(about, None if value is None else _CODEC.decode(OffsetValue, value))
    if version == _GROUP_KEY_VERSION:
        group = _CODEC.decode(GroupKey, key)
        return GroupEntry(group, None if value is None else _CODEC.decode(GroupValue, value))
    return None
