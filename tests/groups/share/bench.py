"""A shard with topics and members of share groups, driven by a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from groups.consumer.bench import FakeTopics
from groups.world import World
from penstock.groups.config import GroupConfig, ShareGroupConfig, ShareGroupSettings
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import Effect, RequestInfo, ShareStateCall
from penstock.groups.shard import GroupShard
from penstock.groups.shard_state import ConsumerContext, ShareContext
from penstock.groups.share.group import ShareGroup
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from penstock.wire.messages.base import Response

EAGER = ShareGroupConfig(ShareGroupSettings(assignment_interval_ms=0))
"""Computes the target assignment at every change."""
REFUSAL = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass
class Member:
    """A client that follows the protocol."""

    member_id: str
    names: tuple[str, ...] = ("jobs",)
    epoch: int = 0
    assigned: set[TopicIdPartition] = field(default_factory=set)

    def take(self, response: ShareGroupHeartbeatResponse) -> None:
        if response.error_code:
            return
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = {
                TopicIdPartition(topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }


class ShareBench(World):
    """`states` is what the share coordinator has: state epoch and start offset by partition.

    Calls wait in `calls` until the test makes them."""

    def __init__(
        self,
        counts: dict[str, int] | None = None,
        shares: ShareGroupConfig = EAGER,
        config: GroupConfig | None = None,
    ) -> None:
        self.topics = FakeTopics(counts or {"jobs": 4})
        self.shares = shares
        self.settings: dict[str, ShareGroupSettings] = {}
        self.calls: list[ShareStateCall] = []
        self.states: dict[TopicIdPartition, tuple[int, int]] = {}
        self.tokens = 0
        super().__init__(config)

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            self.config,
            self.new_member_id,
            lambda: self.batch_bytes_max,
            ConsumerContext(topics=self.topics),
            ShareContext(
                self.shares, lambda group_id: self.settings.get(group_id, self.shares.settings)
            ),
        )

    def carry_out(self, effects: list[Effect]) -> None:
        self.calls += [each for each in effects if isinstance(each, ShareStateCall)]
        super().carry_out(effects)

    def make_calls(self, *, failing: bool = False) -> None:
        """Makes the calls of the share coordinator that the shard asked for."""
        calls, self.calls = self.calls, []
        for call in calls:
            self.make_call(call, failing=failing)

    def make_call(self, call: ShareStateCall, *, failing: bool = False) -> None:
        everything = [*(each.partition for each in call.initialize), *call.delete]
        failures = dict.fromkeys(everything, REFUSAL) if failing else {}
        if not failing:
            for partition, epoch, start in call.initialize:
                if self.states.get(partition, (-1, 0))[0] < epoch:
                    self.states[partition] = epoch, start
            for partition in call.delete:
                self.states.pop(partition, None)
        self.carry_out(
            self.shard.on_share_state_called(call.group_id, call.call_id, failures, self.now)
        )

    @property
    def group(self) -> ShareGroup:
        return self.shard.state.share_groups["g"]

    def send(self, request: ShareGroupHeartbeatRequest, client: str = "c") -> int:
        self.tokens += 1
        info = RequestInfo(client, "/127.0.0.1", 1)
        self.carry_out(self.shard.share_heartbeat(request, info, self.tokens, self.now))
        return self.tokens

    def ask(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        response = self.replies[self.send(request)]
        assert isinstance(response, ShareGroupHeartbeatResponse)
        return response

    def reply(self) -> Response:
        """Returns the answer to the last request."""
        return self.replies[self.tokens]

    # Members

    def beat(self, member: Member, **changes: object) -> ShareGroupHeartbeatResponse:
        """Joins, or sends a heartbeat."""
        response = self.ask(heartbeat(member, **changes))
        member.take(response)
        return response

    def leave(self, member: Member) -> ShareGroupHeartbeatResponse:
        return self.ask(ShareGroupHeartbeatRequest("g", member.member_id, -1))

    def settle_members(self, *members: Member) -> int:
        """Makes calls and sends heartbeats until nothing changes. Returns how many rounds."""
        for rounds in range(1, 10):
            before = [(member.epoch, frozenset(member.assigned)) for member in members]
            self.make_calls()
            for member in members:
                assert self.beat(member).error_code == 0
                self.shard.verify()
            after = [(member.epoch, frozenset(member.assigned)) for member in members]
            if before == after and not self.calls:
                return rounds
        raise AssertionError(f"the group still changes after {rounds} rounds of heartbeats")


def heartbeat(member: Member, **changes: object) -> ShareGroupHeartbeatRequest:
    names = list(member.names) if member.epoch == 0 else None
    request = ShareGroupHeartbeatRequest("g", member.member_id, member.epoch, None, names)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def code(response: ShareGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(response.error_code)
