"""Reads the last records of topics, as the rows of a preview."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.client.blocking.consumer import Consumer
from penstock.ports import Clock
from penstock.testing.pipelines.records import GivenRecord
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 500
_LIMIT_S: Final = 20.0
"""A topic that is read for longer than this is shown with what was read so far."""


class Sample:
    """The last records of topics. Reads them again when there are new ones."""

    def __init__(self, bootstrap: str, rows: int, clock: Clock, **options: Any) -> None:
        self._rows = rows
        self._clock = clock
        self._consumer: Consumer[Any, Any] = Consumer(
            bootstrap, isolation_level="read_committed", **options
        )
        self._ends: dict[TopicPartition, int] = {}
        self.records: dict[str, list[GivenRecord]] = {}

    def start(self) -> None:
        self._consumer.start()

    def close(self) -> None:
        self._consumer.close()

    def partitions(self) -> Mapping[str, int]:
        """Returns the number of partitions of every topic."""
        return self._consumer.topics()

    def refresh(self, topics: Collection[str]) -> bool:
        """Reads the last records of these topics. Returns whether there are new ones."""
        known = self.partitions()
        every = [
            TopicPartition(topic, number)
            for topic in sorted(topics)
            for number in range(known.get(topic, 0))
        ]
        ends = self._consumer.end_offsets(every) if every else {}
        if ends == self._ends:
            return False
        self._ends = ends
        self.records = {topic: [] for topic in topics}
        for record in self._read(ends):
            self.records[record.topic].append(
                GivenRecord(
                    record.value,
                    record.key,
                    record.timestamp,
                    record.partition,
                    tuple((name, data or b"") for name, data in record.headers),
                )
            )
        for topic, found in self.records.items():
            # The order of time, as far as records of several partitions have one.
            found.sort(key=lambda each: (each.timestamp, each.partition))
            self.records[topic] = found[-self._rows :]
        return True

    def _read(self, ends: Mapping[TopicPartition, int]) -> list[Any]:
        first = self._consumer.beginning_offsets(list(ends)) if ends else {}
        left = {each: end for each, end in ends.items() if first[each] < end}
        found: list[Any] = []
        if not left:
            return found
        self._consumer.assign(left)
        for each, end in left.items():
            self._consumer.seek(each, max(first[each], end - self._rows))
        deadline = self._clock.monotonic() + _LIMIT_S
        while left and self._clock.monotonic() < deadline:
            records = self._consumer.poll(_POLL_MS)
            found += [each for each in records if each.offset < ends[each.topic_partition]]
            left = {each: end for each, end in left.items() if self._consumer.position(each) < end}
        return found
