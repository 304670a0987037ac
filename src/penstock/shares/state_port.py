"""What leaders of partitions and group coordinators ask of the share coordinator."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.shares.image import Delta, ShareImage


class SharePartitionId(NamedTuple):
    """A partition as one share group sees it."""

    group_id: str
    topic_id: bytes
    partition: int


class CallOrder(NamedTuple):
    """Orders the initializations and deletions of a share partition.

    Group coordinators make these calls. A later coordinator has a higher epoch, and each numbers
    its calls. A call that arrives after a later one has no effect.
    """

    coordinator_epoch: int = -1
    """The leader epoch of the partition of `__consumer_offsets` that has the group."""
    number: int = -1


class StateSummary(NamedTuple):
    """What administrators see of the state. The start offset is -1 if it is not decided yet."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    done: int
    """The number of offsets from the start offset on that are done."""
    promoted: int = 0
    """The number of promoted records that are not done. They may be below the start offset."""


class ShareState(Protocol):
    """All methods raise `KafkaError`, also if the share coordinator cannot be reached in time."""

    async def read(self, share_partition: SharePartitionId, leader_epoch: int) -> ShareImage:
        """Returns the state, and refuses leaders with a lower epoch from now on."""
        ...

    async def write(
        self, share_partition: SharePartitionId, leader_epoch: int, delta: Delta
    ) -> None:
        """Stores a delta. Deltas that are given in one turn of the event loop share an append."""
        ...

    async def replace(
        self, share_partition: SharePartitionId, leader_epoch: int, image: ShareImage
    ) -> None:
        """Stores an image of the same state epoch in place of what is stored.

        A leader does this after records were lost.
        """
        ...

    async def initialize(
        self,
        share_partition: SharePartitionId,
        state_epoch: int,
        start_offset: int,
        order: CallOrder,
    ) -> None:
        """Begins a state. Nothing happens if the stored state epoch is as high or higher.

        Raises FENCED_STATE_EPOCH if a later call of a group coordinator came first.
        """
        ...

    async def delete(self, share_partition: SharePartitionId, order: CallOrder) -> None:
        """Deletes a state. Raises FENCED_STATE_EPOCH if a later call came first."""
        ...

    async def summary(self, share_partition: SharePartitionId) -> StateSummary | None:
        """Returns None if there is no state."""
        ...
