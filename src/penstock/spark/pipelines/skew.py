"""How unevenly the rows of a batch are spread over the partitions of its topics. Pure.

Each topic partition is read by a task of its own, so a batch takes as long as its largest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

ROWS_LEAST: Final = 10
"""A batch with fewer rows per partition says nothing about the topic."""

Offsets = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> offset."""


def skew(spans: Sequence[tuple[Offsets, Offsets]]) -> float | None:
    """Returns the rows of the largest partition, divided by those of the median one. `spans` has
    the first and the last offsets of each source. With several topics, that of the most uneven one
    counts. None if the batch is too small, or no topic has several partitions."""
    found = [
        ratio
        for first, last in spans
        for topic in last
        if (ratio := _ratio(first.get(topic, {}), last[topic])) is not None
    ]
    return max(found, default=None)


def _ratio(first: Mapping[str, int], last: Mapping[str, int]) -> float | None:
    rows = [max(last[each] - first[each], 0) for each in last if each in first]
    if len(rows) < 2 or sum(rows) < ROWS_LEAST * len(rows):
        return None
    return round(max(rows) / max(median(rows), 1), 1)
