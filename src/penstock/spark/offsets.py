"""Converts offsets to and from Spark's format, and plans micro-batches. Pure.

Spark stores a source's offsets in its checkpoint as JSON, `{"topic": {"0": 17, "1": 4}}`: for each
partition, the next offset to read. This is the format of Spark's own Kafka source, so documentation
of that source applies here, too.

A micro-batch is the range between two such maps. `advance` decides how far it goes: every partition
advances in proportion to what is waiting in it, so a limit slows down all partitions and starves
none. A batch is read as a list of `Span`s, one per Spark task; `split` cuts long spans until there
are as many as requested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from penstock.client.errors import OptionError
from penstock.topic_partition import TopicPartition

Offsets = dict[TopicPartition, int]
SparkOffsets = dict[str, dict[str, int]]

EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    lenient: bool = False
    """Whether records that were deleted are left out. Otherwise `failOnDataLoss` decides."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def to_spark(offsets: Mapping[TopicPartition, int]) -> SparkOffsets:
    """Sorts the offsets, because Spark compares them as text."""
    found: SparkOffsets = {}
    for topic_partition in sorted(offsets):
        found.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[
            topic_partition
        ]
    return found


def from_spark(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def parse_partition_numbers(text: str, option: str) -> Offsets:
    """Parses an option of the form `{"topic": {"0": 23, "1": -2}}`, or raises `OptionError`."""
    shape = f'{option} must look like {{"topic": {{"0": 23, "1": -2}}}}'
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{shape}, but is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise OptionError(f"{shape}, but is {text}")
    found: Offsets = {}
    for topic, partitions in given.items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{shape}; topic {topic} has {json.dumps(partitions)}")
        for partition, number in partitions.items():
            if not partition.isdecimal() or type(number) is not int:
                raise OptionError(f"{shape}; topic {topic} has {json.dumps({partition: number})}")
            found[TopicPartition(topic, int(partition))] = number
    return found


def advance(
    start: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    record_bytes: Mapping[TopicPartition, float] | None = None,
) -> Offsets:
    """Returns where the next batch ends: at the latest offsets, or earlier because of the limits.

    A limit is divided among partitions in proportion to the records waiting in each. Each of them
    advances by at least one record, so that the smallest advance, too. Partitions that are not in
    `latest` any more keep their offset. `record_bytes` has the average size of records, to convert
    `bytes_max` to a number of records.
    """
    waiting = {
        topic_partition: max(0, end - start.get(topic_partition, end))
        for topic_partition, end in latest.items()
    }
    fraction = 1.0
    total = sum(waiting.values())
    if records_max is not None and total > records_max:
        fraction = records_max / total
    if bytes_max is not None:
        sizes = record_bytes or {}
        total_bytes = sum(
            count * sizes.get(topic_partition, 0.0) for topic_partition, count in waiting.items()
        )
        if total_bytes > bytes_max:
            fraction = min(fraction, bytes_max / total_bytes)
    ends = dict(start)
    for topic_partition, count in waiting.items():
        begin = latest[topic_partition] - count
        # At least one, or many small partitions would not advance at all; never past the end.
        allowed = count if fraction >= 1.0 else min(count, max(1, int(count * fraction)))
        ends[topic_partition] = begin + (allowed if count else 0)
        if topic_partition in start:
            ends[topic_partition] = max(ends[topic_partition], start[topic_partition])
    return ends


def waiting(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Returns the number of offsets between the two."""
    return sum(
        max(0, end - start.get(topic_partition, end)) for topic_partition, end in latest.items()
    )


def spans(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Span]:
    """Returns the ranges between the two, by partition, without empty ones."""
    return [
        Span(
            topic_partition.topic,
            topic_partition.partition,
            start[topic_partition],
            end[topic_partition],
        )
        for topic_partition in sorted(end)
        if topic_partition in start and end[topic_partition] > start[topic_partition]
    ]


def split(
    whole: Sequence[Span], *, pieces_min: int | None = None, records_max: int | None = None
) -> list[Span]:
    """Cuts the spans into at least `pieces_min` pieces, none longer than `records_max`.

    The number of pieces of a span is in proportion to its size, so that tasks take about the same
    time. If there are fewer records than `pieces_min`, there is one piece per record.
    """
    counts = [1] * len(whole)
    if records_max is not None:
        counts = [-(-span.size // records_max) for span in whole]
    total = sum(span.size for span in whole)
    if pieces_min is not None and sum(counts) < pieces_min and total:
        counts = [
            max(count, min(span.size, round(span.size / total * pieces_min)), 1)
            for span, count in zip(whole, counts, strict=True)
        ]
        # After rounding there may be too few pieces: the longest pieces are cut once more.
        while sum(counts) < min(pieces_min, total):
            longest = max(
                (index for index, span in enumerate(whole) if counts[index] < span.size),
                key=lambda index: whole[index].size / counts[index],
            )
            counts[longest] += 1
    return [piece for span, count in zip(whole, counts, strict=True) for piece in _cut(span, count)]


def _cut(span: Span, count: int) -> Iterable[Span]:
    edges = [span.start + span.size * index // count for index in range(count + 1)]
    for begin, end in pairwise(edges):
        yield replace(span, start=begin, end=end)
