"""Browses, follows, sends and replays the messages of a topic.

Browsing reads ranges of offsets, forwards or backwards, until enough records match the filter or
the time budget is used up. The answer says how far it got, and the next request continues there. So
a filter that matches nothing takes a few seconds per request.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.consumer import Consumer
from penstock.client.errors import OutsideLog
from penstock.client.model import Record
from penstock.client.producing.deliveries import Delivery
from penstock.console.errors import BadRequest, NotFound
from penstock.console.filters import Candidate, Test
from penstock.console.jobs import Job, Jobs
from penstock.console.link import Link
from penstock.console.shown import Format, show_record
from penstock.topic_partition import TopicPartition

LIMIT_MAX: Final = 500
_CHUNK: Final = 2_000
_BUDGET_S: Final = 4.0
_SILENCE_S: Final = 8.0
"""A read without a deadline ends when no record has arrived for this long."""
_POLL_MS: Final = 250
_TAIL_RECORDS_MAX: Final = 200
"""Of the records of one poll only this many are shown, the last ones: nobody reads more."""

_UNDER_WAY_MAX: Final = 10_000
"""The most records of a replay that may be unacknowledged."""

Bytes = bytes | None
BytesRecord = Record[Bytes, Bytes]
Bounds = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Query:
    """`start` is "newest", "oldest", "offset" or "time". `cursor` continues an earlier answer."""

    partitions: tuple[int, ...] | None
    start: str
    value: int
    limit: int
    test: Test
    filtered: bool
    how: Format
    cursor: Mapping[int, int] | None = None


class Messages:
    def __init__(self, link: Link, jobs: Jobs) -> None:
        self._link = link
        self._jobs = jobs
        self._clock = link.env.clock

    # -- reading --------------------------------------------------------------------------------

    async def browse(self, topic: str, query: Query) -> dict[str, Any]:
        bounds = await self._bounds(topic, query.partitions)
        backwards = query.start == "newest"
        if backwards:
            ends = {part: end for part, (_, end) in bounds.items()}
            found, cursor, scanned = await self._backwards(
                topic, bounds, {**ends, **(query.cursor or {})}, query
            )
        else:
            begin = query.cursor or await self._begin(topic, bounds, query)
            found, cursor, scanned = await self._forwards(topic, bounds, begin, query)
        found.sort(key=lambda each: (each.timestamp, each.partition, each.offset))
        if backwards:
            found.reverse()
        return {
            "records": [show_record(record, query.how) for record in found],
            "cursor": {str(part): at for part, at in cursor.items()},
            "at_end": all(
                at <= bounds[part][0] if backwards else at >= bounds[part][1]
                for part, at in cursor.items()
            ),
            "scanned": scanned,
            "bounds": {str(part): list(each) for part, each in bounds.items()},
        }

    async def one(self, topic: str, partition: int, offset: int, how: Format) -> dict[str, Any]:
        return show_record(await self._record(topic, partition, offset), how)

    async def raw(self, topic: str, partition: int, offset: int) -> bytes:
        """Returns the value's bytes, for a download."""
        return (await self._record(topic, partition, offset)).value or b""

    async def _record(self, topic: str, partition: int, offset: int) -> BytesRecord:
        bounds = await self._bounds(topic, (partition,))
        start, end = bounds[partition]
        if start <= offset < end:
            async with self._link.consumer() as consumer:
                topic_partitions = {TopicPartition(topic, partition): (offset, offset + 1)}
                async for record in self._range(consumer, topic_partitions):
                    return record
        raise NotFound(f"{topic}-{partition} has no record at offset {offset:,}, or it was deleted")

    async def _bounds(self, topic: str, partitions: Sequence[int] | None) -> Bounds:
        admin = await self._link.reading()
        parts = (await admin.describe_topic(topic)).partitions
        led = {part.index for part in parts if part.leader >= 0}
        wanted = led if partitions is None else set(partitions)
        if beyond := [each for each in wanted if each >= len(parts)]:
            raise NotFound(f"{topic} has {len(parts)} partitions, and no partition {beyond[0]}")
        topic_partitions = [TopicPartition(topic, each) for each in sorted(wanted)]
        if not topic_partitions:
            return {}
        starts = await admin.list_offsets(dict.fromkeys(topic_partitions, "earliest"))
        ends = await admin.list_offsets(dict.fromkeys(topic_partitions, "latest"))
        return {
            topic_partition.partition: (start.offset, end.offset)
            for topic_partition in topic_partitions
            if (start := starts[topic_partition]) is not None
            and (end := ends[topic_partition]) is not None
        }

    async def _begin(self, topic: str, bounds: Bounds, query: Query) -> dict[int, int]:
        match query.start:
            case "oldest":
                return {part: start for part, (start, _) in bounds.items()}
            case "offset":
                return {
                    part: min(max(query.value, start), end) for part, (start, end) in bounds.items()
                }
            case "time":
                admin = await self._link.reading()
                topic_partitions = [TopicPartition(topic, part) for part in bounds]
                found = await admin.list_offsets(dict.fromkeys(topic_partitions, query.value))
                return {
                    topic_partition.partition: bounds[topic_partition.partition][1]
                    if at is None
                    else at.offset
                    for topic_partition, at in found.items()
                }
        raise BadRequest(f"start must be newest, oldest, offset or time, not {query.start!r}")

    async def _forwards(
        self, topic: str, bounds: Bounds, begin: Mapping[int, int], query: Query
    ) -> tuple[list[BytesRecord], dict[int, int], int]:
        cursor = {part: begin[part] for part in bounds if part in begin}
        topic_partitions = {
            TopicPartition(topic, part): (at, bounds[part][1])
            for part, at in cursor.items()
            if at < bounds[part][1]
        }
        found: list[BytesRecord] = []
        scanned = 0
        deadline = self._clock.monotonic() + _BUDGET_S
        if topic_partitions:
            async with self._link.consumer() as consumer:
                async for record in self._range(consumer, topic_partitions, deadline):
                    scanned += 1
                    cursor[record.partition] = record.offset + 1
                    if query.test(_candidate(record)):
                        found.append(record)
                        if len(found) >= query.limit:
                            return found, cursor, scanned
                for topic_partition, (_, high) in topic_partitions.items():
                    at = consumer.known_position(topic_partition)
                    cursor[topic_partition.partition] = min(
                        high, max(at or 0, cursor[topic_partition.partition])
                    )
        return found, cursor, scanned

    async def _backwards(
        self, topic: str, bounds: Bounds, ends: Mapping[int, int], query: Query
    ) -> tuple[list[BytesRecord], dict[int, int], int]:
        """Returns the newest matching records, the next page's cursor, and how many were read.

        Each round reads the chunk before the last one of every partition. In the end the newest
        `limit` records of all partitions are shown, and the cursor of a partition goes back only
        to its oldest record that was shown.

        A chunk is read from its oldest record on. If it was not read completely, its newest records
        are missing, so none of it is kept and the next page reads it again.
        """
        cursor = {part: min(ends[part], end) for part, (_, end) in bounds.items()}
        low = dict(cursor)
        kept: list[BytesRecord] = []
        scanned = 0
        deadline = self._clock.monotonic() + _BUDGET_S
        size = _CHUNK if query.filtered else query.limit
        async with self._link.consumer() as consumer:
            while len(kept) < query.limit and self._clock.monotonic() < deadline:
                topic_partitions = {
                    TopicPartition(topic, part): (max(bounds[part][0], at - size), at)
                    for part, at in low.items()
                    if at > bounds[part][0]
                }
                if not topic_partitions:
                    break
                passed: list[BytesRecord] = []
                async for record in self._range(consumer, topic_partitions):
                    scanned += 1
                    if query.test(_candidate(record)):
                        passed.append(record)
                whole = {
                    topic_partition.partition: at
                    for topic_partition, (at, high) in topic_partitions.items()
                    if (consumer.known_position(topic_partition) or 0) >= high
                }
                kept += [record for record in passed if record.partition in whole]
                low.update(whole)
                if len(whole) < len(topic_partitions):
                    break
        kept.sort(key=lambda each: (each.timestamp, each.partition, each.offset), reverse=True)
        shown, left = kept[: query.limit], kept[query.limit :]
        for record in left:
            # Records that were read but not shown are read again for the next page.
            low[record.partition] = max(low[record.partition], record.offset + 1)
        return shown, low, scanned

    async def _range(
        self,
        consumer: Consumer[Bytes, Bytes],
        topic_partitions: Mapping[TopicPartition, tuple[int, int]],
        deadline: float | None = None,
    ) -> AsyncIterator[BytesRecord]:
        """Yields the records of these ranges, until the deadline.

        Without a deadline, ends when no record has arrived for `_SILENCE_S`.
        """
        end = deadline or self._clock.monotonic() + _SILENCE_S
        consumer.assign(topic_partitions)
        for topic_partition, (low, _) in topic_partitions.items():
            consumer.seek(topic_partition, low)
        while self._clock.monotonic() < end:
            left = [
                topic_partition
                for topic_partition, (_, high) in topic_partitions.items()
                if (consumer.known_position(topic_partition) or 0) < high
            ]
            if not left:
                return
            try:
                records = await consumer.poll(_POLL_MS)
            except OutsideLog:
                return  # retention deleted the records: the next request finds the new bounds
            for record in records:
                if record.offset < topic_partitions[record.topic_partition][1]:
                    if deadline is None:
                        end = self._clock.monotonic() + _SILENCE_S
                    yield record

    async def follow(
        self, topic: str, partitions: Sequence[int] | None, test: Test, how: Format
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields the records that are written from now on, until the caller stops."""
        bounds = await self._bounds(topic, partitions)
        async with self._link.consumer() as consumer:
            consumer.assign([TopicPartition(topic, part) for part in bounds])
            for part, (_, end) in bounds.items():
                consumer.seek(TopicPartition(topic, part), end)
            yield {"records": [], "skipped": 0}
            while True:
                records = await consumer.poll(1_000)
                passed = [record for record in records if test(_candidate(record))]
                yield {
                    "records": [show_record(each, how) for each in passed[-_TAIL_RECORDS_MAX:]],
                    "skipped": max(0, len(passed) - _TAIL_RECORDS_MAX),
                }

    # -- changing -------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        key: Bytes,
        value: Bytes,
        headers: Sequence[tuple[str, bytes]],
        partition: int | None,
    ) -> dict[str, Any]:
        producer = self._link.producer(f"produce to {topic}")
        async with producer:
            delivery = await producer.send(
                topic, value, key=key, headers=headers, partition=partition
            )
            sent = await delivery
        return {"partition": sent.partition, "offset": sent.offset, "timestamp": sent.timestamp}

    async def replay(
        self,
        topic: str,
        target: str,
        ranges: Mapping[int, tuple[int, int]],
        test: Test,
        *,
        keep_partitions: bool,
    ) -> dict[str, Any]:
        """Sends the records of these ranges to another topic, with keys, headers and timestamps."""
        if topic == target:
            raise BadRequest(
                "a replay of a topic into itself would never end: choose another topic"
            )
        self._link.allow(f"replay {topic} {dict(ranges)} to {target}")
        bounds = await self._bounds(topic, tuple(ranges))
        admin = await self._link.reading()
        targets = len((await admin.describe_topic(target)).partitions)
        if keep_partitions and max(ranges, default=0) >= targets:
            raise BadRequest(
                f"{target} has {targets} partitions, but the replay keeps partition "
                f'{max(ranges)}: add partitions to {target}, or turn "keep partitions" off'
            )
        topic_partitions = {
            TopicPartition(topic, part): (max(low, bounds[part][0]), min(high, bounds[part][1]))
            for part, (low, high) in ranges.items()
        }

        async def work(job: Job) -> str:
            job.total = sum(max(0, high - low) for low, high in topic_partitions.values())
            sent = await self._send_range(job, topic_partitions, target, test, keep_partitions)
            job.done = job.total
            return f"{sent:,} records sent to {target}"

        return self._jobs.begin(f"replay {topic} to {target}", work).as_dict()

    async def _send_range(
        self,
        job: Job,
        topic_partitions: Mapping[TopicPartition, tuple[int, int]],
        target: str,
        test: Test,
        keep_partitions: bool,
    ) -> int:
        sent = 0
        deliveries: deque[Delivery] = deque()
        producer = self._link.producer(f"replay to {target}")
        forever = self._clock.monotonic() + 86_400
        async with self._link.consumer(committed_only=True) as consumer, producer:
            async for record in self._range(consumer, topic_partitions, forever):
                job.advance(1)
                if test(_candidate(record)):
                    delivery = await producer.send(
                        target,
                        record.value,
                        key=record.key,
                        headers=record.headers,
                        partition=record.partition if keep_partitions else None,
                        timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
                    )
                    sent += 1
                    deliveries.append(delivery)
                    if len(deliveries) > _UNDER_WAY_MAX:
                        await deliveries.popleft()
            await producer.flush()
            for delivery in deliveries:
                await delivery
        return sent


def _candidate(record: BytesRecord) -> Candidate:
    return Candidate(
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


def typed_bytes(text: str | None, encoding: str) -> Bytes:
    """Returns what a user typed as bytes. None stays None, which is a tombstone."""
    if text is None:
        return None
    match encoding:
        case "text":
            return text.encode("utf-8")
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError as error:
                raise BadRequest("this is not hex: write pairs of 0 to 9 and a to f") from error
        case "base64":
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadRequest("this is not base64: choose another encoding") from error
    raise BadRequest(f"the encoding must be text, hex or base64, not {encoding!r}")
