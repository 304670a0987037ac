"""An in-memory consumer: logs to poll from, rebalances on demand, commits to inspect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.client.options import ConsumerOptions
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

Text = Record[str, str]
LIMIT_S = 50.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(LIMIT_S)):
        while not holds():  # noqa: ASYNC110 - no single event to await
            await asyncio.sleep(0.001)


class FakeConsumer:
    deserializes = False

    def __init__(self, logs: Mapping[TopicPartition, list[Text]], group: str | None = "g") -> None:
        self.logs = logs
        keywords: dict[str, Any] = {"max_poll_records": 7}
        if group is not None:
            keywords["group_id"] = group
        self.options = ConsumerOptions.parse("localhost:9092", keywords)
        self.env: ClientEnv = default_environment()
        self.positions = dict.fromkeys(logs, 0)
        self.assigned = set(logs)
        self.commits: list[dict[TopicPartition, int]] = []
        self.committed: dict[TopicPartition, int] = {}
        self.refuse_commits: list[ClientError] = []
        self.listeners: list[Any] = []
        self.news: list[tuple[str, list[TopicPartition]]] = []
        self.own_pauses: set[TopicPartition] = set()
        self.held = 0
        self.returned_max = 0
        self.polls = 0
        self._woken = asyncio.Event()

    # -- what processing uses -------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Text]:
        assert self.held == 1
        self.polls += 1
        await self._tell()
        found = self._take(max_records or 500)
        if not found and timeout_ms:
            try:
                async with asyncio.timeout(min(timeout_ms, 5) / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            found = self._take(max_records or 500)
        return found

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        assert offsets is not None
        await asyncio.sleep(0)
        if self.refuse_commits:
            raise self.refuse_commits.pop(0)
        assert offsets.keys() <= self.assigned
        self.commits.append(dict(offsets))
        self.committed.update(offsets)

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.assigned)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        assert topic_partition in self.assigned
        self.positions[topic_partition] = offset

    def pause(self, *topic_partitions: TopicPartition) -> None:
        self.own_pauses.update(topic_partitions)

    def resume(self, *topic_partitions: TopicPartition) -> None:
        self.own_pauses.difference_update(topic_partitions)
        self._woken.set()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self.own_pauses)

    def wakeup(self) -> None:
        self._woken.set()

    def hold_auto_commit(self) -> None:
        self.held += 1

    def release_auto_commit(self) -> None:
        self.held -= 1

    def add_listener(self, listener: object) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: object) -> None:
        self.listeners.remove(listener)

    # -- what tests do to it --------------------------------------------------------------------

    def rebalance(self, kind: str, *topic_partitions: TopicPartition) -> None:
        """Reports these partitions as "assigned", "revoked" or "lost" in the next poll."""
        self.news.append((kind, list(topic_partitions)))
        self._woken.set()

    async def _tell(self) -> None:
        for kind, topic_partitions in self.news:
            if kind == "assigned":
                self.assigned.update(topic_partitions)
                for topic_partition in topic_partitions:
                    self.positions[topic_partition] = self.committed.get(topic_partition, 0)
            for listener in self.listeners:
                method = getattr(listener, f"on_{kind}", None)
                result = method(topic_partitions) if method is not None else None
                if result is not None:
                    await result
            if kind != "assigned":
                self.assigned.difference_update(topic_partitions)
                self.own_pauses.difference_update(topic_partitions)
        self.news.clear()

    def _take(self, most: int) -> list[Text]:
        found: list[Text] = []
        for topic_partition in sorted(self.assigned - self.own_pauses):
            log = self.logs[topic_partition]
            start = self.positions[topic_partition]
            some = [record for record in log if record.offset >= start][: most - len(found)]
            if some:
                self.positions[topic_partition] = some[-1].offset + 1
            found += some
        self.returned_max = max(self.returned_max, len(found))
        return found


class BlockingFakeConsumer:
    """The same consumer for the sync loops, as long as there are records to poll."""

    def __init__(self, inner: FakeConsumer) -> None:
        self.inner = inner
        self.options, self.env = inner.options, inner.env
        self.assignment, self.seek = inner.assignment, inner.seek
        self.hold_auto_commit = inner.hold_auto_commit
        self.release_auto_commit = inner.release_auto_commit

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Text]:
        return asyncio.run(self.inner.poll(timeout_ms, max_records))

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        asyncio.run(self.inner.commit(offsets))


def log_of(
    topic_partition: TopicPartition, count: int, keys: Collection[str] = ("k",)
) -> list[Text]:
    names = sorted(keys)
    return [
        Record(
            topic_partition.topic,
            topic_partition.partition,
            n,
            1000 + n,
            names[n % len(names)],
            f"{topic_partition}:{n}",
        )
        for n in range(count)
    ]
