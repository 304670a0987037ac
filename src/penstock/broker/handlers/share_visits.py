"""The order in which a share fetch reads its partitions, and how many records each may give.

The partitions of a topic with `penstock.priority.levels` are read together, those of the highest
level first, and each level gives as many records as `shares.priorities` allows. Partitions of other
topics are read in the order of the session, without such a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from penstock.broker.context import RequestContext
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.handlers.share_requests import led_partition
from penstock.shares.priorities import PriorityTurns, level_of, waiting_records
from penstock.shares.sessions import SharedPartition


class Visit(NamedTuple):
    partition: SharedPartition
    records_max: int | None = None
    """0: the partition is only loaded, and waited for."""


class Limited(Protocol):
    """The fetch that makes the visits. It counts down what is left after each of them."""

    records_left: int


def visits(
    context: RequestContext,
    group_id: str,
    partitions: tuple[SharedPartition, ...],
    reading: Limited,
) -> Iterator[Visit]:
    levels: dict[bytes, int] = {}
    elsewhere: set[SharedPartition] = set()
    for partition in partitions:
        topic_id = partition.topic_id
        is_first = topic_id not in levels
        if is_first:
            found = _levels(context, partition)
            if found is None:
                elsewhere.add(partition)
            else:
                levels[topic_id] = found
        if not levels.get(topic_id):
            yield Visit(partition)
        elif is_first:
            of_topic = [
                each for each in partitions if each.topic_id == topic_id and each not in elsewhere
            ]
            turns = context.services.shares.turns(group_id, topic_id, levels[topic_id])
            count = partial(_count, context, group_id)
            yield from _by_level(turns, of_topic, reading, count)


def with_same_topic(
    context: RequestContext, partitions: tuple[SharedPartition, ...], woken: SharedPartition
) -> tuple[SharedPartition, ...]:
    """Returns what to read when one partition may have records: its whole topic if it has levels,
    because a partition with a higher priority may have some by now."""
    if not _levels(context, woken):
        return (woken,)
    return tuple(each for each in partitions if each.topic_id == woken.topic_id)


def _by_level(
    turns: PriorityTurns,
    partitions: Iterable[SharedPartition],
    reading: Limited,
    count: Callable[[SharedPartition], int],
) -> Iterator[Visit]:
    waiting: dict[int, int] = {}
    rest: dict[int, list[SharedPartition]] = {}
    for each in partitions:
        level = level_of(each.partition, turns.levels)
        waiting[level] = waiting.get(level, 0) + count(each)
        rest.setdefault(level, []).append(each)
    for level, allowed in turns.plan(waiting, reading.records_left):
        taken = 0
        while taken < allowed and rest[level]:
            left = reading.records_left
            yield Visit(rest[level].pop(0), allowed - taken)
            turns.charge(level, left - reading.records_left)
            taken += left - reading.records_left
    for level in sorted(rest, reverse=True):
        yield from (Visit(each, 0) for each in rest[level])


def _levels(context: RequestContext, partition: SharedPartition) -> int | None:
    """Returns the number of levels of a topic, 0 if it has none. None if the partition is not on
    this broker: then it is unknown."""
    services = context.services
    topic = services.image.topic_by_id(partition.topic_id)
    hosted = None if topic is None else services.replicas.get(topic.name, partition.partition)
    return None if hosted is None else hosted.settings.penstock_priority_levels


def _count(context: RequestContext, group_id: str, partition: SharedPartition) -> int:
    """Returns how many records could be acquired now. A partition with an error has none: the visit
    reports the error."""
    try:
        led = led_partition(context, partition)
        if not led.use(group_id):
            return 0
        upper = led.upper_offset(group_id)
        return waiting_records(led.partition(group_id), upper, led.now())
    except EXPECTED_ERRORS:
        return 0
