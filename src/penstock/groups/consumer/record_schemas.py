"""The fields of the records of consumer groups, and a class for each key and value.

Keys are in Kafka's older encoding, values in the flexible one. `records` explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.groups.record_codec import RecordCodec
from penstock.wire.messages.base import Message, Struct

CODEC: Final = RecordCodec("""
EpochKey  versions 3-3  flexible never
  Group  string  3+

TopicsKey  versions 4-4  flexible never
  Group  string  4+

MemberKey  versions 5-5  flexible never
  Group   string  5+
  Member  string  5+

TargetEpochKey  versions 6-6  flexible never
  Group  string  6+

TargetKey  versions 7-7  flexible never
  Group   string  7+
  Member  string  7+

CurrentKey  versions 8-8  flexible never
  Group   string  8+
  Member  string  8+

RegexKey  versions 16-16  flexible never
  Group  string  16+
  Regex  string  16+

EpochValue  versions 0-0  flexible 0+
  Epoch         int32  0+
  MetadataHash  int64  0+  tag 0

MemberValue  versions 0-0  flexible 0+
  InstanceId            string?     0+
  RackId                string?     0+
  ClientId              string      0+
  ClientHost            string      0+
  SubscribedTopicNames  [string]    0+
  SubscribedTopicRegex  string?     0+
  RebalanceTimeoutMs    int32       0+  = -1
  ServerAssignor        string?     0+
  Classic               Classic?    0+  = null  tag 0
    SessionTimeoutMs    int32       0+
    Protocols           [Protocol]  0+
      Name              string      0+
      Metadata          bytes       0+

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
    AssignmentEpochs   [int32]  0+  tag 0
  Pending              [Topic]  0+

RegexValue  versions 0-0  flexible 0+
  Topics     [string]  0+
  Version    int64     0+
  Timestamp  int64     0+
""")


class EpochKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class TopicsKey(Message):
    __slots__ = ("group",)

    def __init__(self, group: str) -> None:
        self.group = group


class MemberKey(Message):
    __slots__ = ("group", "member")

    def __init__(self, group: str, member: str) -> None:
        self.group = group
        self.member = member


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


class RegexKey(Message):
    __slots__ = ("group", "regex")

    def __init__(self, group: str, regex: str) -> None:
        self.group = group
        self.regex = regex


class EpochValue(Message):
    __slots__ = ("epoch", "metadata_hash")

    def __init__(self, epoch: int, metadata_hash: int = 0) -> None:
        self.epoch = epoch
        self.metadata_hash = metadata_hash


class MemberValue(Message):
    __slots__ = (
        "classic",
        "client_host",
        "client_id",
        "instance_id",
        "rack_id",
        "rebalance_timeout_ms",
        "server_assignor",
        "subscribed_topic_names",
        "subscribed_topic_regex",
    )

    class Protocol(Struct):
        __slots__ = ("metadata", "name")

        def __init__(self, name: str, metadata: bytes) -> None:
            self.name = name
            self.metadata = metadata

    class Classic(Struct):
        __slots__ = ("protocols", "session_timeout_ms")

        def __init__(self, session_timeout_ms: int, protocols: list[MemberValue.Protocol]) -> None:
            self.session_timeout_ms = session_timeout_ms
            self.protocols = protocols

    def __init__(
        self,
        *,
        instance_id: str | None,
        rack_id: str | None,
        client_id: str,
        client_host: str,
        subscribed_topic_names: list[str],
        subscribed_topic_regex: str | None,
        rebalance_timeout_ms: int,
        server_assignor: str | None,
        classic: MemberValue.Classic | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.server_assignor = server_assignor
        self.classic = classic


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
    __slots__ = ("assigned", "member_epoch", "pending", "previous_member_epoch", "state")

    class Topic(Struct):
        __slots__ = ("assignment_epochs", "partitions", "topic_id")

        def __init__(
            self, topic_id: bytes, partitions: list[int], assignment_epochs: list[int]
        ) -> None:
            self.topic_id = topic_id
            self.partitions = partitions
            self.assignment_epochs = assignment_epochs

    def __init__(
        self,
        member_epoch: int,
        previous_member_epoch: int,
        state: int,
        assigned: list[CurrentValue.Topic],
        pending: list[CurrentValue.Topic],
    ) -> None:
        self.member_epoch = member_epoch
        self.previous_member_epoch = previous_member_epoch
        self.state = state
        self.assigned = assigned
        self.pending = pending


class RegexValue(Message):
    __slots__ = ("timestamp", "topics", "version")

    def __init__(self, topics: list[str], version: int, timestamp: int) -> None:
        self.topics = topics
        self.version = version
        self.timestamp = timestamp


Value = EpochValue | MemberValue | TargetEpochValue | TargetValue | CurrentValue | RegexValue

KEY_KINDS: Final[Mapping[int, type[Message]]] = MappingProxyType(
    {
        3: EpochKey,
        4: TopicsKey,
        5: MemberKey,
        6: TargetEpochKey,
        7: TargetKey,
        8: CurrentKey,
        16: RegexKey,
    }
)
"""The class of a key by its version, which is the kind of the record."""
