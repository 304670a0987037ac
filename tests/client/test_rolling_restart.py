"""Tests a rolling restart of the members of a group of the new protocol, under load.

Six members, or twenty, are restarted one after the other while records are produced for every
partition, in rounds. The rounds are the clock: when the machine is busy, they are late as well. A
log has the round of each delivery. A member's restart lasts from the last record before its stop
until it has its share again and its former partitions are read. No partition may pause for longer
than the restart of its own member.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from client.live_broker import CONSUMER_GROUPS
from penstock import aio
from penstock.testing import Broker
from penstock.testing.slowness import patient

EACH = 2
"""How many partitions each member reads."""
EVERY_S = 0.1
"""The pause between two rounds, in which each partition gets a record."""
AWAY_RECORDS = 5
"""A member stays away until every other partition has delivered so many records."""
LIMIT_S = 150.0
LONG = pytest.mark.skipif(
    not os.environ.get("PENSTOCK_LONG"), reason="takes minutes: set PENSTOCK_LONG=1"
)
SETTINGS = {
    **CONSUMER_GROUPS,
    "group.consumer.heartbeat.interval.ms": "300",
    # No session may end because the machine is busy.
    "group.consumer.session.timeout.ms": "60000",
}


@dataclass
class DeliveryLog:
    """In which round which partition delivered a record, and which offsets it delivered."""

    partitions: int
    round: int = 0
    rounds: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, partition: int, offset: int) -> None:
        self.rounds[partition].append(self.round)
        self.offsets[partition].append(offset)
        self.news.set()

    def counts(self) -> dict[int, int]:
        return {partition: len(self.rounds[partition]) for partition in range(self.partitions)}

    def pause(self, partition: int, begin: int, end: int) -> int:
        """Returns the most rounds without a delivery between these rounds."""
        inside = [at for at in self.rounds[partition] if begin <= at <= end]
        return max(after - before for before, after in pairwise([begin, *inside, end]))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()


class Member:
    """A consumer that reads until it is stopped. Commits are automatic."""

    def __init__(self, bootstrap: str, group: str, topic: str, log: DeliveryLog, **options: Any):
        self._consumer = aio.Consumer(
            bootstrap,
            topics=topic,
            group_id=group,
            group_protocol="consumer",
            auto_offset_reset="earliest",
            listener=self,
            **options,
        )
        self._log = log
        self._task = asyncio.create_task(self._read())
        self.told: list[str] = []

    def on_assigned(self, partitions: list[Any]) -> None:
        self.told += ["assigned"] * bool(partitions)

    def on_revoked(self, partitions: list[Any]) -> None:
        self.told += ["revoked"] * bool(partitions)

    def on_lost(self, partitions: list[Any]) -> None:
        self.told += ["lost"] * bool(partitions)

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(each.partition for each in self._consumer.assignment())

    async def _read(self) -> None:
        async with self._consumer as consumer:
            async for record in consumer:
                self._log.note(record.partition, record.offset)

    async def stop(self) -> None:
        await self._consumer.close()
        await self._task


async def produce(bootstrap: str, topic: str, log: DeliveryLog) -> None:
    async with aio.Producer(bootstrap) as producer:
        while True:
            sent = [
                await producer.send(topic, b"x", partition=partition)
                for partition in range(log.partitions)
            ]
            await asyncio.gather(*sent)
            log.round += 1
            await asyncio.sleep(EVERY_S)


@dataclass
class Restart:
    own: frozenset[int]
    began: int
    ended: int

    @property
    def lasted(self) -> int:
        """How many rounds it took."""
        return self.ended - self.began


async def restart(
    members: list[Member], number: int, again: Callable[[], Member], log: DeliveryLog
) -> Restart:
    """Stops a member, and starts it again after the others have read on without it."""
    own = members[number].owned
    began = min(log.rounds[partition][-1] for partition in own)
    await members[number].stop()
    before = log.counts()
    await log.until(
        lambda: all(
            log.counts()[partition] >= count + AWAY_RECORDS
            for partition, count in before.items()
            if partition not in own
        )
    )
    members[number] = again()
    back = log.counts()
    await log.until(
        lambda: (
            len(members[number].owned) == EACH
            and all(log.counts()[partition] > back[partition] for partition in own)
        )
    )
    return Restart(own, began, log.round)


def whole(members: list[Member]) -> bool:
    owned = [partition for member in members for partition in member.owned]
    return sorted(owned) == list(range(EACH * len(members)))


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=LONG)])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_a_rolling_restart_pauses_only_what_it_must(static: bool, count: int) -> None:
    """Static members: nobody else is told anything. In both cases, other partitions are read on,
    no record is skipped, and none is read twice."""

    async def case(broker: Broker) -> None:
        topic, group = broker.new_topic(EACH * count), broker.new_name("group")
        log = DeliveryLog(EACH * count)

        def member(number: int) -> Member:
            instance = f"member-{number}" if static else None
            return Member(broker.bootstrap, group, topic, log, group_instance_id=instance)

        members = [member(number) for number in range(count)]
        load = asyncio.create_task(produce(broker.bootstrap, topic, log))
        try:
            await log.until(
                lambda: (
                    all(len(each.owned) == EACH for each in members)
                    and whole(members)
                    and all(log.counts().values())
                )
            )
            restarts = [
                await restart(members, number, lambda number=number: member(number), log)  # type: ignore[misc]
                for number in range(count)
            ]
            await log.until(lambda: whole(members))
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
            for each in members:
                await each.stop()
        check(log, restarts)
        if static:
            # Each member was replaced by one that was told of its own partitions only, and of
            # their end when it was stopped.
            assert all(each.told == ["assigned", "revoked"] for each in members)

    with Broker(SETTINGS) as broker:

        async def main() -> None:
            async with asyncio.timeout(patient(LIMIT_S * count / 6)):
                await case(broker)

        asyncio.run(main())


def check(log: DeliveryLog, restarts: list[Restart]) -> None:
    begin, end = restarts[0].began, restarts[-1].ended
    shortest = min(each.lasted for each in restarts)
    for partition in range(log.partitions):
        # A partition of a dynamic member may never be owned by the member that is restarted.
        own = (each.lasted for each in restarts if partition in each.own)
        limit = max(own, default=shortest)
        pause = log.pause(partition, begin, end)
        assert pause <= limit, (
            f"partition {partition} paused for {pause} rounds, the restart of its member lasted "
            f"{limit}"
        )
        assert log.offsets[partition] == list(range(len(log.offsets[partition]))), (
            f"partition {partition} was not read once and in order"
        )
