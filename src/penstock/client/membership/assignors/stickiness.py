"""Balanced assignments that keep partitions with their owners as far as possible. Pure.

Members come with claims: the partitions they owned, and the generation of that assignment. For each
partition the newest claim counts. Two claims of the same generation contradict each other, and
neither counts.

If all members subscribe to the same topics the result is exact: every member gets n/m partitions,
rounded down or up, and as many claims as possible are honored. A member keeps what it owned up to
its share; the larger shares go to members that owned more.

If members subscribe to different topics, "balanced" means that no chain of moves improves the
assignment. A chain moves a partition from one member to another, which passes one on to a third,
and so on, until the first has one fewer and the last, which had at least two fewer than the first,
has one more. This is the best possible result for all members at once (an optimal semi-matching).
It is reached in three steps: partitions without an owner go to the least loaded member that
subscribes to the topic; then single moves within one topic, until none helps; then chains, found by
breadth-first search. Moves first use partitions that were only just placed, and use previously
owned ones only if that does not suffice.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.membership.assignors.base import (
    Assignment,
    Memory,
    Peer,
    in_order,
    wanted_topics,
)
from penstock.topic_partition import TopicPartition

_CHAIN_STEPS_MAX: Final = 10_000_000
"""Some seconds' worth of search. If a group is so large and irregular that this is not enough, its
assignment stays as balanced as single moves and the search so far have made it."""


def assign_sticky(
    partition_counts: Mapping[str, int], members: Sequence[Peer], claims: Mapping[str, Memory]
) -> Assignment:
    """Computes the assignment. `claims` is by member id; members without claims may be missing."""
    peers = in_order(members)
    topics = wanted_topics(partition_counts, members)
    kept = _honoured(partition_counts, peers, claims)
    if len({frozenset(peer.subscription.topics) for peer in peers}) == 1:
        return _assign_equal(partition_counts, topics, kept)
    return _Balance(partition_counts, topics, peers, kept).assignment()


def newest_claims(claims: Mapping[str, Memory]) -> dict[TopicPartition, str | None]:
    """Returns the rightful owner of each claimed partition; None where two claims are equally
    new."""
    holders: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, memory in claims.items():
        for topic_partition in memory.topic_partitions:
            known = holders.get(topic_partition)
            if known is None or memory.generation > known[0]:
                holders[topic_partition] = memory.generation, member_id
            elif memory.generation == known[0] and member_id != known[1]:
                holders[topic_partition] = memory.generation, None
    return {topic_partition: holder for topic_partition, (_, holder) in holders.items()}


def _honoured(
    partition_counts: Mapping[str, int], peers: Sequence[Peer], claims: Mapping[str, Memory]
) -> Assignment:
    """Returns the claims that can be honored if balance allows, in the order of the peers."""
    holders = newest_claims(claims)
    kept: Assignment = {}
    for peer in peers:
        wanted = frozenset(peer.subscription.topics)
        memory = claims.get(peer.member_id, Memory())
        kept[peer.member_id] = sorted(
            topic_partition
            for topic_partition in set(memory.topic_partitions)
            if holders[topic_partition] == peer.member_id
            and topic_partition.topic in wanted
            and 0 <= topic_partition.partition < partition_counts.get(topic_partition.topic, 0)
        )
    return kept


def _assign_equal(
    partition_counts: Mapping[str, int], topics: Sequence[str], kept: Assignment
) -> Assignment:
    total = sum(partition_counts[topic] for topic in topics)
    share, larger_shares = divmod(total, len(kept))
    assignment: Assignment = {}
    for member_id, topic_partitions in kept.items():
        takes_larger = larger_shares > 0 and len(topic_partitions) > share
        larger_shares -= takes_larger
        assignment[member_id] = topic_partitions[: share + takes_larger]
    held = {
        topic_partition
        for topic_partitions in assignment.values()
        for topic_partition in topic_partitions
    }
    free = [
        TopicPartition(topic, partition)
        for topic in topics
        for partition in range(partition_counts[topic])
        if (topic, partition) not in held
    ]
    # In turn rather than one member after the other, so that a topic's partitions are spread.
    hungry = deque(
        member_id
        for member_id, topic_partitions in assignment.items()
        if len(topic_partitions) < share
    )
    full = deque(
        member_id
        for member_id, topic_partitions in assignment.items()
        if len(topic_partitions) == share
    )
    for topic_partition in free:
        member_id = (hungry or full).popleft()
        assignment[member_id].append(topic_partition)
        if len(assignment[member_id]) < share:
            hungry.append(member_id)
        elif len(assignment[member_id]) == share:
            full.append(member_id)
    return assignment


class _Step(NamedTuple):
    giver: int
    topic: int


class _Balance:
    """Balances members with different subscriptions.

    Members and topics are numbers here, because the search visits them millions of times.
    """

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        topics: Sequence[str],
        peers: Sequence[Peer],
        kept: Assignment,
    ) -> None:
        self.topics = topics
        self.member_ids = [peer.member_id for peer in peers]
        number = {topic: n for n, topic in enumerate(topics)}
        self.takers: list[list[int]] = [[] for _ in topics]
        """By topic: the members that subscribe to it."""
        for member, peer in enumerate(peers):
            for name in set(peer.subscription.topics):
                if name in number:
                    self.takers[number[name]].append(member)
        self.held: list[dict[int, list[int]]] = [{} for _ in peers]
        """By member and topic: its partitions. Previously owned ones come first, so they are given
        away last."""
        self.kept: list[dict[int, int]] = [{} for _ in peers]
        """By member and topic: how many of its partitions it owned before."""
        self.loads = [0] * len(peers)
        free = [set(range(partition_counts[topic])) for topic in topics]
        for member, member_id in enumerate(self.member_ids):
            for topic_partition in kept[member_id]:
                topic = number[topic_partition.topic]
                free[topic].remove(topic_partition.partition)
                self._give(member, topic, topic_partition.partition)
            self.kept[member] = {topic: len(found) for topic, found in self.held[member].items()}
        self._topic_partition(free)
        for touch_kept in (False, True):
            # Every topic in every round, because moves within one topic change the loads for all.
            while sum(self._level(topic, touch_kept) for topic in range(len(topics))):
                pass
            self._resolve_chains(touch_kept)

    def assignment(self) -> Assignment:
        return {
            member_id: [
                TopicPartition(self.topics[topic], partition)
                for topic in sorted(held)
                for partition in sorted(held[topic])
            ]
            for member_id, held in zip(self.member_ids, self.held, strict=True)
        }

    def _give(self, member: int, topic: int, partition: int) -> None:
        self.held[member].setdefault(topic, []).append(partition)
        self.loads[member] += 1

    def _move(self, giver: int, topic: int, taker: int) -> None:
        partitions = self.held[giver][topic]
        partition = partitions.pop()
        if not partitions:
            del self.held[giver][topic]
        if len(partitions) < self.kept[giver].get(topic, 0):
            self.kept[giver][topic] -= 1
        self.loads[giver] -= 1
        self._give(taker, topic, partition)

    def _has_to_give(self, member: int, topic: int, touch_kept: bool) -> bool:
        held = self.held[member].get(topic, ())
        return len(held) > (0 if touch_kept else self.kept[member].get(topic, 0))

    def _topic_partition(self, free: Sequence[set[int]]) -> None:
        """Places the partitions without an owner, starting with topics that have few subscribers.

        Members that also subscribe to other topics can then be relieved of those.
        """
        for topic in sorted(range(len(free)), key=lambda topic: len(self.takers[topic])):
            queue = [(self.loads[member], member) for member in self.takers[topic]]
            heapq.heapify(queue)
            for partition in sorted(free[topic]):
                load, member = queue[0]
                self._give(member, topic, partition)
                heapq.heapreplace(queue, (load + 1, member))

    def _level(self, topic: int, touch_kept: bool) -> bool:
        """Moves this topic's partitions from the most to the least loaded members while that
        helps."""
        loads = self.loads
        all_loads = [loads[member] for member in self.takers[topic]]
        if max(all_loads) - min(all_loads) < 2:
            return False
        takers = [(loads[m], m) for m in self.takers[topic]]
        givers = [(-load, m) for load, m in takers if self._has_to_give(m, topic, touch_kept)]
        heapq.heapify(givers)
        heapq.heapify(takers)
        moved = False
        while givers:
            load, giver = -givers[0][0], givers[0][1]
            # Outdated entries stay in the heap. They are recognized by their load.
            if loads[giver] != load or not self._has_to_give(giver, topic, touch_kept):
                heapq.heappop(givers)
                continue
            while loads[takers[0][1]] != takers[0][0]:
                heapq.heappop(takers)
            taker = takers[0][1]
            if load - loads[taker] < 2:
                break
            self._move(giver, topic, taker)
            moved = True
            for member in (giver, taker):
                heapq.heappush(givers, (-loads[member], member))
                heapq.heappush(takers, (loads[member], member))
        return moved

    def _resolve_chains(self, touch_kept: bool) -> None:
        """Applies chains of moves, starting from the most loaded member.

        If no chain leads from it to a member with two fewer partitions, then none leads from any
        member that it reaches either: all of them are final.
        """
        settled: set[int] = set()
        sources = [(-load, member) for member, load in enumerate(self.loads)]
        heapq.heapify(sources)
        steps_left = _CHAIN_STEPS_MAX
        while sources and steps_left > 0:
            load, source = heapq.heappop(sources)
            if source in settled or self.loads[source] != -load:
                continue
            target, arrivals, steps = self._search(source, touch_kept)
            steps_left -= steps
            if target is None:
                settled.update(arrivals, (source,))
                continue
            heapq.heappush(sources, (-self.loads[target] - 1, target))
            taker = target
            while taker != source:
                giver, topic = arrivals[taker]
                self._move(giver, topic, taker)
                taker = giver
            heapq.heappush(sources, (-self.loads[source], source))

    def _search(self, source: int, touch_kept: bool) -> tuple[int | None, dict[int, _Step], int]:
        """Returns a member with at least two fewer partitions than the source, and how each was
        reached."""
        enough = self.loads[source] - 2
        arrivals: dict[int, _Step] = {}
        seen_topics: set[int] = set()
        queue = deque([source])
        steps = 0
        while queue:
            giver = queue.popleft()
            for topic in self.held[giver]:
                if topic in seen_topics or not self._has_to_give(giver, topic, touch_kept):
                    continue
                seen_topics.add(topic)
                steps += len(self.takers[topic])
                for taker in self.takers[topic]:
                    if taker == source or taker in arrivals:
                        continue
                    arrivals[taker] = _Step(giver, topic)
                    if self.loads[taker] <= enough:
                        return taker, arrivals, steps
                    queue.append(taker)
        return None, arrivals, steps
