"""Clients of the classic protocol, for groups that move between the protocols.

Eager clients give up everything before they join; cooperative ones keep what they have, and join
again when they had to give something up. The leader of a classic group assigns the partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import RequestInfo
from penstock.wire.codec import decode_embedded, encode_embedded
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request, Response

from .bench import ConsumerBench

NamedPartition = tuple[str, int]
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


def send(bench: ConsumerBench, request: Request, version: int, client: str = "c") -> int:
    bench.tokens += 1
    info = RequestInfo(client, "/127.0.0.1", version)
    method = {
        JoinGroupRequest: bench.shard.join_group,
        SyncGroupRequest: bench.shard.sync_group,
        HeartbeatRequest: bench.shard.heartbeat,
        LeaveGroupRequest: bench.shard.leave_group,
    }[type(request)]
    bench.carry_out(method(request, info, bench.tokens, bench.now))  # type: ignore[operator]
    return bench.tokens


@dataclass
class ClassicClient:
    name: str
    topics: tuple[str, ...] = ("orders",)
    is_cooperative: bool = True
    instance: str | None = None
    protocols: tuple[str, ...] = ("range",)
    protocol_type: str = "consumer"
    rebalance_ms: int = 60_000
    version: int = 9
    user_data: bytes | None = None
    """What its assignor adds to assignments, if it leads."""
    member_id: str = ""
    generation: int = -1
    owned: set[NamedPartition] = field(default_factory=set)
    phase: str = "out"
    """out -> joined -> running"""
    leads: list[JoinGroupResponse.Member] = field(default_factory=list)
    waits: int | None = None
    errors: list[ErrorCode] = field(default_factory=list)

    # One request at a time, as a real client sends them

    def step(self, bench: ConsumerBench) -> None:
        """Sends the next request, or takes the answer to the last one."""
        if self.waits is None:
            request = {"out": self.joins, "joined": self.syncs, "running": self.beats}[self.phase]
            self.waits = send(bench, request(), self.version, self.name)
        self.take(bench)

    def take(self, bench: ConsumerBench) -> None:
        """Takes the answer if it is there."""
        if self.waits is None or self.waits not in bench.replies:
            return
        response: Response = bench.replies[self.waits]
        self.waits = None
        if isinstance(response, JoinGroupResponse):
            self.on_joined(response)
        elif isinstance(response, SyncGroupResponse):
            self.on_synced(response)
        elif isinstance(response, HeartbeatResponse):
            self.on_beat(ErrorCode(response.error_code))

    def joins(self) -> JoinGroupRequest:
        if not self.is_cooperative:
            self.owned = set()
        each = [JoinGroupRequest.Protocol(name, self.subscription()) for name in self.protocols]
        return JoinGroupRequest(
            "g",
            10_000,
            self.rebalance_ms,
            self.member_id,
            self.instance,
            self.protocol_type,
            each,
        )

    def subscription(self) -> bytes:
        held: dict[str, list[int]] = {}
        for topic, index in sorted(self.owned):
            held.setdefault(topic, []).append(index)
        owned = [ConsumerProtocolSubscription.TopicPartition(*each) for each in held.items()]
        return encode_embedded(ConsumerProtocolSubscription(list(self.topics), None, owned), 1)

    def syncs(self) -> SyncGroupRequest:
        return SyncGroupRequest(
            "g",
            self.generation,
            self.member_id,
            self.instance,
            self.protocol_type,
            self.protocols[0],
            self.assignments(),
        )

    def beats(self) -> HeartbeatRequest:
        return HeartbeatRequest("g", self.generation, self.member_id, self.instance)

    def leave(self, bench: ConsumerBench) -> LeaveGroupResponse:
        leaving = [LeaveGroupRequest.Member(self.member_id, self.instance)]
        token = send(bench, LeaveGroupRequest("g", members=leaving), 4, self.name)
        response = bench.replies[token]
        assert isinstance(response, LeaveGroupResponse)
        return response

    # Answers

    def on_error(self, code: ErrorCode) -> None:
        self.errors.append(code)
        self.leads = []
        self.phase = "out"
        if code in LOST:
            self.owned = set()
            self.generation = -1
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""

    def on_joined(self, response: JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif response.error_code:
            self.on_error(ErrorCode(response.error_code))
        else:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.leads = response.members if response.leader == response.member_id else []
            self.phase = "joined"

    def on_synced(self, response: SyncGroupResponse) -> None:
        if response.error_code:
            self.on_error(ErrorCode(response.error_code))
            return
        given: set[NamedPartition] = set()
        if response.assignment:
            _, found = decode_embedded(ConsumerProtocolAssignment, response.assignment)
            given = {
                (each.topic, index)
                for each in found.assigned_partitions
                for index in each.partitions
            }
        # A cooperative client that had to give something up joins again at once.
        self.phase = "out" if self.is_cooperative and self.owned - given else "running"
        self.owned = given

    def on_beat(self, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self.on_error(code)

    # What the leader of a classic group does

    counts: dict[str, int] = field(default_factory=dict)

    def assignments(self) -> list[SyncGroupRequest.Assignment]:
        if not self.leads:
            return []
        owners: dict[NamedPartition, str] = {}
        for each in self.leads:
            _, held = decode_embedded(ConsumerProtocolSubscription, each.metadata)
            for topic in held.owned_partitions:
                owners.update(((topic.topic, index), each.member_id) for index in topic.partitions)
        given: dict[str, dict[str, list[int]]] = {each.member_id: {} for each in self.leads}
        ids = sorted(given)
        every = [(name, index) for name, count in self.counts.items() for index in range(count)]
        for number, (name, index) in enumerate(every):
            member_id = ids[number % len(ids)]
            # It is assigned in the next round, when its owner has given it up.
            if owners.get((name, index), member_id) == member_id:
                given[member_id].setdefault(name, []).append(index)
        return [
            SyncGroupRequest.Assignment(
                member_id,
                encode_embedded(
                    ConsumerProtocolAssignment(
                        [ConsumerProtocolAssignment.TopicPartition(*each) for each in own.items()],
                        self.user_data,
                    ),
                    1,
                ),
            )
            for member_id, own in given.items()
        ]


def ids_of(bench: ConsumerBench, client: ClassicClient) -> set[TopicIdPartition]:
    """Returns what a client owns in the form that members of the new protocol use."""
    known = bench.topics.known
    return {
        TopicIdPartition(known[topic].topic_id, index)
        for topic, index in client.owned
        if topic in known
    }


def run(bench: ConsumerBench, *clients: ClassicClient, rounds: int = 12) -> None:
    """Lets classic clients work until all of them have an assignment, and no rebalance is left."""
    for client in clients:
        client.counts = {name: each.partitions for name, each in bench.topics.known.items()}
    quiet = 0
    for _ in range(rounds):
        before = [(each.phase, len(each.errors)) for each in clients]
        for client in clients:
            client.step(bench)
        bench.advance(3_000)
        for client in clients:
            client.take(bench)
        bench.shard.verify()
        after = [(each.phase, len(each.errors)) for each in clients]
        is_quiet = before == after and all(each.phase == "running" for each in clients)
        quiet = quiet + 1 if is_quiet else 0
        if quiet == 2:
            return
    raise AssertionError(f"the clients are not done after {rounds} rounds: {clients}")
