"""The records that a test gives: values in Python's types, with the time that the test chooses.

The topics of a test are lists of records in memory. Offsets count up in each partition, as in a
real topic. No clock is read: a record without a time has the time of the record before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.testing.pipelines.failures import PipelineTestFailed
from penstock.topic_partition import TopicPartition

Time = datetime | str | int
FIRST_TIME_MS: Final = 1_767_225_600_000
"""2026-01-01 00:00:00 UTC: the time of a record for which the test gives none."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """A record of a test. `offset` and `timestamp_ms` are set when it is added to a topic."""

    value: Any
    key: Any = None
    timestamp: Time | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    offset: int = -1
    timestamp_ms: int = -1


def record(
    value: Any,
    *,
    key: Any = None,
    timestamp: Time | None = None,
    partition: int = 0,
    headers: Mapping[str, bytes | str] | None = None,
) -> GivenRecord:
    """Returns a record for `given`, with more than a value.

    A value or key is bytes, text, None, or anything that JSON can hold. A timestamp is a datetime,
    text such as "2026-01-01 10:00:00" (UTC if it names no zone), or milliseconds since 1970.

    Example:
        view = record({"page": "/"}, key="ann", timestamp="2026-01-01 10:00", partition=2)
        print(view.key, view.partition)
        #> ann 2
    """
    pairs = tuple(
        (name, text.encode() if isinstance(text, str) else text)
        for name, text in (headers or {}).items()
    )
    return GivenRecord(value, key, timestamp, partition, pairs)


def as_utc(time: datetime | str) -> datetime:
    """Returns the time with the zone UTC, which is assumed if none is named."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise PipelineTestFailed(
                f"{time!r} is not a time: write it as 2026-01-31 10:00:00"
            ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def to_ms(time: Time) -> int:
    if isinstance(time, int):
        return time
    return (as_utc(time) - _EPOCH) // timedelta(milliseconds=1)


def to_bytes(value: Any, encode: Callable[[Any], bytes] | None = None) -> bytes | None:
    """Returns the bytes of a key or value. `encode` is for objects; without it they become JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value).encode() if encode is None else encode(value)


@dataclass(slots=True)
class Topics:
    """Topic -> its records, in the order in which the test gave them."""

    partitions: dict[str, int]
    """Topic -> number of partitions, of the topics that exist without being given."""
    records: dict[str, list[GivenRecord]] = field(default_factory=dict)

    def add(self, topic: str, rows: Iterable[Any], at: Time | None) -> None:
        known = self.records.setdefault(topic, [])
        for row in rows:
            given = row if isinstance(row, GivenRecord) else GivenRecord(row)
            if given.partition < 0:
                raise PipelineTestFailed(f"partition {given.partition}: use 0 or more")
            time = at if given.timestamp is None else given.timestamp
            if time is None:
                ms = known[-1].timestamp_ms if known else FIRST_TIME_MS
            else:
                ms = to_ms(time)
            offset = sum(one.partition == given.partition for one in known)
            known.append(replace(given, offset=offset, timestamp_ms=ms))

    def names(self) -> list[str]:
        return sorted({*self.partitions, *self.records})

    def topic_partitions(self, topic: str) -> list[TopicPartition]:
        used = max((one.partition + 1 for one in self.records.get(topic, ())), default=1)
        count = max(self.partitions.get(topic, 1), used)
        return [TopicPartition(topic, number) for number in range(count)]

    def of(self, topic_partition: TopicPartition) -> Sequence[GivenRecord]:
        """Returns the records of one partition; the index of each is its offset."""
        return [
            one
            for one in self.records.get(topic_partition.topic, ())
            if one.partition == topic_partition.partition
        ]
