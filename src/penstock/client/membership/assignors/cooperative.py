"""The "cooperative-sticky" assignor. Pure.

As sticky, but members keep what they hold while the group rebalances. So nothing may be given to
one member that another still holds: a partition that is to move is given to nobody at first. Its
holder sees it missing, stops, and joins again; now that nobody holds it, it is given to its new
owner. Whoever loses nothing never stops reading.

What members hold and since when is in their subscriptions. Older ones say their generation in
bytes of the assignor's own: Java's as an int32, librdkafka's as the sticky assignor's.
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
    """Whoever holds a partition by right keeps it, even while another, left behind by a rebalance
    that it has missed, believes to hold it too: that one learns better from this assignment."""
    rightful = newest_claims(claims)
    return {
        member_id: [place for place in places if rightful.get(place, member_id) == member_id]
        for member_id, places in target.items()
    }
