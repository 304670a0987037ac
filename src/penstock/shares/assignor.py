"""The assignor `simple` of share groups: which member fetches which partitions. Pure.

With at least as many partitions as members, each partition has one member. With more members, each
member has at least one partition, and each partition has about the same number of members.

If all members have the same topics, all partitions are one pool. Otherwise each topic is a pool of
its own, with the members that have subscribed to it. In a pool of P partitions and M members, every
partition is to have ceil(M / P) members. These P * ceil(M / P) places are divided evenly among the
members, in the order of their ids. A member keeps the partitions that it has, as far as it has
places for them. So an assignment that needs no change is not changed.

A share group needs no more than this: a partition that moves leaves its locks behind, and records
of one partition may be delivered to several members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from penstock.topic_partition import TopicPartition

Assignment = dict[str, frozenset[TopicPartition]]
"""Member id -> its partitions."""


def assign(
    subscriptions: Mapping[str, frozenset[str]],
    partitions_of: Mapping[str, Collection[int]],
    previous: Mapping[str, Collection[TopicPartition]],
) -> Assignment:
    """Returns the partitions of every member.

    `subscriptions` has the topics of each member, `partitions_of` the partitions of each topic that
    can be assigned, and `previous` the assignment so far.
    """
    assigned: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    for topics in _pools(subscriptions):
        members = sorted(member for member, names in subscriptions.items() if topics <= names)
        partitions = [
            TopicPartition(topic, index)
            for topic in sorted(topics)
            for index in sorted(partitions_of.get(topic, ()))
        ]
        if not (members and partitions):
            continue
        for member, chosen in _assign_pool(members, partitions, previous).items():
            assigned[member] |= chosen
    return {member: frozenset(chosen) for member, chosen in assigned.items()}


def _pools(subscriptions: Mapping[str, frozenset[str]]) -> Iterable[frozenset[str]]:
    """Returns sets of topics that are assigned together."""
    different = set(subscriptions.values())
    if len(different) <= 1:
        return different
    return [frozenset([topic]) for topic in sorted(frozenset().union(*different))]


def _assign_pool(
    members: Sequence[str],
    partitions: Sequence[TopicPartition],
    previous: Mapping[str, Collection[TopicPartition]],
) -> dict[str, set[TopicPartition]]:
    sharing = -(-len(members) // len(partitions))
    places = _places(members, len(partitions) * sharing)
    pool = frozenset(partitions)
    held = {member: pool.intersection(previous.get(member, ())) for member in members}
    if _is_even_enough(held, places, partitions, sharing):
        return {member: set(own) for member, own in held.items()}
    used = dict.fromkeys(partitions, 0)
    chosen: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for member in members:
        for partition in sorted(held[member]):
            if len(chosen[member]) < places[member] and used[partition] < sharing:
                chosen[member].add(partition)
                used[partition] += 1
    order = {partition: position for position, partition in enumerate(partitions)}
    heap = [(count, order[partition]) for partition, count in used.items()]
    heapify(heap)
    # Those who lack most come first: they need partitions that differ, while many have room.
    for member in sorted(members, key=lambda each: len(chosen[each]) - places[each]):
        _fill(chosen[member], places[member], partitions, heap)
    return chosen


def _is_even_enough(
    held: Mapping[str, Collection[TopicPartition]],
    places: Mapping[str, int],
    partitions: Sequence[TopicPartition],
    sharing: int,
) -> bool:
    """Whether the assignment so far can stay. A partition may have one member too many: a member
    with several places needs different partitions, and others keep theirs."""
    used = dict.fromkeys(partitions, 0)
    for member, count in places.items():
        if len(held[member]) != count:
            return False
        for partition in held[member]:
            used[partition] += 1
    return min(used.values()) >= 1 and max(used.values()) <= sharing + 1


def _places(members: Sequence[str], total: int) -> dict[str, int]:
    """Divides places among members: the numbers differ by at most one."""
    count = len(members)
    ends = [-(-total * position // count) for position in range(count + 1)]
    return {member: ends[i + 1] - ends[i] for i, member in enumerate(members)}


def _fill(
    chosen: set[TopicPartition],
    places: int,
    partitions: Sequence[TopicPartition],
    heap: list[tuple[int, int]],
) -> None:
    """Adds partitions with the fewest members until all places are used.

    `heap` has, for each partition, the number of its members and its position.
    """
    skipped: list[tuple[int, int]] = []
    while len(chosen) < places and heap:
        count, position = heappop(heap)
        if partitions[position] in chosen:
            skipped.append((count, position))
        else:
            chosen.add(partitions[position])
            skipped.append((count + 1, position))
    for entry in skipped:
        heappush(heap, entry)
