"""Assigns pipelines to workers, and never one that a worker may still run. Pure.

A pipeline that a member claims in its JoinGroup stays with it, or is assigned to no member until
the claim is gone: that is the cooperative assignor. A pipeline that no member claims may be
assigned to any, but only if the claims are complete. A JoinGroup may be old: its bytes were under
way for long, the worker has joined with another one in the meantime, and it owns more now.

So each member also sends the generation of its last assignment. If the generation that is being
formed is not the next one for every member, unclaimed pipelines are assigned to no member, and the
leader lets the group rebalance again. A JoinGroup with the generation of the last assignment was
sent after the member had received that assignment, and says all that it owns. Generations whose
assignment a member has received are in the log, so no two of them have the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.client.membership.assignors import COOPERATIVE_STICKY, Assignment, Memory, Peer
from penstock.client.membership.assignors.cooperative import claimed_generation
from penstock.client.membership.protocol import Subscription


class PipelineAssignor:
    """The cooperative-sticky assignor for pipelines. Each pipeline is a topic with one
    partition."""

    name = "penstock-pipelines"
    cooperative = True

    def __init__(
        self, generation: Callable[[], int], on_held_back: Callable[[list[str]], None]
    ) -> None:
        """`generation` returns the one that is being formed. `on_held_back` is called with the
        pipelines that could not be assigned because claims may be incomplete."""
        self._generation = generation
        self._on_held_back = on_held_back

    def user_data(self, memory: Memory) -> bytes | None:
        return COOPERATIVE_STICKY.user_data(memory)

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        counts = dict(partition_counts)
        if not self._are_complete(members):
            claimed = {claim.topic for peer in members for claim in peer.subscription.owned}
            held_back = sorted(counts.keys() - claimed)
            counts = {name: count for name, count in counts.items() if name in claimed}
            if held_back:
                self._on_held_back(held_back)
        return COOPERATIVE_STICKY.assign(counts, members)

    def _are_complete(self, members: Sequence[Peer]) -> bool:
        last = self._generation() - 1
        return all(_assigned_generation(peer.subscription) == last for peer in members)


def _assigned_generation(subscription: Subscription) -> int:
    """Returns the generation of the member's last assignment: the assignor's own data."""
    return claimed_generation(Subscription(user_data=subscription.user_data))
