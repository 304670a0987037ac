"""The assignors of the broker: they compute which member should own which partition.

`range` gives each member consecutive partitions of each topic. `uniform` spreads all partitions
evenly, and moves as few as possible: it starts from the previous target assignment. If all members
subscribe to the same topics, the members' numbers of partitions differ by at most one. Otherwise
they are as even as moving single partitions makes them, in a bounded number of rounds.

Both are deterministic: the same input has the same result.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.groups.consumer.records import TopicIdPartition

_ROUNDS_MAX: Final = 16

Assignment = dict[str, frozenset[TopicIdPartition]]
"""The partitions of each member, by member id."""


class Subscriber(NamedTuple):
    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    previous: frozenset[TopicIdPartition]
    """Its previous target. Two members may have the same partition in it."""


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], Assignment]
"""Takes the members, and the number of partitions of each topic that they subscribe to."""


def assign_ranges(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    # Static members first, so that they keep their place when others come and go.
    ordered = sorted(
        members, key=lambda one: (one.instance_id is None, one.instance_id or one.member_id)
    )
    given: dict[str, set[TopicIdPartition]] = {one.member_id: set() for one in members}
    for topic_id, subscribers in _subscribers(ordered, counts).items():
        each, more = divmod(counts[topic_id], len(subscribers))
        begin = 0
        for number, one in enumerate(subscribers):
            end = begin + each + (number < more)
            given[one.member_id].update(
                TopicIdPartition(topic_id, index) for index in range(begin, end)
            )
            begin = end
    return _frozen(given)


def assign_uniformly(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    if len({one.topic_ids for one in members}) <= 1:
        return _spread_same(members, counts)
    return _spread_mixed(members, counts)


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniformly, "range": assign_ranges}
)


def _frozen(given: Mapping[str, Iterable[TopicIdPartition]]) -> Assignment:
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _subscribers(
    members: Iterable[Subscriber], counts: Mapping[bytes, int]
) -> dict[bytes, list[Subscriber]]:
    found: dict[bytes, list[Subscriber]] = {}
    for one in members:
        for topic_id in one.topic_ids:
            if topic_id in counts:
                found.setdefault(topic_id, []).append(one)
    return {topic_id: found[topic_id] for topic_id in sorted(found)}


def _kept(
    one: Subscriber, counts: Mapping[bytes, int], taken: set[TopicIdPartition]
) -> list[TopicIdPartition]:
    """Returns the partitions of the previous target that the member may keep."""
    return sorted(
        partition
        for partition in one.previous
        if partition.topic_id in one.topic_ids
        and partition.partition < counts.get(partition.topic_id, 0)
        and partition not in taken
    )


def _spread_same(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    if not members:
        return {}
    topic_ids = sorted(topic_id for topic_id in members[0].topic_ids if topic_id in counts)
    least, more = divmod(sum(counts[topic_id] for topic_id in topic_ids), len(members))
    given: dict[str, list[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    # Those with most partitions may have one more than the others: then the fewest move.
    ordered = sorted(members, key=lambda one: (-len(one.previous), one.member_id))
    for number, one in enumerate(ordered):
        kept = _kept(one, counts, taken)[: least + (number < more)]
        taken.update(kept)
        given[one.member_id] = kept
    free = (
        partition
        for topic_id in topic_ids
        for index in range(counts[topic_id])
        if (partition := TopicIdPartition(topic_id, index)) not in taken
    )
    for number, one in enumerate(ordered):
        partitions = given[one.member_id]
        for _ in range(least + (number < more) - len(partitions)):
            partitions.append(next(free))
    return _frozen(given)


def _spread_mixed(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    given: dict[str, set[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for one in sorted(members, key=lambda one: one.member_id):
        kept = _kept(one, counts, taken)
        taken.update(kept)
        given[one.member_id] = set(kept)
    subscribers = {
        topic_id: [one.member_id for one in those]
        for topic_id, those in _subscribers(members, counts).items()
    }
    # Topics that few members can read come first: later topics fill up the other members.
    ordered = sorted(
        subscribers,
        key=lambda each: (-counts[each] / len(subscribers[each]), len(subscribers[each]), each),
    )
    for topic_id in ordered:
        loads = [(len(given[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapq.heapify(loads)
        for index in range(counts[topic_id]):
            partition = TopicIdPartition(topic_id, index)
            if partition not in taken:
                load, member_id = loads[0]
                given[member_id].add(partition)
                heapq.heapreplace(loads, (load + 1, member_id))
    for _ in range(_ROUNDS_MAX):
        moved = [_even_out(topic_id, subscribers[topic_id], given) for topic_id in ordered]
        if not any(moved):
            break
    return _frozen(given)


def _even_out(
    topic_id: bytes, subscribers: Sequence[str], given: Mapping[str, set[TopicIdPartition]]
) -> bool:
    """Moves partitions of one topic from the members with most partitions to those with fewest."""
    if len(subscribers) < 2:
        return False
    own = {
        member_id: sorted(each for each in given[member_id] if each.topic_id == topic_id)
        for member_id in subscribers
    }
    fewest = [(len(given[member_id]), member_id) for member_id in subscribers]
    most = [(-len(given[member_id]), member_id) for member_id in subscribers if own[member_id]]
    heapq.heapify(fewest)
    heapq.heapify(most)
    moved = False
    while most:
        # A heap may have old loads. They are corrected when they come to its top.
        high, giver = most[0]
        low, taker = fewest[0]
        if -high != len(given[giver]) or not own[giver]:
            heapq.heappop(most)
            if own[giver]:
                heapq.heappush(most, (-len(given[giver]), giver))
        elif low != len(given[taker]):
            heapq.heapreplace(fewest, (len(given[taker]), taker))
        elif -high - low <= 1:
            break
        else:
            partition = own[giver].pop()
            given[giver].remove(partition)
            given[taker].add(partition)
            own[taker].append(partition)
            heapq.heappush(most, (-len(given[taker]), taker))
            moved = True
    return moved
