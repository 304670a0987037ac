"""The fields of the records of share groups, and a class for each key and value.

Keys are in Kafka's older encoding, values in the flexible one. `records` explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.groups.record_codec import RecordCodec
from penstock.wire.messages.base import Message, Struct

CODEC: Final = RecordCodec("""
MemberKey  versions 10-10  flexible never
  Group   string  10+
  Member  string  10+

EpochKey  versions 11-11  flexible never
  Group  string  11+

TargetEpochKey  versions 12-12  flexible never
  Group  string  12+

TargetKey  versions 13-13  flexible never
  Group   string  13+
  Member  string  13+

CurrentKey  versions 14-14  flexible never
  Group   string  14+
  Member  string  14+

PartitionsKey  versions 15-15  flexible never
  Group  string  15+

MemberValue  versions 0-0  flexible 0+
  RackId                string?   0+
  ClientId              string    0+
  ClientHost            string    0+
  SubscribedTopicNames  [string]  0+

EpochValue  versions 0-0  flexible 0+
  Epoch         int32  0+
  MetadataHash  int64  0+

TargetEpochValue  versions 0-0  flexible 0+
  AssignmentEpoch  int32  0+
  Timestamp        int64  0+  tag 0

TargetValue  versions 0-0  flexible 0+
  Topics        [Topic]  0+
    TopicId     uuid     0+
    Partitions  [int32]  0+

CurrentValue  versions 0-0  flexible 0+
  MemberEpoch          int32    0+
  PreviousMemberEpoch  int32    0+
  State                int8     0+
  Assigned             [Topic]  0+
    TopicId            uuid     0+
    Partitions         [int32]  0+

PartitionsValue  versions 0-0  flexible 0+
  Initializing  [Partitions]  0+
    TopicId     uuid          0+
    TopicName   string        0+
    Partitions  [int32]       0+
  Initialized   [Partitions]  0+
  Deleting      [Topic]       0+
    TopicId     uuid          0+
    TopicName   string        0+
""")


class MemberKey(Message):
    __slots__ = ("group", "member")

    def __init__(self, group: str, member: str) -> None:
        self.group = group
        self.member = member


class EpochKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class TargetEpochKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class TargetKey(Message):
    __slots__ = ("group", "member")

    def __init__(self, group: str, member: str) -> None:
        self.group = group
        self.member = member


class CurrentKey(Message):
    __slots__ = ("group", "member")

    def __init__(self, group: str, member: str) -> None:
        self.group = group
        self.member = member


class PartitionsKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class MemberValue(Message):
    __slots__ = ("client_host", "client_id", "rack_id", "subscribed_topic_names")

    def __init__(
        self,
        rack_id: str | None,
        client_id: str,
        client_host: str,
        subscribed_topic_names: list[str],
    ) -> None:
        self.rack_id = rack_id
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = subscribed_topic_names


class EpochValue(Message):
    __slots__ = ("epoch", "metadata_hash")

    def __init__(self, epoch: int, metadata_hash: int) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash


class TargetEpochValue(Message):
    __slots__ = ("assignment_epoch", "timestamp")

    def __init__(self, assignment_epoch: int, timestamp: int = 0) -> None:
        self.assignment_epoch = assignment_epoch
        self.timestamp = timestamp


class TargetValue(Message):
    __slots__ = ("topics",)

    class Topic(Struct):
        __slots__ = ("partitions", "topic_id")

        def __init__(self, topic_id: bytes, partitions: list[int]) -> None:
            self.topic_id = topic_id
            self.partitions = partitions

    def __init__(self, topics: list[TargetValue.Topic]) -> None:
        self.topics = topics


class CurrentValue(Message):
    __slots__ = ("assigned", "member_epoch", "previous_member_epoch", "state")

    class Topic(Struct):
        __slots__ = ("partitions", "topic_id")

        def __init__(self, topic_id: bytes, partitions: list[int]) -> None:
            self.topic_id = topic_id
            self.partitions = partitions

    def __init__(
        self,
        member_epoch: int,
        previous_member_epoch: int,
        state: int,
        assigned: list[CurrentValue.Topic],
    ) -> None:
        self.member_epoch = member_epoch
        self.previous_member_epoch = previous_member_epoch
        self.state = state
        self.assigned = assigned


class PartitionsValue(Message):
    __slots__ = ("deleting", "initialized", "initializing")

    class Partitions(Struct):
        __slots__ = ("partitions", "topic_id", "topic_name")

        def __init__(self, topic_id: bytes, topic_name: str, partitions: list[int]) -> None:
            self.topic_id = topic_id
            self.topic_name = topic_name
            self.partitions = partitions

    class Topic(Struct):
        __slots__ = ("topic_id", "topic_name")

        def __init__(self, topic_id: bytes, topic_name: str) -> None:
            self.topic_id = topic_id
            self.topic_name = topic_name

    def __init__(
        self,
        initializing: list[PartitionsValue.Partitions],
        initialized: list[PartitionsValue.Partitions],
        deleting: list[PartitionsValue.Topic],
    ) -> None:
        self.initializing = initializing
        self.initialized = initialized
        self.deleting = deleting


Value = EpochValue | MemberValue | TargetEpochValue | TargetValue | CurrentValue | PartitionsValue

KEY_KINDS: Final[Mapping[int, type[Message]]] = MappingProxyType(
    {
        10: MemberKey,
        11: EpochKey,
        12: TargetEpochKey,
        13: TargetKey,
        14: CurrentKey,
        15: PartitionsKey,
    }
)
"""The class of a key by its version, which is the kind of the record."""
