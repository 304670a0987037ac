"""Simulates random clients, log failures and broker restarts against the group coordinator.

Clients come, leave, hang and crash; the log stalls and fails; the broker dies. Clients follow the
protocol as real ones do, each at its own random pace. After every step the invariants of the
groups hold, and these hold for every response:
- a generation has one leader;
- an assignment goes to the member and generation it was made for, and is never empty;
- offsets are exactly those last acknowledged, also after a restart;
- the image is what the log replays to.

At the end every request has been answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock.coordination.effects import Token
from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.groups.group import State
from penstock.groups.image import ShardImage
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Response

from .world import World

GROUP = "g"
START_OVER = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
)


@dataclass
class Client:
    name: str
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    leads: list[JoinGroupResponse.Member] = field(default_factory=list)
    skips: bool = False
    waits: Token | None = None
    phase: str = "out"
    """out -> joined -> running"""

    @property
    def owner(self) -> str:
        return self.instance or self.member_id

    def start_over(self) -> None:
        self.member_id, self.generation, self.leads, self.phase = "", -1, [], "out"


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(
            GroupConfig(
                initial_rebalance_delay_ms=self.random.choice([0, 500, 3000]),
                group_size_max=self.random.choice([3, 1000]),
            )
        )
        self.world.on_reply = self.on_reply
        self.clients = [
            Client(
                f"c{index}",
                self.random.choice([None, None, "one", "two"]),
                self.random.choice([3, 5, 7, 9]),
            )
            for index in range(self.random.randint(2, 6))
        ]
        for client in self.clients:
            if client.instance:
                client.version = max(5, client.version)
        self.handlers: dict[Token, Callable[[Response], None]] = {}
        self.leaders: dict[tuple[int, int], str] = {}
        self.incarnation = 0
        self.offsets: dict[int, int] = {}
        self.commits = 0
        self.answers = 0
        self.lost: set[Token] = set()

    def send(self, handler: Callable[[Response], None]) -> Token:
        token = len(self.handlers)
        self.handlers[token] = handler
        return token

    def on_reply(self, token: Token, response: Response) -> None:
        self.answers += 1
        self.handlers[token](response)

    # Clients

    def act(self, client: Client) -> None:
        if client.waits is not None:
            roll = self.random.random()
            # The client drops its connection and tries again.
            if roll < 0.05:
                client.waits = None
            elif roll < 0.07:
                client.waits = None
                self.leave(client)
            return
        if client.phase == "out":
            self.join(client)
        elif client.phase == "joined":
            self.sync(client)
        else:
            action = self.random.choices(
                [self.heartbeat, self.commit, self.join, self.leave, self.crash],
                weights=[10, 5, 1, 1, 1],
            )[0]
            action(client)

    def info(self, client: Client, version: int) -> RequestInfo:
        return RequestInfo(client.name, "/127.0.0.1", version)

    def join(self, client: Client) -> None:
        protocols = [JoinGroupRequest.Protocol(name, b"") for name in ("range", "sticky")]
        if self.random.random() < 0.3:
            protocols.reverse()
        request = JoinGroupRequest(
            GROUP,
            self.random.choice([6_000, 10_000]),
            self.random.choice([5_000, 20_000]),
            client.member_id,
            client.instance,
            "connect",
            protocols,
        )
        token = client.waits = self.send(lambda response: self.joined(client, token, response))
        info = self.info(client, client.version)
        self.world.carry_out(self.world.shard.join_group(request, info, token, self.world.now))

    def joined(self, client: Client, token: Token, response: Response) -> None:
        assert isinstance(response, JoinGroupResponse)
        if not response.error_code and response.members and not response.skip_assignment:
            generation = (self.incarnation, response.generation_id)
            assert self.leaders.setdefault(generation, response.leader) == response.leader
            assert response.leader == response.member_id
            assert response.member_id in {member.member_id for member in response.members}
        if client.waits != token:
            return
        client.waits = None
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error_code:
            if response.error_code in START_OVER:
                client.start_over()
        else:
            client.member_id, client.generation = response.member_id, response.generation_id
            client.leads = [] if response.skip_assignment else response.members
            client.phase = "joined"

    def sync(self, client: Client) -> None:
        nonce = self.random.random()
        assignments = []
        for member in client.leads:
            share = f"{client.generation} {member.group_instance_id or member.member_id} {nonce}"
            assignments.append(SyncGroupRequest.Assignment(member.member_id, share.encode()))
        request = SyncGroupRequest(
            GROUP, client.generation, client.member_id, client.instance, assignments=assignments
        )
        owner, generation = client.owner, client.generation
        token = client.waits = self.send(
            lambda response: self.synced(client, token, f"{generation} {owner}", response)
        )
        info = self.info(client, 3)
        self.world.carry_out(self.world.shard.sync_group(request, info, token, self.world.now))

    def synced(self, client: Client, token: Token, expected: str, response: Response) -> None:
        assert isinstance(response, SyncGroupResponse)
        if not response.error_code:
            assert response.assignment.decode().startswith(expected + " ")
        if client.waits != token:
            return
        client.waits = None
        client.phase = "out" if response.error_code else "running"
        if response.error_code in START_OVER:
            client.start_over()

    def heartbeat(self, client: Client) -> None:
        request = HeartbeatRequest(GROUP, client.generation, client.member_id, client.instance)

        def answered(response: Response) -> None:
            assert isinstance(response, HeartbeatResponse)
            if response.error_code in START_OVER:
                client.start_over()
            elif response.error_code:
                client.phase = "out"

        token = self.send(answered)
        info = self.info(client, 4)
        self.world.carry_out(self.world.shard.heartbeat(request, info, token, self.world.now))

    def commit(self, client: Client) -> None:
        self.commits += 1
        partition, offset = self.random.randrange(3), self.commits
        request = OffsetCommitRequest(
            GROUP,
            client.generation,
            client.member_id,
            client.instance,
            topics=[
                OffsetCommitRequest.Topic(
                    "t", partitions=[OffsetCommitRequest.Partition(partition, offset)]
                )
            ],
        )

        def answered(response: Response) -> None:
            assert isinstance(response, OffsetCommitResponse)
            if response.topics[0].partitions[0].error_code == ErrorCode.NONE:
                self.offsets[partition] = offset

        token = self.send(answered)
        info = self.info(client, 8)
        self.world.carry_out(self.world.shard.offset_commit(request, info, token, self.world.now))

    def leave(self, client: Client) -> None:
        request = LeaveGroupRequest(
            GROUP, members=[LeaveGroupRequest.Member(client.member_id, client.instance)]
        )
        token = self.send(lambda response: None)
        info = self.info(client, 4)
        self.world.carry_out(self.world.shard.leave_group(request, info, token, self.world.now))
        client.start_over()

    def crash(self, client: Client) -> None:
        client.start_over()
        client.waits = None

    # Faults

    def disturb(self) -> None:
        kind = self.random.choices(
            ["hold", "settle", "fail", "restart", "delete", "bookmark"],
            weights=[6, 6, 2, 1, 2, 4],
        )[0]
        if kind == "restart":
            self.restart()
        elif kind == "bookmark":
            self.commit(Client("nobody", None, 8))
        elif kind == "delete":
            self.delete()
        elif kind == "hold":
            self.world.holds_log = True
        elif kind == "settle" or not self.world.waiting:
            self.world.holds_log = False
            self.world.settle()
        else:
            self.world.fails_log = self.random.choice(
                [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR]
            )
            self.world.settle_one()
            self.world.fails_log = None

    def restart(self) -> None:
        self.incarnation += 1
        self.lost |= self.handlers.keys() - self.world.replies.keys()
        for client in self.clients:
            client.waits = None
            client.phase = "out"
        self.world.restart()

    def delete(self) -> None:
        def answered(response: Response) -> None:
            assert isinstance(response, DeleteGroupsResponse)
            if not response.results[0].error_code:
                self.offsets.clear()
                # A group that is created again starts with generation 1.
                self.incarnation += 1

        token = self.send(answered)
        info = RequestInfo("admin", "/127.0.0.1", 2)
        request = DeleteGroupsRequest([GROUP])
        self.world.carry_out(self.world.shard.delete_groups(request, info, token, self.world.now))

    def check(self) -> None:
        self.world.shard.verify()
        image = self.world.shard.state.image
        known = {index: value.offset for (_, index), value in image.offsets_of(GROUP).items()}
        assert known == self.offsets
        group = self.world.shard.state.groups.get(GROUP)
        if group is not None and group.state is State.STABLE and not self.world.waiting:
            stored = image.groups[GROUP]
            assert stored.generation == group.generation
            assert {member.member_id: member.assignment for member in stored.members} == {
                member.member_id: member.assignment for member in group.members.values()
            }

    def check_replay(self) -> None:
        replayed = ShardImage()
        for record in self.world.log:
            replayed.replay(record.key, record.value)
        image = self.world.shard.state.image
        assert (replayed.groups, replayed.offsets) == (image.groups, image.offsets)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            roll = self.random.random()
            if roll < 0.06:
                self.disturb()
            elif roll < 0.25:
                self.world.advance(self.random.choice([1, 100, 1_000, 4_000]), self.check)
            else:
                self.act(self.random.choice(self.clients))
            self.check()
        self.check_replay()
        self.world.holds_log = False
        self.world.settle()
        self.world.advance(3_600_000, self.check)
        self.check_canary()
        unanswered = self.handlers.keys() - self.world.replies.keys() - self.lost
        assert not unanswered

    def check_canary(self) -> None:
        """Checks that a new client is served afterwards as if nothing had happened."""
        self.incarnation += 1  # The old group may have expired.
        canary = Client("canary", None, 9)
        for _ in range(20):
            self.act(canary)
            self.world.advance(3_000, self.check)
            if canary.phase == "running":
                return
        raise AssertionError(f"the canary is still {canary}")


@pytest.mark.parametrize("seed", range(60))
def test_random_clients_and_faults_break_no_invariant(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run(600)
    assert simulation.answers > 50


def test_the_simulation_has_rebalances_and_commits() -> None:
    """Without this check, a simulation that does nothing would pass."""
    generations = commits = 0
    for seed in range(5):
        simulation = Simulation(seed)
        simulation.run(600)
        generations += len(simulation.leaders)
        commits += simulation.commits
    assert generations > 50
    assert commits > 50
