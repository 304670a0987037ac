"""The "range" assignor. Pure.

The partitions of each topic are divided into consecutive ranges, one for each member that
subscribes to the topic. If they do not divide evenly, the first members get one more. Members that
subscribe to the same topics with the same number of partitions get the same partition numbers of
each topic, so records with the same key are read by the same member. The price is that the first
members get the extra partition of every topic.
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
from penstock.topic_partition import TopicPartition


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
