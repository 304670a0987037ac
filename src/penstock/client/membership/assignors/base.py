"""What an assignor is. Pure.

The leader of a group is told what every member wants and how many partitions each topic has, and
says who reads what. All members must name the same assignor, so its name is known to everyone, in
every library; how it decides is the leader's affair alone. An assignor here keeps no state: what a
member should remember from one assignment to the next is in its `Memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.client.membership.protocol import NO_GENERATION, Subscription
from penstock.client.model import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Member id -> what it reads."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the leader sees it."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Members are considered in this order, Java's: static ones first, by their own names,
        so that they get the same again after a restart, when their member ids are new."""
        if self.instance_id is None:
            return True, self.member_id
        return False, self.instance_id


@dataclass(frozen=True, slots=True)
class Memory:
    """A member's last assignment and the generation it is from."""

    places: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


class Assignor(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool:
        """Whether members may go on reading through a rebalance. It must then never give away in
        one step what another member still holds."""

    def user_data(self, memory: Memory) -> bytes | None:
        """What a member tells the leader beyond its subscription."""

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        """Every partition of every topic that somebody wants, to one who wants it. Every member is
        in the answer. Topics that do not exist are not in the counts."""


def in_order(members: Sequence[Peer]) -> list[Peer]:
    return sorted(members, key=lambda peer: peer.order)


def wanted_topics(partition_counts: Mapping[str, int], members: Sequence[Peer]) -> list[str]:
    """The topics that exist and that somebody wants, sorted."""
    topics = {topic for peer in members for topic in peer.subscription.topics}
    return sorted(topic for topic in topics if partition_counts.get(topic, 0) > 0)
