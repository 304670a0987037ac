"""Plans a balanced placement of all replicas in a cluster, with few moves.

Goals, in this order: a drained broker holds nothing; the replicas of each partition are spread over
racks as evenly as possible; the number of replicas per broker differs by at most one; the number of
partitions per preferred leader differs by at most one. Replicas are counted, not bytes, because
sizes change. Replication factors stay unchanged.

Each goal is reached by single relocations that never worsen a more important goal:

- A relocation for racks reduces the sum of the squares of a partition's replicas per rack.
- A relocation for load goes from one broker to another that has at least two replicas less, or
  along a chain of brokers whose ends differ by that much. So the sum of the squares of the loads
  decreases. The target rack has fewer replicas of the partition than the source rack, or is the
  same.
- Preferred leaders also change along such chains. A step puts another replica first, which copies
  nothing. Each step of a chain concerns a different partition, so chains find the optimum.

Therefore the planning ends, and a second plan on the result of the first one is empty. Between two
brokers, topics are moved first of which the source has more partitions than the target.

Brokers that are not running, or are excluded, keep what they have and get nothing, because they may
come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.metadata.placement import ring
from penstock.metadata.reassignment import Move
from penstock.topic_partition import TopicPartition

_NOBODY: Final[frozenset[int]] = frozenset()
_SLACK: Final = 2
"""Two loads that differ by less than this are balanced."""


class NotEnoughBrokers(Exception):
    """A partition has at least as many replicas as there are brokers left to hold them."""

    def __init__(self, placed: Placed, drained: int, brokers: Sequence[int]) -> None:
        self.topic = placed.topic
        self.index = placed.index
        super().__init__(
            f"broker {drained} cannot be drained: {placed.topic}-{placed.index} has "
            f"{len(placed.replicas)} replicas, and the only other brokers are {list(brokers)}: "
            "add a broker first, or give the topic fewer replicas"
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a partition is, or its target if it is being moved."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    size_bytes: int | None = None
    """The size of one replica; None if unknown."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.index)


@dataclass(frozen=True, slots=True)
class Step:
    """What the plan changes for one partition."""

    topic: str
    index: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int | None

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(each for each in self.before if each not in self.after)

    @property
    def copied_bytes(self) -> int | None:
        return None if self.size_bytes is None else self.size_bytes * len(self.added)

    @property
    def move(self) -> Move:
        return Move(self.topic, self.index, self.after)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one broker. `leads` counts the partitions of which it is the preferred leader,
    whether or not it leads them now."""

    replicas: int
    leads: int
    size_bytes: int
    """The total size of the replicas whose size is known."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The balance of a cluster, in numbers."""

    loads: Mapping[int, Load]
    """The load of every running broker, and of every broker that has a replica."""
    uneven_racks: int
    """Partitions whose replicas could be spread over racks more evenly."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, and the balance of the cluster before and after them."""

    steps: tuple[Step, ...]
    before: Shape
    after: Shape

    @property
    def copies(self) -> int:
        """The number of replicas to copy."""
        return sum(len(step.added) for step in self.steps)

    @property
    def copied_bytes(self) -> int:
        """The number of bytes to copy, as far as sizes are known."""
        return sum(step.copied_bytes or 0 for step in self.steps)


def plan(
    racks: Mapping[int, str | None],
    partitions: Iterable[Placed],
    *,
    drain: Collection[int] = _NOBODY,
    exclude: Collection[int] = _NOBODY,
    level: bool = True,
) -> Plan:
    """Returns the steps that balance the cluster.

    `racks` are the running brokers. Brokers in `drain`, which need not be running, give up
    everything. Brokers in `exclude` keep what they have and get nothing more. Without `level`, the
    plan only drains.
    """
    placed = {each.topic_partition: each for each in partitions}
    layout = _Layout(racks, placed.values(), {*drain}, {*exclude})
    before = layout.shape(placed)
    layout.drain(placed)
    while level and (layout.spread() + layout.level_replicas() + layout.level_leads()):
        # A chain may be found in one order of attempts and missed in another. Repeat from the
        # result until a fresh attempt finds nothing more.
        layout = _Layout(racks, layout.placed(placed), {*drain}, {*exclude})
    after = {each.topic_partition: each for each in layout.placed(placed)}
    steps = (
        Step(*topic_partition, each.replicas, after[topic_partition].replicas, each.size_bytes)
        for topic_partition, each in sorted(placed.items())
        if each.replicas != after[topic_partition].replicas
    )
    return Plan(tuple(steps), before, layout.shape(placed))


