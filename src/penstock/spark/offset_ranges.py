"""Arithmetic with ranges of offsets in partitions. Pure.

The ranges of a partition are pairs [start, end), sorted, none empty, and none touches another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.topic_partition import TopicPartition

Range = tuple[int, int]
Ranges = dict[TopicPartition, tuple[Range, ...]]


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Returns the same offsets in the form that the module describes."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return tuple(found)


def before(ranges: Iterable[Range], limit: int) -> tuple[Range, ...]:
    """Returns the offsets below `limit`."""
    return joined((start, min(end, limit)) for start, end in ranges)


def without(ranges: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """Returns the offsets of `ranges` that are not in `others`."""
    left = list(ranges)
    for start, end in others:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, start)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return joined(left)


def size(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def cut(ranges: Iterable[Range], first: int, last: int) -> tuple[Range, ...]:
    """Returns a part of the ranges: of all their offsets in order, those from number `first` up to
    but not including number `last`."""
    found: list[Range] = []
    passed = 0
    for start, end in ranges:
        begin = start + max(0, first - passed)
        until = start + min(end - start, last - passed)
        if begin < until:
            found.append((begin, until))
        passed += end - start
    return tuple(found)


def to_json(ranges: Mapping[TopicPartition, Iterable[Range]]) -> dict[str, Any]:
    """Returns `{"topic": {"0": [[3, 9]]}}`, sorted, because Spark compares offsets as text."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for topic_partition in sorted(ranges):
        found.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = [
            list(each) for each in ranges[topic_partition]
        ]
    return found


def from_json(given: Mapping[str, Mapping[str, Iterable[Iterable[int]]]]) -> Ranges:
    return dict(_from_json(given))


def _from_json(
    given: Mapping[str, Mapping[str, Iterable[Iterable[int]]]],
) -> Iterator[tuple[TopicPartition, tuple[Range, ...]]]:
    for topic, partitions in given.items():
        for partition, pairs in partitions.items():
            ranges = joined((int(start), int(end)) for start, end in pairs)
            if ranges:
                yield TopicPartition(topic, int(partition)), ranges
