"""Sequences of faults that need the cluster to themselves, each with something to check.

Ordinary faults overlap, so little can be said about the time in which they last. An episode heals
everything first and waits until every replica is in sync. No other fault begins before it ends. So
it can take away what must not be taken twice (all data of one broker), and it can demand an answer
while the fault lasts:

bit_rot        one bit of a synced batch flips, behind the stored recovery point of a killed broker
empty_disk     a killed broker comes back with a new disk
lone_survivor  all brokers but one are down, and that one restarts: what was committed is readable
double_failover
               the leader dies while one follower is behind; that one leads, appends and dies too
unheard_join   a replica joins the in-sync set, and its leader cannot learn whether it did
slow_leases    the store is slow, but fast enough for leases: no broker loses its own
full_store     the store takes no writes: brokers stay, what was committed is readable
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.aio import Admin, Consumer
from penstock.broker.following import is_damaged
from penstock.client.errors import ClientError
from penstock.client.model import TopicPartition
from penstock.sim.history import INFO, OK, READERS, Probe
from penstock.sim.invariants import Invariants
from penstock.sim.node import BrokerNode
from penstock.sim.reading import BytesConsumer
from penstock.sim.rot import rot_above_recovery_point
from penstock.sim.stage import CLIENT_KEYWORDS, Actor, Stage, parse_place
from penstock.sim.world import World

SETTLE_S: Final = 25.0
NOTED_S: Final = 6.0
"""The high watermark is on every replica's disk so long after a commit, if nothing disturbs."""
OFFSETS: Final = "__consumer_offsets"
ANSWER_S: Final = 30.0
"""What must work during an episode works within this time and the session timeout."""
UNHEARD_S: Final = 9.0
"""A leader gives up to ask the store for the outcome of a commit before that."""
EXCHANGE_S_MAX: Final = 1.0
"""A request to a slow store and its answer: less than one attempt may take."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What an episode does through the one who makes all other trouble."""

    faults: Any
    calm: Callable[[], None]
    start: Callable[[BrokerNode], None]
    may_wound: Callable[[BrokerNode], bool]
    cut_at_join: Callable[[], None]
    """Cut the store off from the leader of the next partition that a replica joins."""
    tell: Callable[[str, str], None]


