"""The "range" assignor. Pure.

Topic by topic, the partitions are cut into consecutive ranges, one per member that wants the
topic, the first members' ranges being one longer where it does not divide. Members that want the
same topics with the same counts so get the same partition numbers of each: what is keyed alike is
read by the same member. The price is that the first members get the odd ones of every topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.client.membership.assignors.base import (
    Assignment,
    Memory,
    Peer,
    in_order,
    wanted_topics,
)
from penstock.client.model import TopicPartition


class RangeAssignor:
    name = "range"
    cooperative = False

    def user_data(self, memory: Memory) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        takers: dict[str, list[str]] = defaultdict(list)
        for peer in in_order(members):
            for topic in set(peer.subscription.topics):
                takers[topic].append(peer.member_id)
        assignment: Assignment = {peer.member_id: [] for peer in members}
        for topic in wanted_topics(partition_counts, members):
            share, longer = divmod(partition_counts[topic], len(takers[topic]))
            first = 0
            for position, member_id in enumerate(takers[topic]):
                last = first + share + (position < longer)
                assignment[member_id] += [TopicPartition(topic, n) for n in range(first, last)]
                first = last
        return assignment
