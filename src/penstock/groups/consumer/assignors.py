"""The assignors of the broker: they compute which member should own which partition.

`range` gives each member consecutive partitions of each topic. `uniform` spreads all partitions
evenly, and moves as few as possible: it starts from the previous target assignment. If all members
subscribe to the same topics, the members' numbers of partitions differ by at most one. Otherwise
they are as even as moving single partitions makes them, in a bounded number of rounds. Topics that
the same members subscribe to are one pool. A round takes time for each partition, and for each pool
and subscription to it. It does not look at all members of each topic, because the event loop waits
for the result.

Both are deterministic: the same input has the same result.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
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
    numbers, subscriptions = _numbered(ordered)
    alike: list[list[int]] = [[] for _ in subscriptions]
    for member, number in enumerate(numbers):
        alike[number].append(member)
    given: list[list[TopicIdPartition]] = [[] for _ in ordered]
    for subscribed, topic_ids in _topics_alike(subscriptions, counts).items():
        subscribers = sorted(chain.from_iterable(alike[number] for number in subscribed))
        for topic_id in topic_ids:
            each, more = divmod(counts[topic_id], len(subscribers))
            begin = 0
            # If there are more members than partitions, the last ones get none.
            for number, member in enumerate(subscribers[: counts[topic_id]]):
                end = begin + each + (number < more)
                given[member] += [TopicIdPartition(topic_id, index) for index in range(begin, end)]
                begin = end
    return _frozen(ordered, given)


def assign_uniformly(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    if len({one.topic_ids for one in members}) <= 1:
        return _spread_same(members, counts)
    return _spread_mixed(members, counts)


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniformly, "range": assign_ranges}
)


def _frozen(
    members: Iterable[Subscriber], given: Iterable[Iterable[TopicIdPartition]]
) -> Assignment:
    return {
        one.member_id: frozenset(partitions) for one, partitions in zip(members, given, strict=True)
    }


def _numbered(members: Iterable[Subscriber]) -> tuple[list[int], list[frozenset[bytes]]]:
    """Returns the number of each member's subscription, and the different subscriptions."""
    found: dict[frozenset[bytes], int] = {}
    numbers = [found.setdefault(one.topic_ids, len(found)) for one in members]
    return numbers, list(found)


def _topics_alike(
    subscriptions: Sequence[frozenset[bytes]], counts: Mapping[bytes, int]
) -> dict[tuple[int, ...], list[bytes]]:
    """Groups topics by the subscriptions that contain them: the numbers of these are the key."""
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, topic_ids in enumerate(subscriptions):
        for topic_id in topic_ids:
            numbers[topic_id].append(number)
    alike: dict[tuple[int, ...], list[bytes]] = {}
    for topic_id in sorted(numbers.keys() & counts.keys()):
        alike.setdefault(tuple(numbers[topic_id]), []).append(topic_id)
    return alike


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


def _free(
    topic_ids: Iterable[bytes], counts: Mapping[bytes, int], taken: set[TopicIdPartition]
) -> list[TopicIdPartition]:
    """Returns the partitions of some topics that no member keeps."""
    return [
        partition
        for topic_id in topic_ids
        for index in range(counts[topic_id])
        if (partition := TopicIdPartition(topic_id, index)) not in taken
    ]


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
    free = iter(_free(topic_ids, counts, taken))
    for number, one in enumerate(ordered):
        partitions = given[one.member_id]
        for _ in range(least + (number < more) - len(partitions)):
            partitions.append(next(free))
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


class _Loads:
    """How many partitions each member has.

    A member is a number here: its place in the order of member ids. The key of a member is one
    number for its load and its place: the lower key has fewer partitions, or the lower member id.
    Members with equal subscriptions can take the same partitions. They share a heap of keys, so
    that the member with fewest is found without a look at all members.
    """

    def __init__(self, members: Sequence[Subscriber], loads: Iterable[int]) -> None:
        self.step: Final = len(members)
        """How much one partition adds to a key."""
        self.keys: Final = [load * self.step + member for member, load in enumerate(loads)]
        self._subscription_of, self.subscriptions = _numbered(members)
        # A heap may have former keys of members. Its top is a present one.
        self._heaps: Final[list[list[int]]] = [[] for _ in self.subscriptions]
        for key, number in zip(self.keys, self._subscription_of, strict=True):
            self._heaps[number].append(key)
        self.sizes: Final = [len(heap) for heap in self._heaps]
        for heap in self._heaps:
            heapq.heapify(heap)
        self.lowest: Final = [heap[0] for heap in self._heaps]
        """The lowest key of each subscription."""

    def give_lowest(self, member: int) -> int:
        """Adds a partition to the member with the lowest key of its subscription.

        Returns the key that is the lowest then.
        """
        number = self._subscription_of[member]
        heap = self._heaps[number]
        self.keys[member] += self.step
        heapq.heapreplace(heap, self.keys[member])
        while heap[0] != self.keys[heap[0] % self.step]:
            heapq.heappop(heap)
        self.lowest[number] = heap[0]
        return heap[0]

    def take(self, member: int) -> None:
        number = self._subscription_of[member]
        key = self.keys[member] = self.keys[member] - self.step
        heapq.heappush(self._heaps[number], key)
        self.lowest[number] = min(self.lowest[number], key)


