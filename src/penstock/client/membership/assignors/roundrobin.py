"""The "roundrobin" assignor. Pure.

All partitions of all topics are dealt in turn to the members in their order. A member that does not
subscribe to the partition's topic is skipped. With equal subscriptions, the numbers of partitions
of two members differ by one at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.membership.assignors.base import (
    Assignment,
    Memory,
    Peer,
    in_order,
    wanted_topics,
)
from penstock.topic_partition import TopicPartition


class RoundRobinAssignor:
    name = "roundrobin"
    cooperative = False

    def user_data(self, memory: Memory) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        assignment: Assignment = {peer.member_id: [] for peer in members}
        players = [
            (frozenset(peer.subscription.topics), assignment[peer.member_id])
            for peer in in_order(members)
        ]
        turn = 0
        for topic in wanted_topics(partition_counts, members):
            for partition in range(partition_counts[topic]):
                while topic not in players[turn][0]:
                    turn = (turn + 1) % len(players)
                players[turn][1].append(TopicPartition(topic, partition))
                turn = (turn + 1) % len(players)
        return assignment
