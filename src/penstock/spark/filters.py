"""Applies a query's filters to the spans to read, so that less is read.

Spark passes only conditions that all rows must meet. Each one narrows the read: topics and
partitions to a set, offsets to an interval, times to a lower bound. The brokers convert a lower
bound of time to the offset of the first record at or after it. No wanted record is lost by this,
because all records before that one are older. If the timestamps in a topic are not in order, some
unwanted records are read as well. An upper bound of time is ignored: a later record may be older.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.log_view import LogView
from penstock.spark.offsets import Span
from penstock.spark.options import Bound

_OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_from: int = 0
    offset_to: int = _OFFSET_MAX
    """The first offset that is not wanted any more."""
    from_ms: int | None = None

    def narrowed(self, filters: Iterable[Filter]) -> Wanted:
        wanted = self
        for condition in filters:
            wanted = wanted._with(condition)
        return wanted

    def _with(self, condition: Filter) -> Wanted:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        value: Any = getattr(condition, "value", None)
        if len(attribute) != 1 or value is None:
            return self
        name = attribute[0].lower()
        if name in ("topic", "partition") and isinstance(condition, EqualTo | In):
            values = value if isinstance(condition, In) else (value,)
            if name == "topic":
                return replace(self, topics=_both(self.topics, values))
            return replace(self, partitions=_both(self.partitions, values))
        if name == "offset":
            return self._with_offset(condition, value)
        later = EqualTo | GreaterThan | GreaterThanOrEqual
        if name == "timestamp" and isinstance(condition, later) and isinstance(value, datetime):
            since_ms = _milliseconds(value)
            # Negative times have a special meaning for brokers, and all records are at or after 0.
            return replace(self, from_ms=max(self.from_ms or 0, since_ms)) if since_ms > 0 else self
        return self

    def _with_offset(self, condition: Filter, value: int) -> Wanted:
        match condition:
            case EqualTo():
                return self._offsets(value, value + 1)
            case GreaterThan():
                return self._offsets(value + 1, _OFFSET_MAX)
            case GreaterThanOrEqual():
                return self._offsets(value, _OFFSET_MAX)
            case LessThan():
                return self._offsets(0, value)
            case LessThanOrEqual():
                return self._offsets(0, value + 1)
        return self

    def _offsets(self, begin: int, end: int) -> Wanted:
        return replace(
            self,
            offset_from=max(self.offset_from, begin),
            offset_to=min(self.offset_to, end),
        )


def narrow(whole: Sequence[Span], wanted: Wanted, view: LogView) -> list[Span]:
    """Returns the spans, reduced to what is wanted."""
    left = [
        replace(
            span,
            start=max(span.start, wanted.offset_from),
            end=min(span.end, wanted.offset_to),
        )
        for span in whole
        if (wanted.topics is None or span.topic in wanted.topics)
        and (wanted.partitions is None or span.partition in wanted.partitions)
    ]
    left = [span for span in left if span.size > 0]
    if wanted.from_ms is None or not left:
        return left
    bound = Bound("timestamp", timestamp_ms=wanted.from_ms)
    firsts = view.resolve(bound, [span.topic_partition for span in left], starting=False)
    left = [replace(span, start=max(span.start, firsts[span.topic_partition])) for span in left]
    return [span for span in left if span.size > 0]


def _both(known: frozenset[Any] | None, given: Iterable[Any]) -> frozenset[Any]:
    return frozenset(given) if known is None else known & frozenset(given)


def _milliseconds(when: datetime) -> int:
    """Converts a time to milliseconds. Spark passes times in the session's time zone; a time
    without one is in the time zone of this process."""
    if when.tzinfo is None:
        when = when.astimezone(UTC)
    return int(when.timestamp() * 1000)
