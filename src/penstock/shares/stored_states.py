"""The states that a share coordinator has in one partition of its log: the result of its records.

A live coordinator applies a record when it is committed, and a new coordinator applies the same
records when it loads, so both have the same states.

The states are kept in the order of their last snapshots. Nothing below the first of these is
needed any more. Among them are deletion markers: states that were deleted, of which only the order
of the deletion is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.shares.formats import Entry, OrderNote, ReadNote, Snapshot
from penstock.shares.image import ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.states import DONE


@dataclass(slots=True)
class StoredState:
    """The state of one share partition."""

    image: ShareImage
    leader_epoch: int
    """The leader epoch of the last leader that has read the state. -1: none has."""
    read_offset: int
    """Where the record of that read is. Writes must name it."""
    snapshot_offset: int
    """Where the last snapshot is."""
    order: CallOrder
    """The last initialization or deletion."""
    deleted_ms: int = 0
    """When it was deleted, on the wall clock. 0: it was not."""
    updates: int = 0
    """How many records follow the last snapshot, or the last attempt to append one."""

    def snapshot(self) -> Snapshot:
        last = (self.leader_epoch, self.read_offset, self.order, self.deleted_ms)
        return Snapshot(self.image, *last)

    def summary(self) -> StateSummary:
        image = self.image
        done = sum(span.last - span.first + 1 for span in image.spans if span.state in DONE)
        promoted = sum(span.last - span.first + 1 for span in image.promoted)
        return StateSummary(
            image.state_epoch, self.leader_epoch, image.start_offset, done, promoted
        )


class StoredStates:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._states: dict[SharePartitionId, StoredState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[SharePartitionId]:
        return iter(self._states)

    @property
    def live_count(self) -> int:
        """The number of states that are not deleted."""
        return sum(not state.deleted_ms for state in self._states.values())

    def get(self, share_partition: SharePartitionId) -> StoredState | None:
        """Returns the state; None if there is none, or it was deleted."""
        state = self._states.get(share_partition)
        return None if state is None or state.deleted_ms else state

    def find(self, share_partition: SharePartitionId) -> StoredState | None:
        """Returns the state, or its deletion marker."""
        return self._states.get(share_partition)

    def items(self) -> Iterator[tuple[SharePartitionId, StoredState]]:
        """Yields the states and deletion markers, those with the oldest snapshots first."""
        return iter(self._states.items())

    def apply(self, entry: Entry, offset: int) -> None:
        """Applies the record at this offset of the log.

        A delta or read without a snapshot is skipped: its share partition was removed before, or
        the snapshot that it followed, and so this record, is not needed any more.
        """
        share_partition, content = entry
        if content is None:
            self._states.pop(share_partition, None)
        elif isinstance(content, Snapshot):
            self._states.pop(share_partition, None)
            image, leader_epoch, read_offset, order, deleted_ms = content
            state = StoredState(image.copy(), leader_epoch, read_offset, offset, order, deleted_ms)
            self._states[share_partition] = state
        elif (found := self._states.get(share_partition)) is not None:
            found.updates += 1
            if isinstance(content, ReadNote):
                found.leader_epoch, found.read_offset = content.leader_epoch, offset
            elif isinstance(content, OrderNote):
                found.order = content.order
            else:
                found.image.apply(content)

    def needed_from(self, end_offset: int) -> int:
        """Returns the offset below which no record is needed. `end_offset` is the log's end."""
        for state in self._states.values():
            return state.snapshot_offset
        return end_offset
