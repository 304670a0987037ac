"""The interface of assignors. Pure.

The leader of a group receives every member's subscription and each topic's number of partitions,
and decides which member reads which partition. All members must support the same assignor, so its
name has to be the same in every library. How it decides is up to the leader alone. An assignor here
has no state: what a member should remember from one assignment to the next is in its `Memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.client.membership.protocol import NO_GENERATION, Subscription
from penstock.topic_partition import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Maps a member id to its partitions."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the leader sees it."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """The sort key of members, the same as in Java: static members come first, by instance id.
        So they get the same partitions again after a restart, when their member ids are new."""
        if self.instance_id is None:
            return True, self.member_id
        return False, self.instance_id


@dataclass(frozen=True, slots=True)
class Memory:
    """A member's last assignment and the generation it is from."""

    topic_partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


class Assignor(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def cooperative(self) -> bool:
        """Whether members keep reading during a rebalance. If so, the assignor must never assign a
        partition in one step that another member still owns."""

    def user_data(self, memory: Memory) -> bytes | None:
        """Returns what a member sends to the leader in addition to its subscription."""

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
        """Assigns every partition of the subscribed topics to one of the topic's subscribers.

        Every member is in the result. Topics that do not exist are not in the counts.
        """


def in_order(members: Sequence[Peer]) -> list[Peer]:
    return sorted(members, key=lambda peer: peer.order)


def wanted_topics(partition_counts: Mapping[str, int], members: Sequence[Peer]) -> list[str]:
    """Returns the subscribed topics that exist, sorted."""
    topics = {topic for peer in members for topic in peer.subscription.topics}
    return sorted(topic for topic in topics if partition_counts.get(topic, 0) > 0)