class _Pool:
    """The partitions of all topics that the same members subscribe to.

    Any of these members can have any of these partitions.
    """

    def __init__(self, subscriptions: Sequence[int], topic_ids: Sequence[bytes]) -> None:
        self.subscriptions: Final = subscriptions
        self.topic_ids: Final = topic_ids
        self.owned: Final[dict[int, list[TopicIdPartition]]] = {}
        """By member. The partitions that it had before come first: they are moved last."""

    def spread(self, free: Sequence[TopicIdPartition], loads: _Loads) -> None:
        """Gives free partitions to the members with fewest partitions."""
        if not free:
            return
        lowest = [loads.lowest[number] for number in self.subscriptions]
        heapq.heapify(lowest)
        for partition in free:
            member = lowest[0] % loads.step
            self.owned.setdefault(member, []).append(partition)
            heapq.heapreplace(lowest, loads.give_lowest(member))

    def even_out(self, loads: _Loads) -> bool:
        """Moves partitions from the members with most partitions to those with fewest."""
        if not self.owned:
            return False
        step, keys = loads.step, loads.keys
        lowest = [loads.lowest[number] for number in self.subscriptions]
        if max(keys[member] for member in self.owned) // step - min(lowest) // step <= 1:
            return False
        heapq.heapify(lowest)
        # Of the members with most partitions, the one with the lowest member id gives first.
        most = [(-(keys[member] // step), member) for member in self.owned]
        heapq.heapify(most)
        moved = False
        # The highest load never rises here, and the lowest never falls. So no member both gives
        # and takes: the heap of givers needs no loads of takers, and the other way round.
        while most and -most[0][0] - lowest[0] // step > 1:
            giver, taker = most[0][1], lowest[0] % step
            self._move(giver, taker)
            heapq.heapreplace(lowest, loads.give_lowest(taker))
            loads.take(giver)
            if giver in self.owned:
                heapq.heapreplace(most, (-(keys[giver] // step), giver))
            else:
                heapq.heappop(most)
            moved = True
        return moved

    def _move(self, giver: int, taker: int) -> None:
        partitions = self.owned[giver]
        self.owned.setdefault(taker, []).append(partitions.pop())
        if not partitions:
            del self.owned[giver]


def _pools(loads: _Loads, counts: Mapping[bytes, int]) -> list[_Pool]:
    def order(pool: _Pool) -> tuple[float, int, bytes]:
        # Topics that few members can read come first: later topics fill up the other members.
        size = sum(map(loads.sizes.__getitem__, pool.subscriptions))
        return -max(counts[each] for each in pool.topic_ids) / size, size, pool.topic_ids[0]

    alike = _topics_alike(loads.subscriptions, counts)
    return sorted((_Pool(*each) for each in alike.items()), key=order)


def _spread_mixed(members: Sequence[Subscriber], counts: Mapping[bytes, int]) -> Assignment:
    ordered = sorted(members, key=lambda one: one.member_id)
    kept: list[list[TopicIdPartition]] = []
    taken: set[TopicIdPartition] = set()
    for one in ordered:
        kept.append(_kept(one, counts, taken))
        taken.update(kept[-1])
    loads = _Loads(ordered, map(len, kept))
    pools = _pools(loads, counts)
    owned_of = {topic_id: pool.owned for pool in pools for topic_id in pool.topic_ids}
    for member, partitions in enumerate(kept):
        for partition in partitions:
            owned_of[partition.topic_id].setdefault(member, []).append(partition)
    for pool in pools:
        pool.spread(_free(pool.topic_ids, counts, taken), loads)
    quiet = 0
    for pool in pools * _ROUNDS_MAX:
        quiet = 0 if pool.even_out(loads) else quiet + 1
        if quiet == len(pools):
            break
    given: list[list[TopicIdPartition]] = [[] for _ in ordered]
    for pool in pools:
        for member, partitions in pool.owned.items():
            given[member].extend(partitions)
    return _frozen(ordered, given)