class _Layout:
    """The placement while it is being changed. All iteration is in a fixed order, so plans are
    deterministic."""

    def __init__(
        self,
        racks: Mapping[int, str | None],
        partitions: Iterable[Placed],
        drained: Collection[int],
        excluded: Collection[int],
    ) -> None:
        self._racks = {each: racks[each] or "" for each in ring(racks)}
        self._drained = drained
        self._open = tuple(
            each for each in self._racks if each not in drained and each not in excluded
        )
        self._replicas: dict[TopicPartition, list[int]] = {}
        self._held: dict[int, dict[str, dict[int, None]]] = {each: {} for each in self._racks}
        self._loads = Counter(dict.fromkeys(self._racks, 0))
        self._leads = Counter(dict.fromkeys(self._racks, 0))
        self._stuck: set[tuple[int, int]] = set()
        self._load(partitions)

    def _load(self, partitions: Iterable[Placed]) -> None:
        ordered = sorted(partitions, key=lambda each: each.topic_partition)
        for each in ordered:
            self._replicas[each.topic_partition] = [*each.replicas]
            self._leads[each.replicas[0]] += 1
            self._loads.update(each.replicas)
        # Each broker starts with different partitions. If two brokers started with the same ones,
        # they would soon find that the other already has a replica of each of them.
        for rank, broker in enumerate(self._racks):
            turn = rank * len(ordered) // len(self._racks)
            for each in ordered[turn:] + ordered[:turn]:
                if broker in each.replicas:
                    self._held[broker].setdefault(each.topic, {})[each.index] = None

    def placed(self, known: Mapping[TopicPartition, Placed]) -> list[Placed]:
        return [
            Placed(*topic_partition, tuple(replicas), known[topic_partition].size_bytes)
            for topic_partition, replicas in self._replicas.items()
        ]

    def shape(self, known: Mapping[TopicPartition, Placed]) -> Shape:
        sizes: Counter[int] = Counter()
        for topic_partition, replicas in self._replicas.items():
            for each in replicas:
                sizes[each] += known[topic_partition].size_bytes or 0
        loads = {
            each: Load(self._loads[each], self._leads[each], sizes[each])
            for each in sorted({*self._racks, *self._loads})
        }
        return Shape(
            loads,
            sum(self._uneven(topic_partition) is not None for topic_partition in self._replicas),
        )

    # Changes

    def _relocate(self, topic_partition: TopicPartition, source: int, target: int) -> None:
        topic, index = topic_partition
        replicas = self._replicas[topic_partition]
        position = replicas.index(source)
        replicas[position] = target
        self._loads[source] -= 1
        self._loads[target] += 1
        if position == 0:
            self._leads[source] -= 1
            self._leads[target] += 1
        if source in self._held:
            del self._held[source][topic][index]
        self._held[target].setdefault(topic, {})[index] = None
        for each in self._held.keys() & replicas:
            self._stuck -= {
                (each, other)
                for other in self._open
                if self._may_relocate(topic_partition, each, other)
            }

    def _prefer(self, topic_partition: TopicPartition, leader: int) -> None:
        replicas = self._replicas[topic_partition]
        position = replicas.index(leader)
        self._leads[replicas[0]] -= 1
        self._leads[leader] += 1
        replicas[0], replicas[position] = leader, replicas[0]

    # Draining

    def drain(self, known: Mapping[TopicPartition, Placed]) -> None:
        for topic_partition, replicas in self._replicas.items():
            for source in [each for each in replicas if each in self._drained]:
                others = Counter(
                    self._racks[each] for each in replicas if each != source and each in self._racks
                )
                able = [each for each in self._open if each not in replicas]
                if not able:
                    raise NotEnoughBrokers(known[topic_partition], source, self._open)
                target = min(able, key=lambda each: (others[self._racks[each]], self._loads[each]))
                led = replicas[0] == source
                self._relocate(topic_partition, source, target)
                if led:
                    self._prefer(topic_partition, self._heir(replicas, target))

    def _heir(self, replicas: Sequence[int], target: int) -> int:
        """Chooses the new preferred leader: the replica that leads the fewest partitions, and on a
        tie one that already has the records."""
        able = [each for each in replicas if each in self._open]
        return min(able, key=lambda each: (self._leads[each] - (each == target), each == target))

    # Racks

    def spread(self) -> int:
        done = 0
        for topic_partition in self._replicas:
            while (found := self._uneven(topic_partition)) is not None:
                self._relocate(topic_partition, *found)
                done += 1
        return done

    def _uneven(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """Returns a relocation that spreads the replicas over racks more evenly."""
        replicas = self._replicas[topic_partition]
        by_rack = Counter(self._racks[each] for each in replicas if each in self._racks)
        sources = [each for each in replicas if each in self._open]
        targets = [each for each in self._open if each not in replicas]
        if not sources or not targets:
            return None
        source = max(sources, key=lambda each: (by_rack[self._racks[each]], self._loads[each]))
        target = min(targets, key=lambda each: (by_rack[self._racks[each]], self._loads[each]))
        gap = by_rack[self._racks[source]] - by_rack[self._racks[target]]
        return (source, target) if gap >= _SLACK else None

    def _may_relocate(self, topic_partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self._replicas[topic_partition]
        if target in replicas:
            return False
        left, entered = self._racks[source], self._racks[target]
        if left == entered:
            return True
        racks = [self._racks.get(each) for each in replicas]
        return racks.count(entered) < racks.count(left)

    # Levelling

    def level_replicas(self) -> int:
        done = 0
        while chain := self._chain(self._loads, lambda *pair: self._movable(*pair) is not None):
            if not self._shift(chain):
                break
            done += 1
        return done

    def _shift(self, chain: Sequence[int]) -> bool:
        """Relocates one replica along each link. Returns False, with everything undone, if the
        links block each other."""
        undo: list[tuple[TopicPartition, int, int]] = []
        for source, target in reversed([*_links(chain)]):
            topic_partition = self._movable(source, target)
            if topic_partition is None:
                for back in reversed(undo):
                    self._relocate(*back)
                return False
            self._relocate(topic_partition, source, target)
            undo.append((topic_partition, target, source))
        return True

    def _movable(self, source: int, target: int) -> TopicPartition | None:
        if (source, target) in self._stuck:
            return None
        held, there = self._held[source], self._held[target]
        for topic in sorted(held, key=lambda each: len(there.get(each, ())) - len(held[each])):
            for index in held[topic]:
                topic_partition = TopicPartition(topic, index)
                if self._may_relocate(topic_partition, source, target):
                    return topic_partition
        self._stuck.add((source, target))
        return None

    def level_leads(self) -> int:
        led: dict[int, dict[int, dict[TopicPartition, None]]] = {
            each: {other: {} for other in self._open} for each in self._open
        }
        for topic_partition, replicas in self._replicas.items():
            self._note(led, topic_partition, replicas)
        done = 0
        while chain := self._chain(self._leads, lambda giver, taker: bool(led[giver][taker])):
            for giver, taker in _links(chain):
                topic_partition = next(iter(led[giver][taker]))
                for taken in led[giver].values():
                    taken.pop(topic_partition, None)
                self._prefer(topic_partition, taker)
                self._note(led, topic_partition, self._replicas[topic_partition])
            done += 1
        return done

    def _note(
        self,
        led: Mapping[int, Mapping[int, dict[TopicPartition, None]]],
        topic_partition: TopicPartition,
        replicas: Sequence[int],
    ) -> None:
        """Records the brokers to which the partition's leader could hand it over."""
        for other in replicas[1:]:
            if replicas[0] in led and other in self._open:
                led[replicas[0]][other][topic_partition] = None

    def _chain(
        self, loads: Mapping[int, int], is_linked: Callable[[int, int], bool]
    ) -> list[int] | None:
        """Returns a chain from a broker with a high load to one that has at least two less; a
        direct link if there is one."""
        downwards = sorted(self._open, key=lambda each: -loads[each])
        for highest in downwards:
            for lowest in reversed(downwards):
                if loads[highest] < loads[lowest] + _SLACK:
                    break
                if is_linked(highest, lowest):
                    return [highest, lowest]
        for highest in downwards:
            if loads[highest] < loads[downwards[-1]] + _SLACK:
                return None
            if chain := self._detour(highest, downwards, loads, is_linked):
                return chain
        return None

    def _detour(
        self,
        highest: int,
        downwards: Sequence[int],
        loads: Mapping[int, int],
        is_linked: Callable[[int, int], bool],
    ) -> list[int] | None:
        came_from = {highest: highest}
        front = [highest]
        while front:
            reached: list[int] = []
            for broker in front:
                for other in reversed(downwards):
                    if other in came_from or not is_linked(broker, other):
                        continue
                    came_from[other] = broker
                    if loads[highest] >= loads[other] + _SLACK:
                        return _way(came_from, other)
                    reached.append(other)
            front = reached
        return None


def _way(came_from: Mapping[int, int], last: int) -> list[int]:
    way = [last]
    while came_from[way[-1]] != way[-1]:
        way.append(came_from[way[-1]])
    return way[::-1]


def _links(chain: Sequence[int]) -> Iterator[tuple[int, int]]:
    return pairwise(chain)
