"""Group members on a real broker, driven step by step: a `Seat` is a member and its host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from client.open_clusters import cluster_of
from penstock.client.cluster import Cluster
from penstock.client.membership.assignors import RANGE, Assignor
from penstock.client.membership.autocommit import Offsets
from penstock.client.membership.listener import Listener
from penstock.client.membership.member import GroupMember
from penstock.client.membership.settings import MembershipOptions
from penstock.client.model import OffsetAndMetadata
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

WITHIN_S = 75.0
Note = tuple[str, frozenset[int]]


class Seat:
    """The host of a member. It reads nothing; the test sets its positions."""

    def __init__(self, cluster: Cluster, group: str, **options: Any) -> None:
        assignor: Assignor = options.pop("assignor", RANGE)
        given = {"heartbeat_interval_ms": 50, "session_timeout_ms": int(patient(10_000)), **options}
        self.cluster = cluster
        self.positions: dict[TopicPartition, OffsetAndMetadata] = {}
        self.notes: list[Note] = []
        self.commits: list[Offsets] = []
        self.woken = asyncio.Event()
        settings = MembershipOptions(group, assignors=(assignor,), **given)
        self.member = GroupMember(cluster, settings, self)

    # -- the host -------------------------------------------------------------------------------

    def consumed(self) -> Offsets:
        return dict(self.positions)

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        self.positions.update(dict.fromkeys(topic_partitions, OffsetAndMetadata(0)))

    def drop(self, topic_partitions: Collection[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            del self.positions[topic_partition]

    def wake(self) -> None:
        self.woken.set()

    def committed(self, offsets: Offsets) -> None:
        self.commits.append(offsets)

    # -- the user -------------------------------------------------------------------------------

    def subscribe(self, *topics: str, regex: str | None = None) -> None:
        def note(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda topic_partitions: self.notes.append(
                (what, frozenset(topic_partition.partition for topic_partition in topic_partitions))
            )

        listener = Listener(note("assigned"), note("revoked"), note("lost"))
        self.member.subscribe(topics, listener, regex=regex)

    @property
    def owned(self) -> frozenset[int]:
        assert self.member.assignment == self.positions.keys()
        return frozenset(topic_partition.partition for topic_partition in self.member.assignment)

    def read_to(self, offset: int) -> None:
        for topic_partition in self.positions:
            self.positions[topic_partition] = OffsetAndMetadata(offset)


async def until(condition: Callable[[], bool], *seats: Seat, within_s: float = WITHIN_S) -> None:
    """Polls all seats repeatedly until the condition holds."""
    async with asyncio.timeout(patient(within_s)):
        while True:
            for seat in seats:
                await seat.member.poll()
            if condition():
                return
            waits = [asyncio.ensure_future(seat.woken.wait()) for seat in seats]
            await asyncio.wait(waits, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
            for wait, seat in zip(waits, seats, strict=True):
                wait.cancel()
                seat.woken.clear()


def covered(partitions: int, *seats: Seat) -> bool:
    """Returns whether each partition has exactly one owner, each seat owns
    some, and all are stable."""
    owned = sorted(number for seat in seats for number in seat.owned)
    return owned == list(range(partitions)) and all(
        seat.owned and seat.member.is_stable for seat in seats
    )


@asynccontextmanager
async def seats(
    bootstrap: str, group: str, count: int = 1, **options: Any
) -> AsyncIterator[list[Seat]]:
    """Opens members, each with its own connection, and closes them at the end."""
    clusters = [cluster_of(bootstrap, deadline_s=patient(30.0)) for _ in range(count)]
    for cluster in clusters:
        await cluster.__aenter__()
    made = [Seat(cluster, group, **options) for cluster in clusters]
    try:
        yield made
    finally:
        for seat in made:
            await seat.member.close(patient(5.0))
            seat.cluster.close()


def run_case(case: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(patient(120.0)):
            await case

    asyncio.run(main())
