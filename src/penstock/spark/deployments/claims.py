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

A pipeline that moves stands still until Spark has started elsewhere. So a pipeline is moved for the
sake of balance only if it is *settled*, and one at a time. The others stay where they are, and are
`postponed`. Otherwise a worker that returns after a crash would stop the pipelines that have just
been taken over from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.client.membership.assignors import COOPERATIVE_STICKY, Assignment, Memory, Peer
from penstock.client.membership.assignors.cooperative import claimed_generation
from penstock.client.membership.assignors.stickiness import newest_claims
from penstock.client.membership.protocol import Subscription
from penstock.topic_partition import TopicPartition


class PipelineAssignor:
    """The cooperative-sticky assignor for pipelines. Each pipeline is a topic with one
    partition."""

    name = "penstock-pipelines"
    cooperative = True

    def __init__(
        self,
        generation: Callable[[], int],
        on_held_back: Callable[[list[str]], None],
        settled: Callable[[], frozenset[str]],
    ) -> None:
        """`generation` returns the one that is being formed. `on_held_back` is called with the
        pipelines that could not be assigned because claims may be incomplete. `settled` returns
        the pipelines that may be moved."""
        self._generation = generation
        self._on_held_back = on_held_back
        self._settled = settled
        self.postponed: frozenset[str] = frozenset()
        """Pipelines that the last assignment left where they are, although balance wants another
        worker for them."""

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
        found = COOPERATIVE_STICKY.assign(counts, members)
        moving = _moving(found, counts, members)
        allowed = sorted(moving.keys() & self._settled())[:1]
        self.postponed = frozenset(moving.keys() - set(allowed))
        for name in sorted(self.postponed):
            found[moving[name]].append(TopicPartition(name, 0))
        return found

    def _are_complete(self, members: Sequence[Peer]) -> bool:
        last = self._generation() - 1
        return all(_assigned_generation(peer.subscription) == last for peer in members)


def _assigned_generation(subscription: Subscription) -> int:
    """Returns the generation of the member's last assignment: the assignor's own data."""
    return claimed_generation(Subscription(user_data=subscription.user_data))


def _moving(
    found: Assignment, counts: Mapping[str, int], members: Sequence[Peer]
) -> dict[str, str]:
    """Returns the pipelines that an assignment takes away from a worker that could keep them, with
    this worker."""
    claims = {
        peer.member_id: Memory(peer.subscription.owned, claimed_generation(peer.subscription))
        for peer in members
    }
    eligible = {peer.member_id: frozenset(peer.subscription.topics) for peer in members}
    return {
        each.topic: owner
        for each, owner in newest_claims(claims).items()
        if owner is not None
        and each.topic in counts
        and each.topic in eligible[owner]
        and each not in found[owner]
    }
