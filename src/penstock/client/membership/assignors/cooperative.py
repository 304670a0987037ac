"""The "cooperative-sticky" assignor. Pure.

It works like "sticky", but members keep their partitions while the group rebalances. So no
partition may be assigned to a member while another still owns it: a partition that has to move is
first assigned to no member. Its owner sees that it is missing, stops reading it and joins again.
Now that no member owns it, it is assigned to its new owner. Members that lose nothing never stop
reading.

Members report what they own, and the generation of it, in their subscriptions. Older ones report
the generation in the assignor's user data: Java's as an int32, librdkafka's in the sticky
assignor's format.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.client.membership.assignors.base import Assignment, Memory, Peer
from penstock.client.membership.assignors.stickiness import assign_sticky, newest_claims
from penstock.client.membership.assignors.sticky import decode_memory
from penstock.client.membership.protocol import Subscription

_GENERATION: Final = struct.Struct(">i")


class CooperativeStickyAssignor:
    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, memory: Memory) -> bytes | None:
        return _GENERATION.pack(memory.generation)

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        claims = {
            peer.member_id: Memory(peer.subscription.owned, claimed_generation(peer.subscription))
            for peer in members
        }
        target = assign_sticky(partition_counts, members, claims)
        return _without_moving(target, claims)


def claimed_generation(subscription: Subscription) -> int:
    if subscription.generation is not None:
        return subscription.generation
    data = subscription.user_data or b""
    if len(data) == _GENERATION.size:
        generation: int = _GENERATION.unpack(data)[0]
        return generation
    return decode_memory(data).generation


def _without_moving(target: Assignment, claims: Mapping[str, Memory]) -> Assignment:
    """Removes partitions from the assignment that another member still owns.

    The rightful owner keeps a partition, even if a member that missed a rebalance believes that it
    owns it too. That member learns from this assignment that it does not.
    """
    rightful = newest_claims(claims)
    return {
        member_id: [
            topic_partition
            for topic_partition in topic_partitions
            if rightful.get(topic_partition, member_id) == member_id
        ]
        for member_id, topic_partitions in target.items()
    }
