"""A shard with topics and members of consumer groups, driven by a test."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from groups.world import World
from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings, GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.consumer.regexes import resolve
from penstock.groups.consumer.topics import TopicFacts
from penstock.groups.effects import Effect, RequestInfo, ResolveRegexes
from penstock.groups.shard import GroupShard
from penstock.groups.shard_state import ConsumerContext
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)

EAGER = ConsumerGroupConfig(ConsumerGroupSettings(assignment_interval_ms=0))
"""Computes the target assignment at every change."""


class FakeTopics:
    """Topics that a test creates, changes and deletes."""

    def __init__(self, counts: dict[str, int] | None = None) -> None:
        self.known: dict[str, TopicFacts] = {}
        self.changes = 0
        self._touched: list[str] = []
        for name, partitions in (counts or {}).items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int) -> None:
        self.changes += 1
        self._touched.append(name)
        self.known[name] = TopicFacts(self.changes.to_bytes(16, "big"), partitions)

    def grow(self, name: str, partitions: int) -> None:
        self.changes += 1
        self._touched.append(name)
        self.known[name] = self.known[name]._replace(partitions=partitions)

    def delete(self, name: str) -> None:
        self.changes += 1
        self._touched.append(name)
        del self.known[name]

    def touched(self) -> list[str]:
        """Returns the topics that have changed since the last call."""
        names, self._touched = self._touched, []
        return names

    def find(self, name: str) -> TopicFacts | None:
        return self.known.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, each in self.known.items() if each.topic_id == topic_id), None)

    def names(self) -> Collection[str]:
        return list(self.known)

    def version(self) -> int:
        return self.changes

    def partitions(self, names: Iterable[str]) -> set[TopicIdPartition]:
        found = (self.known[name] for name in names if name in self.known)
        return {
            TopicIdPartition(each.topic_id, index)
            for each in found
            for index in range(each.partitions)
        }


@dataclass
class Member:
    """A client that follows the protocol: it does what it is told, and says what it owns."""

    member_id: str
    names: tuple[str, ...] = ("orders",)
    regex: str | None = None
    instance: str | None = None
    assignor: str | None = None
    rebalance_ms: int = 60_000
    epoch: int = 0
    owned: set[TopicIdPartition] = field(default_factory=set)
    answers: list[ConsumerGroupHeartbeatResponse] = field(default_factory=list)

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.answers.append(response)
        if response.error_code:
            return
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {
                TopicIdPartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }


class ConsumerBench(World):
    def __init__(
        self,
        counts: dict[str, int] | None = None,
        consumer: ConsumerGroupConfig = EAGER,
        config: GroupConfig | None = None,
    ) -> None:
        self.topics = FakeTopics(counts or {"orders": 6})
        self.consumer = consumer
        self.settings: dict[str, ConsumerGroupSettings] = {}
        self.resolutions: list[ResolveRegexes] = []
        self.hidden: set[str] = set()
        self.tokens = 0
        super().__init__(config)

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            self.config,
            self.new_member_id,
            lambda: self.batch_bytes_max,
            ConsumerContext(
                self.consumer,
                self.topics,
                lambda group_id: self.settings.get(group_id, self.consumer.settings),
            ),
        )

    def carry_out(self, effects: list[Effect]) -> None:
        self.resolutions += [each for each in effects if isinstance(each, ResolveRegexes)]
        super().carry_out(effects)

    def resolve(self) -> None:
        """Does the matching that the shard asked for."""
        asked, self.resolutions = self.resolutions, []
        for each in asked:
            found = {
                regex: topics if topics is None else frozenset(filter(each.may_describe, topics))
                for regex, topics in resolve(each.regexes, self.topics.names()).items()
            }
            self.carry_out(self.shard.on_regexes_resolved(each.group_id, found, self.now))

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.state.consumer("g")
        assert group is not None
        return group

    @property
    def state(self) -> str:
        return self.group.state.value

    def send(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int = 1,
        client: str = "c",
    ) -> int:
        self.tokens += 1
        info = RequestInfo(client, "/127.0.0.1", version)
        effects = self.shard.consumer_heartbeat(
            request, info, lambda name: name not in self.hidden, self.tokens, self.now
        )
        self.carry_out(effects)
        return self.tokens

    def answer(self, token: int) -> ConsumerGroupHeartbeatResponse:
        response = self.replies[token]
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def ask(
        self, request: ConsumerGroupHeartbeatRequest, version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        return self.answer(self.send(request, version))

    # Members

    def join(self, member: Member, group: str = "g") -> ConsumerGroupHeartbeatResponse:
        member.owned = set()
        response = self.ask(join_request(member, group))
        member.take(response)
        return response

    def beat(self, member: Member, **changes: object) -> ConsumerGroupHeartbeatResponse:
        """Sends a heartbeat that says what the member owns, and takes the answer."""
        request = ConsumerGroupHeartbeatRequest(
            "g", member.member_id, member.epoch, topic_partitions=listed(member.owned)
        )
        for name, value in changes.items():
            setattr(request, name, value)
        response = self.ask(request)
        member.take(response)
        return response

    def leave(self, member: Member, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        return self.ask(
            ConsumerGroupHeartbeatRequest("g", member.member_id, epoch, member.instance)
        )

    def settle_members(self, *members: Member) -> int:
        """Lets all members send heartbeats until the group is stable. Returns how many rounds."""
        for rounds in range(1, 10):
            for member in members:
                assert self.beat(member).error_code == 0
                self.group.verify()
            if self.state == "Stable":
                return rounds
        raise AssertionError(f"the group is {self.state} after {rounds} rounds of heartbeats")

    def commit(
        self, member_id: str, epoch: int, partitions: dict[int, int], version: int = 9
    ) -> list[int]:
        self.tokens += 1
        each = [OffsetCommitRequest.Partition(*one) for one in partitions.items()]
        request = OffsetCommitRequest(
            "g", epoch, member_id, topics=[OffsetCommitRequest.Topic("orders", partitions=each)]
        )
        info = RequestInfo("c", "/127.0.0.1", version)
        self.carry_out(self.shard.offset_commit(request, info, self.tokens, self.now))
        response = self.replies[self.tokens]
        assert isinstance(response, OffsetCommitResponse)
        return [one.error_code for topic in response.topics for one in topic.partitions]


def join_request(member: Member, group: str = "g") -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group,
        member.member_id,
        0,
        member.instance,
        None,
        member.rebalance_ms,
        list(member.names),
        member.regex,
        member.assignor,
        [],
    )


def listed(
    owned: Iterable[TopicIdPartition],
) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(owned):
        topics.setdefault(topic_id, []).append(index)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id, indexes)
        for topic_id, indexes in topics.items()
    ]


def code(response: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(response.error_code)
