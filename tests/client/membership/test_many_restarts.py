"""Twenty members of a group of the new protocol are restarted one after the other, in virtual time.

The members are those of our client, the coordinator is the broker's, with Kafka's default
intervals. A member stays away for a while, and its restart lasts until it has its share and its
former partitions are read again. No partition may pause for longer than the restart of the member
that gave it up, or than the interval in which its next member learns that it may read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from groups.consumer.bench import ConsumerBench
from penstock.client.membership.consumer_machine import ConsumerMembership
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import Ask, Assigned, Lost, Revoked
from penstock.groups.config import ConsumerGroupConfig
from penstock.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    MetadataRequest,
    MetadataResponse,
)

MEMBERS = 20
PARTITIONS = 40
TICK_MS = 20
AWAY_MS = 1_500
LIMIT_MS = 600_000
INTERVAL_MS = 5_000


@dataclass
class Reader:
    """A running member. It does its steps once in each tick, and polls at once."""

    number: int
    machine: ConsumerMembership
    owned: set[int] = field(default_factory=set)


class Group:
    def __init__(self, seed: int, *, static: bool) -> None:
        self.random = Random(seed)
        self.is_static = static
        self.bench = ConsumerBench({"orders": PARTITIONS}, ConsumerGroupConfig())
        self.readers: list[Reader | None] = [None] * MEMBERS
        self.ids = 0
        self.paused: dict[int, tuple[int, int]] = {}
        """By partition: which member gave it up, and when."""
        self.pauses: list[tuple[int, int, int]] = []
        """Which member gave up a partition, when, and how long nobody read it."""

    @property
    def now_s(self) -> float:
        return self.bench.ticks_ms / 1000

    def start(self, number: int) -> None:
        self.ids += 1
        instance = f"instance-{number}" if self.is_static else None
        options = MembershipOptions("g", group_instance_id=instance, group_protocol="consumer")
        machine = ConsumerMembership(options, self.random.random, f"member-{self.ids}")
        machine.subscribe(frozenset({"orders"}), self.now_s)
        self.readers[number] = Reader(number, machine)

    def stop(self, number: int) -> frozenset[int]:
        """Lets a member leave as `close` does. Returns what it read."""
        reader = self.readers[number]
        assert reader is not None
        own = frozenset(reader.owned)
        self._release(reader, own)
        request = reader.machine.leave("closed", for_good=not self.is_static)
        assert request is not None
        self.bench.ask(request)
        self.readers[number] = None
        return own

    def _release(self, reader: Reader, partitions: frozenset[int]) -> None:
        reader.owned -= partitions
        self.paused |= dict.fromkeys(partitions, (reader.number, self.bench.ticks_ms))

    def _take(self, reader: Reader, partitions: frozenset[int]) -> None:
        reader.owned |= partitions
        for partition in partitions:
            if partition in self.paused:
                number, begin = self.paused.pop(partition)
                self.pauses.append((number, begin, self.bench.ticks_ms - begin))

    def tick(self) -> None:
        self.bench.advance(TICK_MS)
        for reader in self.readers:
            if reader is not None:
                self._poll(reader)
                self._step(reader)
                self._poll(reader)

    def _poll(self, reader: Reader) -> None:
        machine = reader.machine
        while (news := machine.poll(self.now_s)) is not None:
            assert isinstance(news, Assigned | Revoked | Lost), news
            moved = frozenset(each.partition for each in news.topic_partitions)
            (self._take if isinstance(news, Assigned) else self._release)(reader, moved)
            machine.told(news, self.now_s)

    def _step(self, reader: Reader) -> None:
        step = reader.machine.step(self.now_s)
        if not isinstance(step, Ask):
            return
        if isinstance(step.request, MetadataRequest):
            topic = self.bench.topics.find("orders")
            assert topic is not None
            found = MetadataResponse.Topic(name="orders", topic_id=topic.topic_id)
            reader.machine.on_answer(MetadataResponse(topics=[found]), self.now_s)
        elif isinstance(step.request, ConsumerGroupHeartbeatRequest):
            reader.machine.on_answer(self.bench.ask(step.request), self.now_s)

    def run_until_settled(
        self, number: int | None = None, own: frozenset[int] = frozenset()
    ) -> int:
        """Runs until a member has its share and `own` is read; if none is named, until all have
        their share. Returns the time."""
        while True:
            readers = [each for each in self.readers if each is not None]
            if number is None:
                if all(len(each.owned) == PARTITIONS // MEMBERS for each in readers):
                    return self.bench.ticks_ms
            else:
                reader = self.readers[number]
                assert reader is not None
                is_whole = len(reader.owned) == PARTITIONS // MEMBERS
                if is_whole and not own & self.paused.keys():
                    return self.bench.ticks_ms
            assert self.bench.ticks_ms < LIMIT_MS
            self.tick()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rolling_restart_of_twenty_members(seed: int, static: bool) -> None:
    group = Group(seed, static=static)
    for number in range(MEMBERS):
        group.start(number)
        for _ in range(group.random.randrange(0, 40)):
            group.tick()
    group.run_until_settled()
    begin = group.bench.ticks_ms
    lasted: list[int] = []
    for number in range(MEMBERS):
        stopped = group.bench.ticks_ms
        own = group.stop(number)
        for _ in range(AWAY_MS // TICK_MS):
            group.tick()
        group.start(number)
        lasted.append(group.run_until_settled(number, own) - stopped)
    group.run_until_settled()
    pauses = [each for each in group.pauses if each[1] >= begin]
    assert len(pauses) >= PARTITIONS
    for number, _, pause in pauses:
        # The step after the answer takes two ticks.
        assert pause <= max(lasted[number], INTERVAL_MS + 2 * TICK_MS)
