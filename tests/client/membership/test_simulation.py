"""Runs many memberships against the real coordinator's machine, in virtual time, with faults.

Members join, leave, crash, stall and change their subscriptions; answers are late or lost; the
coordinator crashes and restarts; topics grow. After every step, no two members that the coordinator
knows own the same partition. When the faults end, the group settles: every partition of every
subscribed topic has one owner that subscribed to it. It settles again when topics grow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from groups.world import World
from penstock.client.errors import ConnectionLost
from penstock.client.membership.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    Assignor,
)
from penstock.client.membership.machine import Membership
from penstock.client.membership.phases import Phase
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Ask, Count, GroupRequest, GroupResponse, Lost, News
from penstock.coordination.effects import Token
from penstock.groups.config import GroupConfig
from penstock.groups.effects import Effect, RequestInfo
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Response

TURNS = 2_000
SETTLED_WITHIN_MS = 120_000
TOPICS = ("a", "b", "c")


@dataclass
class Actor:
    """A member and its user."""

    name: str
    machine: Membership
    asked: Token | None = None
    """The request that is in flight."""
    answers: list[Response] = field(default_factory=list)
    heard: list[News] = field(default_factory=list)


class Group:
    def __init__(self, seed: int, assignors: tuple[Assignor, ...]) -> None:
        self.dice = random.Random(seed)
        self.assignors = assignors
        self.world = World(GroupConfig(initial_rebalance_delay_ms=0, session_timeout_min_ms=1))
        self.world.on_reply = self.on_reply
        self.counts = {"a": 4, "b": 3}
        self.actors: dict[str, Actor] = {}
        self.born = 0
        self.tokens = 0

    @property
    def now(self) -> float:
        return self.world.ticks_ms / 1000

    # -- the network ----------------------------------------------------------------------------

    def on_reply(self, token: Token, response: Response) -> None:
        for actor in self.actors.values():
            if actor.asked == token:
                actor.answers.append(response)

    def send(self, request: GroupRequest) -> Token:
        self.tokens += 1
        token = self.tokens
        self.world.carry_out(self.handled(request, token))
        return token

    def handled(self, request: GroupRequest, token: Token) -> list[Effect]:
        shard, now = self.world.shard, self.world.now
        match request:
            case JoinGroupRequest():
                return shard.join_group(request, RequestInfo("c", "/h", 9), token, now)
            case SyncGroupRequest():
                return shard.sync_group(request, RequestInfo("c", "/h", 5), token, now)
            case HeartbeatRequest():
                return shard.heartbeat(request, RequestInfo("c", "/h", 4), token, now)
            case LeaveGroupRequest():
                return shard.leave_group(request, RequestInfo("c", "/h", 5), token, now)
            case _:
                raise AssertionError(f"a classic member does not send {request}")

    # -- what happens ---------------------------------------------------------------------------

    def enters(self) -> None:
        self.born += 1
        options = MembershipOptions(
            "g",
            session_timeout_ms=2_000,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=3_000,
            metadata_max_age_ms=1_000,
            assignors=self.assignors,
        )
        actor = Actor(f"m{self.born}", Membership(options, self.dice.random))
        self.actors[actor.name] = actor
        self.wants(actor)

    def wants(self, actor: Actor) -> None:
        topics = self.dice.sample(TOPICS, self.dice.randint(1, 3))
        actor.machine.subscribe(frozenset(topics), self.now)

    def acts(self, actor: Actor) -> None:
        """Runs the member's background task once."""
        if actor.asked is not None:
            if actor.answers:
                answer = actor.answers.pop()
                actor.asked = None
                assert isinstance(
                    answer,
                    JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse,
                )
                self.hears(actor, answer)
            return
        match actor.machine.step(self.now):
            case Ask(request):
                # Answers may arrive while the request is being sent, so the token is set first.
                actor.asked = self.tokens + 1
                self.send(request)
            case Count(topics):
                known = {topic: n for topic, n in self.counts.items() if topic in topics}
                actor.machine.on_counts(known, self.now)

    def hears(self, actor: Actor, answer: GroupResponse) -> None:
        if self.dice.random() < 0.05:
            actor.machine.on_failure(ConnectionLost("the answer was lost"), self.now)
        else:
            actor.machine.on_answer(answer, self.now)

    def polls(self, actor: Actor) -> None:
        news = actor.machine.poll(self.now)
        if news is not None:
            actor.heard.append(news)
            actor.machine.told(news, self.now)

    def leaves(self, actor: Actor) -> None:
        del self.actors[actor.name]
        goodbye = actor.machine.leave("done", for_good=True)
        if goodbye is not None:
            self.send(goodbye)

    def loses_its_connection(self, actor: Actor) -> None:
        if actor.asked is not None:
            actor.asked = None
            actor.answers.clear()
            actor.machine.on_failure(ConnectionLost("reset"), self.now)

    def restarts(self) -> None:
        self.world.restart()
        for actor in self.actors.values():
            self.loses_its_connection(actor)

    def something_happens(self) -> None:
        actors = list(self.actors.values())
        chance = self.dice.random()
        if not actors or (chance < 0.02 and len(actors) < 6):
            self.enters()
        elif chance < 0.03:
            self.leaves(self.dice.choice(actors))
        elif chance < 0.035:
            del self.actors[self.dice.choice(actors).name]
        elif chance < 0.045:
            self.wants(self.dice.choice(actors))
        elif chance < 0.055:
            self.loses_its_connection(self.dice.choice(actors))
        elif chance < 0.06:
            self.restarts()
        elif chance < 0.065:
            topic = self.dice.choice(TOPICS)
            self.counts[topic] = min(self.counts.get(topic, 0) + 1, 6)
        elif chance < 0.5:
            self.acts(self.dice.choice(actors))
        elif chance < 0.85:
            self.polls(self.dice.choice(actors))
        else:
            self.world.advance(self.dice.choice([1, 10, 100, 400]))

    # -- what must hold -------------------------------------------------------------------------

    def verify(self) -> None:
        (group,) = self.world.shard.describe_groups(["g"], 5)
        known = {member.member_id for member in group.members}
        holders: dict[TopicPartition, str] = {}
        for actor in self.actors.values():
            if actor.machine.member_id in known and actor.machine.identity.generation >= 0:
                for topic_partition in actor.machine.owned:
                    other = holders.setdefault(topic_partition, actor.name)
                    assert other == actor.name, (
                        f"{other} and {actor.name} both read {topic_partition}"
                    )

    def settles(self) -> None:
        """Polls every member and delivers every answer until the group is stable."""
        end = self.world.ticks_ms + SETTLED_WITHIN_MS
        while self.world.ticks_ms < end and not self.is_settled():
            for actor in list(self.actors.values()):
                self.acts(actor)
                self.polls(actor)
                self.verify()
            self.world.advance(20)
        assert self.is_settled(), {
            actor.name: (actor.machine.phase.name, sorted(actor.machine.owned))
            for actor in self.actors.values()
        }

    def is_settled(self) -> bool:
        machines = [actor.machine for actor in self.actors.values()]
        wanted = {topic for machine in machines for topic in machine.topics}
        everything = sorted(
            TopicPartition(topic, number)
            for topic, count in self.counts.items()
            if topic in wanted
            for number in range(count)
        )
        held = sorted(topic_partition for machine in machines for topic_partition in machine.owned)
        return held == everything and all(
            machine.phase is Phase.STABLE
            and all(topic_partition.topic in machine.topics for topic_partition in machine.owned)
            for machine in machines
        )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "assignors",
    [(RANGE,), (STICKY,), (COOPERATIVE_STICKY,), (ROUNDROBIN, COOPERATIVE_STICKY)],
    ids=lambda assignors: "+".join(assignor.name for assignor in assignors),
)
def test_no_partition_has_two_owners_under_faults(
    seed: int, assignors: tuple[Assignor, ...]
) -> None:
    """In the end every partition has an owner."""
    group = Group(seed, assignors)
    for _ in range(TURNS):
        group.something_happens()
        group.verify()
    if not group.actors:
        group.enters()
    group.settles()
    group.counts = {topic: group.counts.get(topic, 0) + 1 for topic in TOPICS}
    group.settles()


def test_the_checks_can_fail() -> None:
    """Detects two members that own the same partition."""
    group = Group(0, (RANGE,))
    group.enters()
    group.enters()
    group.settles()
    first, second = (actor.machine for actor in group.actors.values())
    first.owned.update(second.owned)
    first.owned[TopicPartition("a", 0)] = second.owned[TopicPartition("a", 0)] = 1
    with pytest.raises(AssertionError, match="both read"):
        group.verify()


def test_the_simulation_meets_faults() -> None:
    """The runs above do lose partitions and refuse members; otherwise they would prove little."""
    lost = refused = 0
    for seed in range(4):
        group = Group(seed, (COOPERATIVE_STICKY,))
        for _ in range(TURNS):
            group.something_happens()
            for actor in group.actors.values():
                refused += any(
                    getattr(answer, "error_code", 0) == ErrorCode.UNKNOWN_MEMBER_ID
                    for answer in actor.answers
                )
        lost += sum(isinstance(n, Lost) for a in group.actors.values() for n in a.heard)
    assert lost > 0
    assert refused > 0
