"""Where a stream is: the offsets of its live reading, and the backfill that it does beside. Pure.

A backfill reads ranges of older offsets in the same micro-batches as the new records. The position
of both is in one offset of Spark's checkpoint, so a record of a backfill is exactly once in the
result for the same reason as any other record.

A position has the offsets that are read next, and one more entry, under a name that no topic can
have. Of that entry only `topics` is always there:

    {"topic": {"0": 17}, "(penstock)": {"needs a newer Penstock": {
        "topics": {"topic": "Rb5yN2JtQ..."},       the ids of the topics
        "began": {"topic": {"0": 9}},              where the stream began, if not at the log start
        "read": {"topic": {"0": [[0, 4]]}},        ranges of earlier backfills
        "backfill": {"id": 7, "ranges": {"topic": {"0": [[4, 9]]}}, "done": {"topic": {"0": 2}},
                     ...}}}}

The ids tell whether a topic was deleted and created again while no query ran: its offsets then
belong to other records. A version of Penstock that does not know this entry refuses the checkpoint,
with its text. A checkpoint without it, `{"topic": {"0": 17}}`, was written by an older version.

`done` counts the offsets of the ranges in their order. A backfill that has ended stays in the
position until the next one begins; `begin` then moves its ranges to `read`. So of two successive
positions with different backfills, the backfill of the first has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.spark.offset_ranges import (
    Range,
    Ranges,
    before,
    cut,
    from_json,
    joined,
    size,
    to_json,
)
from penstock.spark.offset_ranges import without as less
from penstock.spark.offsets import Offsets, Span, SparkOffsets, advance, from_spark, to_spark
from penstock.topic_partition import TopicPartition

OWN: Final = "(penstock)"
_NEEDS: Final = "needs a newer Penstock"


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """What a backfill is to read. `ranges` are `{"topic": {"0": [[3, 9]]}}`."""

    id: int
    flow: str
    ranges: dict[str, dict[str, list[list[int]]]]
    sources: list[str] = field(default_factory=list)
    """The values of the option `flow` in the sources that read it: the flow itself, or views."""
    again: bool = False
    """Whether offsets are read that the stream has read before."""
    bytes_max: int = 64 << 20
    """How much it reads in a micro-batch."""
    cancelled: bool = False
    from_ms: int = 0
    to_ms: int = 0
    requested_ms: int = 0
    requested_by: str = ""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill that was begun."""

    id: int
    ranges: Ranges
    done: Offsets = field(default_factory=dict)
    """How many offsets of its ranges are behind it, by partition."""
    bytes_max: int = 64 << 20
    asked: int = 0
    """How many offsets it had when it began. A backfill that is cancelled keeps what it read."""
    lost: int = 0
    """Offsets that were deleted before they were read."""
    cancelled: bool = False

    @property
    def sizes(self) -> Offsets:
        return {each: size(ranges) for each, ranges in self.ranges.items()}

    @property
    def count(self) -> int:
        return sum(self.done.values())

    @property
    def has_ended(self) -> bool:
        return all(self.done.get(each, 0) >= count for each, count in self.sizes.items())

    def passed(self, topic_partition: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Returns the ranges of a partition that are behind it."""
        done = self.done.get(topic_partition, 0)
        return cut(self.ranges[topic_partition], 0, done)


@dataclass(frozen=True, slots=True)
class Position:
    """What Spark's checkpoint contains for a source."""

    live: Offsets
    began: Offsets = field(default_factory=dict)
    """Where the stream itself began. Empty: at the start of the log, or unknown."""
    read: Ranges = field(default_factory=dict)
    """What earlier backfills have read."""
    backfill: Backfill | None = None
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics. Empty in checkpoints of older versions of Penstock."""


# -- the checkpoint -------------------------------------------------------------------------------


def position_to_spark(position: Position) -> dict[str, Any]:
    found: dict[str, Any] = {**to_spark(position.live)}
    own: dict[str, Any] = {}
    if position.topics:
        own["topics"] = {**position.topics}
    if position.began:
        own["began"] = to_spark(position.began)
    if position.read:
        own["read"] = to_json(position.read)
    if position.backfill is not None:
        own["backfill"] = _backfill_to_json(position.backfill)
    if own:
        found[OWN] = {_NEEDS: own}
    return found


def position_from_spark(given: Mapping[str, Any]) -> Position:
    own = (given.get(OWN) or {}).get(_NEEDS) or {}
    found = own.get("backfill")
    return Position(
        from_spark({topic: offsets for topic, offsets in given.items() if topic != OWN}),
        from_spark(own.get("began") or {}),
        from_json(own.get("read") or {}),
        None if found is None else _backfill_from_json(found),
        own.get("topics") or {},
    )


def _backfill_to_json(backfill: Backfill) -> dict[str, Any]:
    return {
        "id": backfill.id,
        "ranges": to_json(backfill.ranges),
        "done": to_spark(backfill.done),
        "bytes_max": backfill.bytes_max,
        "asked": backfill.asked,
        "lost": backfill.lost,
        "cancelled": backfill.cancelled,
    }


def _backfill_from_json(given: Mapping[str, Any]) -> Backfill:
    done: SparkOffsets = given["done"]
    return Backfill(
        int(given["id"]),
        from_json(given["ranges"]),
        from_spark(done),
        int(given["bytes_max"]),
        int(given["asked"]),
        int(given["lost"]),
        bool(given["cancelled"]),
    )


# -- changes --------------------------------------------------------------------------------------


def clipped(
    asked: Mapping[TopicPartition, Sequence[Range]], position: Position, *, again: bool
) -> Ranges:
    """Returns the offsets that a backfill may read: none that the stream reads itself, and unless
    `again`, none that it or a backfill has read before."""
    found: Ranges = {}
    read = read_ranges(position)
    for topic_partition, ranges in asked.items():
        at = position.live.get(topic_partition, 0)
        if again:
            left = before(ranges, at)
        else:
            limit = min(at, position.began.get(topic_partition, 0))
            left = less(before(ranges, limit), read.get(topic_partition, ()))
        if left:
            found[topic_partition] = left
    return found


def read_ranges(position: Position) -> Ranges:
    """Returns what backfills have read, the current one included."""
    read = dict(position.read)
    if position.backfill is not None:
        for each in position.backfill.ranges:
            passed = joined((*read.get(each, ()), *position.backfill.passed(each)))
            if passed:
                read[each] = passed
    return read


def begin(position: Position, request: BackfillRequest) -> Position:
    """Returns the position with a new backfill, of which nothing is read yet."""
    assert position.backfill is None or position.backfill.has_ended
    mine = {
        each: ranges for each, ranges in from_json(request.ranges).items() if each in position.live
    }
    ranges = clipped(mine, position, again=request.again)
    asked = sum(map(size, ranges.values()))
    backfill = Backfill(request.id, ranges, {}, request.bytes_max, asked)
    return replace(position, read=read_ranges(position), backfill=backfill)


def follow(position: Position, requests: Iterable[BackfillRequest]) -> Position:
    """Applies requests: ends a backfill that was cancelled, or begins the next one. The request of
    a backfill that was begun before is ignored, whether or not that one was completed."""
    ordered = sorted(requests, key=lambda request: request.id)
    current = position.backfill
    if current is not None:
        if any(each.id == current.id and each.cancelled for each in ordered):
            current = cancelled(current)
            position = replace(position, backfill=current)
        if not current.has_ended:
            return position
    last = 0 if current is None else current.id
    mine = {each.topic for each in position.live}
    for request in ordered:
        if request.id > last and not request.cancelled and mine & set(request.ranges):
            return begin(position, request)
    return position


def cancelled(backfill: Backfill) -> Backfill:
    """Returns the backfill, ended where it is."""
    if backfill.has_ended:
        return backfill
    return replace(backfill, ranges=_passed(backfill, backfill.ranges), cancelled=True)


def _passed(backfill: Backfill, topic_partitions: Iterable[TopicPartition]) -> Ranges:
    found = {each: backfill.passed(each) for each in topic_partitions}
    return {each: ranges for each, ranges in found.items() if ranges}


def forget(position: Position, gone: Collection[TopicPartition]) -> Position:
    """Returns the position after logs were deleted or created again: nothing is known of them."""
    backfill = position.backfill
    if not gone:
        return position
    if backfill is not None:
        lost = sum(
            size(ranges) - backfill.done.get(each, 0)
            for each, ranges in backfill.ranges.items()
            if each in gone
        )
        backfill = replace(
            backfill,
            ranges={each: found for each, found in backfill.ranges.items() if each not in gone},
            done={each: done for each, done in backfill.done.items() if each not in gone},
            lost=backfill.lost + lost,
        )
    return Position(
        {each: offset for each, offset in position.live.items() if each not in gone},
        {each: offset for each, offset in position.began.items() if each not in gone},
        {each: ranges for each, ranges in position.read.items() if each not in gone},
        backfill,
        position.topics,
    )


def skip_deleted(backfill: Backfill, earliest: Mapping[TopicPartition, int]) -> Backfill:
    """Returns the backfill after what lies before the log start offsets."""
    done, lost = dict(backfill.done), backfill.lost
    for each, ranges in backfill.ranges.items():
        deleted = size(before(ranges, earliest.get(each, 0)))
        if deleted > done.get(each, 0):
            lost += deleted - done.get(each, 0)
            done[each] = deleted
    return replace(backfill, done=done, lost=lost)


def advanced(
    backfill: Backfill,
    *,
    records_max: int | None,
    bytes_max: int | None,
    record_bytes: Mapping[TopicPartition, float],
) -> Backfill:
    """Returns the backfill after the next micro-batch. A limit of 0 lets it wait."""
    sizes = backfill.sizes
    if records_max == 0 or bytes_max == 0:
        return backfill
    start = {each: backfill.done.get(each, 0) for each in sizes}
    limit = backfill.bytes_max if bytes_max is None else min(bytes_max, backfill.bytes_max)
    ends = advance(
        start, sizes, records_max=records_max, bytes_max=limit, record_bytes=record_bytes
    )
    return replace(backfill, done={each: count for each, count in ends.items() if count})


def backfill_spans(start: Position, end: Position) -> list[Span]:
    """Returns what the micro-batch between two positions reads for a backfill."""
    backfill = end.backfill
    if backfill is None:
        return []
    same = start.backfill is not None and start.backfill.id == backfill.id
    behind = start.backfill.done if same and start.backfill is not None else {}
    return [
        Span(each.topic, each.partition, first, last, lenient=True)
        for each in sorted(backfill.ranges)
        for first, last in cut(
            backfill.ranges[each], behind.get(each, 0), backfill.done.get(each, 0)
        )
    ]


def live_start(start: Position, end: Position) -> Offsets:
    """Returns from where the micro-batch between two positions reads new records.

    Spark does not keep the offset at which the first batch begins. If the driver ends during that
    batch, Spark asks where a new stream would begin now. The end of the batch knows better.
    """
    if start.began and start.live == start.began:
        return {**start.live, **end.began}
    return start.live