class Episodes:
    def __init__(
        self, world: World, stage: Stage, invariants: Invariants, operator: Actor, hands: Hands
    ) -> None:
        self.draws = world.draws("episodes")
        self._world = world
        self._stage = stage
        self._image = invariants.metadata.image
        self._invariants = invariants
        self._operator = operator
        self._spawn = world.client("operator").spawn
        self._hands = hands
        self._play: Mapping[str, Callable[[], Awaitable[bool]]] = {
            "bit_rot": self._bit_rot,
            "empty_disk": self._empty_disk,
            "lone_survivor": self._lone_survivor,
            "double_failover": self._double_failover,
            "unheard_join": self._unheard_join,
            "slow_leases": self._slow_leases,
            "full_store": self._full_store,
        }

    async def run(self, name: str) -> None:
        """One episode; skipped where the cluster does not settle in time, or cannot have it."""
        self._hands.tell("", f"episode {name}: all faults are healed first")
        self._hands.calm()
        if await self._settles() and await self._play[name]():
            self._stage.count(f"episode_{name}")
        else:
            self._stage.count("episodes_skipped")

    async def _settles(self) -> bool:
        end_s = self._world.now + SETTLE_S
        while not self._is_settled():
            if self._world.now >= end_s or self._stage.over.is_set():
                return False
            await self._stage.rest(0.5)
        return not self._stage.over.is_set()

    def _is_settled(self) -> bool:
        """All brokers are up, all replicas in sync, no log is damaged or offline."""
        if any(node.state != "ready" for node in self._world.brokers):
            return False
        partitions = [
            partition for topic in self._image.topics.values() for partition in topic.partitions
        ]
        if any({*each.isr} != {*each.replicas} or each.is_moving for each in partitions):
            return False
        lives = self._lives()
        if any(
            each.member_epoch(member) != lives.get(member)
            for each in partitions
            for member in each.isr
        ):
            # It counts for what a former life of it had.
            return False
        return not any(
            hosted.log.failure is not None or is_damaged(hosted.log)
            for node in self._world.brokers
            if node.broker is not None
            for hosted in node.broker.replicas
        )

    # Disks that lose what was safe

    async def _bit_rot(self) -> bool:
        node = self._spoilable()
        if node is None:
            return False
        self._hands.faults.kill(node.name)
        places = [
            f"{topic.name}-{index}"
            for topic in self._image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if node.id in partition.replicas and len(partition.replicas) > 1
        ]
        logs = f"{node.config.data_dir}/logs"
        rotted = rot_above_recovery_point(node.disk, logs, places, self.draws)
        await self._stage.rest(self._pause_s())
        self._hands.start(node)
        if rotted is None:
            return False
        self._hands.tell("", f"FAULT rot of {rotted} on {node.name}")
        return True

    async def _empty_disk(self) -> bool:
        node = self._spoilable()
        if node is None:
            return False
        self._hands.faults.kill(node.name)
        self._hands.tell("", f"FAULT {node.name} gets an empty disk")
        node.disk.wipe()
        self._invariants.disturbed[node.id] = True
        await self._stage.rest(self._pause_s())
        self._hands.start(node)
        return True

    def _spoilable(self) -> BrokerNode | None:
        """A broker that may lose everything: each of its partitions is elsewhere as well."""
        partitions = [
            partition for topic in self._image.topics.values() for partition in topic.partitions
        ]
        nodes = [
            node
            for node in self._world.brokers
            if all(len(each.replicas) > 1 for each in partitions if node.id in each.replicas)
        ]
        self.draws.shuffle(nodes)
        return next((node for node in nodes if self._hands.may_wound(node)), None)

    def _pause_s(self) -> float:
        return self.draws.choice((0.1, 2.0, 2 * self._stage.scenario.session_timeout_s))

    # One broker left

    async def _lone_survivor(self) -> bool:
        committed = self._committed()
        await self._stage.rest(NOTED_S)
        if self._stage.over.is_set():
            return False
        survivor = self.draws.choice(self._world.brokers)
        others = [node for node in self._world.brokers if node is not survivor]
        # A replica may have left the in-sync set since the cluster settled. It need not lead.
        in_sync = {
            place for place in (*committed, f"{OFFSETS}-0") if survivor.id in self._isr_of(place)
        }
        for node in others:
            self._hands.faults.kill(node.name)
        await self._stage.rest(self._pause_s())
        self._hands.faults.kill(survivor.name)
        await self._stage.rest(self.draws.random())
        self._hands.start(survivor)
        held = {place: end for place, end in committed.items() if place in in_sync and end}
        what = f"reading what was committed from {survivor.name}, the only broker that is up"
        await self._demand(what, lambda: self._read(held))
        if self._stage.scenario.members and f"{OFFSETS}-0" in in_sync:
            what = f"loading a coordinator on {survivor.name}, the only broker that is up"
            await self._demand(what, self._ask_group)
        for node in others:
            self._hands.start(node)
        return True

    # Two leaders in a row

    async def _double_failover(self) -> bool:
        """The last of three leaders has records of the first that the second never had, and none of
        the second's own. A follower must not cut where its leader's epoch ends (KIP-279)."""
        places = [
            place
            for place in self._stage.scenario.places
            if len(replicas := self._replicas_of(place)) == 3 and self._leader_of(place) in replicas
        ]
        if not places:
            return False
        place = self.draws.choice(places)
        first = self._world.brokers[self._leader_of(place)]
        second, third = (
            self._world.brokers[each] for each in self._replicas_of(place) if each != first.id
        )
        faults, limit_s = self._hands.faults, 2 * self._stage.scenario.session_timeout_s + 5
        faults.clog(first.name, second.name, limit_s)
        await self._wait(lambda: self._end(third, place) > self._end(second, place), 3.0)
        faults.kill(first.name)
        faults.partition([second.name], [third.name])
        if await self._wait(lambda: self._has_appended(second, place), limit_s):
            faults.kill(second.name)
            await self._wait(lambda: self._leader_of(place) == third.id, limit_s)
        faults.heal(store=False, nodes=False)
        for node in (first, second):
            self._hands.start(node)
        return True

    async def _unheard_join(self) -> bool:
        """The leader must count on the replica until it knows. Its session outlasts that."""
        places = [
            place
            for place in self._stage.scenario.places
            if len(self._replicas_of(place)) > 1 and self._leader_of(place) >= 0
        ]
        if not places or self._stage.scenario.session_timeout_s < UNHEARD_S:
            return False
        place = self.draws.choice(places)
        leader = self._leader_of(place)
        others = [each for each in self._replicas_of(place) if each != leader]
        follower = self._world.brokers[self.draws.choice(others)]
        self._hands.faults.kill(follower.name)
        await self._wait(lambda: follower.id not in self._isr_of(place), ANSWER_S)
        self._hands.cut_at_join()
        self._hands.start(follower)
        await self._wait(lambda: follower.id in self._isr_of(place), ANSWER_S)
        await self._stage.rest(UNHEARD_S)
        self._hands.faults.heal(network=False, nodes=False)
        return True

    def _isr_of(self, place: str) -> tuple[int, ...]:
        at = parse_place(place)
        partition = self._image.partition(at.topic, at.partition)
        return () if partition is None else partition.isr

    async def _wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Whether it holds in time; looked at often enough to be ahead of the network."""
        end_s = self._world.now + limit_s
        while not holds():
            if self._world.now >= end_s or self._stage.over.is_set():
                return False
            await self._world.sleep(0.005)
        return True

    def _leader_of(self, place: str) -> int:
        at = parse_place(place)
        partition = self._image.partition(at.topic, at.partition)
        return -1 if partition is None else partition.leader

    def _end(self, node: BrokerNode, place: str) -> int:
        at = parse_place(place)
        hosted = None if node.broker is None else node.broker.replicas.get(at.topic, at.partition)
        return -1 if hosted is None else hosted.log.end_offset

    def _has_appended(self, node: BrokerNode, place: str) -> bool:
        """Whether it leads, and has written in its term."""
        at = parse_place(place)
        hosted = None if node.broker is None else node.broker.replicas.get(at.topic, at.partition)
        term = None if hosted is None else hosted.leadership
        return term is not None and self._end(node, place) > term.start_offset

    # The store

    async def _slow_leases(self) -> bool:
        session_s = self._stage.scenario.session_timeout_s
        before = self._lives()
        self._hands.faults.slow_store(min(session_s / 5, EXCHANGE_S_MAX) / 2)
        await self._stage.rest(3 * session_s)
        self._hands.faults.slow_store(0.0)
        self._expect_lives("keeping leases while the store is slow", before)
        return True

    async def _full_store(self) -> bool:
        """Brokers want to commit meanwhile: a follower falls behind."""
        before, committed = self._lives(), self._committed()
        faults, scenario = self._hands.faults, self._stage.scenario
        faults.full_store()
        one, other = self.draws.sample(self._world.brokers, 2)
        faults.clog(one.name, other.name, 2 * scenario.lag_max_ms / 1000)
        faults.clog(other.name, one.name, 2 * scenario.lag_max_ms / 1000)
        await self._stage.rest(2 * scenario.session_timeout_s)
        await self._demand(
            "reading what was committed while the store is full", lambda: self._read(committed)
        )
        faults.full_store(on=False)
        self._expect_lives("staying up while the store is full", before)
        return True

    # What is expected

    def _committed(self) -> dict[str, int]:
        truths = self._invariants.truths
        return {
            place: truths[place].end_offset
            for place in self._stage.scenario.places
            if place in truths
        }

    def _replicas_of(self, place: str) -> tuple[int, ...]:
        at = parse_place(place)
        partition = self._image.partition(at.topic, at.partition)
        return () if partition is None else partition.replicas

    def _lives(self) -> dict[int, int]:
        return {each.broker_id: each.broker_epoch for each in self._image.brokers.values()}

    def _expect_lives(self, what: str, before: Mapping[int, int]) -> None:
        """No broker has registered again."""
        after = self._lives()
        lost = [each for each, epoch in before.items() if after.get(each) != epoch]
        self._probe(what, self._stage.now_ms(), f"brokers {lost} lost theirs" if lost else "")

    async def _demand(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """It must be done in time, by a client of its own; the load may end meanwhile."""
        begun_ms, error = self._stage.now_ms(), ""
        limit_s = ANSWER_S + 2 * self._stage.scenario.session_timeout_s

        async def attempt() -> None:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await work()
                    except ClientError as failed:
                        nonlocal error
                        error = str(failed)
                        await asyncio.sleep(0.5)

        try:
            await self._spawn(attempt())
        except TimeoutError:
            error = f"it took too long; {error or 'there was no error'}"
        else:
            error = ""
        self._probe(what, begun_ms, error)

    def _probe(self, what: str, begun_ms: float, error: str) -> None:
        self._stage.history.add(
            Probe(
                process=self._operator.name,
                status=INFO if error else OK,
                begun_ms=begun_ms,
                ended_ms=self._stage.now_ms(),
                error=error,
                what=what,
            )
        )

    async def _read(self, ends: Mapping[str, int]) -> None:
        """Read every place from its start to an offset."""
        wanted = {parse_place(place): end for place, end in ends.items()}
        consumer: BytesConsumer = Consumer(
            self._stage.bootstrap,
            env=self._operator.env,
            auto_offset_reset="earliest",
            **{**CLIENT_KEYWORDS, "default_api_timeout_ms": 10_000},
        )
        places: list[TopicPartition] = [*wanted]
        if not places:
            return
        async with consumer:
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            while any((consumer.known_position(at) or 0) < wanted[at] for at in places):
                await consumer.poll(timeout_ms=500)

    async def _ask_group(self) -> None:
        keywords: dict[str, Any] = {**CLIENT_KEYWORDS, "default_api_timeout_ms": 10_000}
        async with Admin(self._stage.bootstrap, env=self._operator.env, **keywords) as admin:
            await admin.group_offsets(READERS)
