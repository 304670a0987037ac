"""What is durable about the copies of one partition of a delay topic. Pure.

The cursor (`schedule.cursor`) says which records have been copied to the target: all below its
floor, and those that it has promoted. A plan is durable before its batches
are sent: which records each batch has, and under which producer id, epoch and sequence numbers. So
a new leader sends the same batches again, and the target recognizes those that it has.

A target partition remembers the last five batches of a producer. So a plan has at most
`BATCHES_MAX` batches, and the next plan is stored when all of them have been written.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.schedule.cursor import DueEntry, ScheduleCursor

BATCHES_MAX: Final = 5
"""As many batches of a producer are recognized by a partition."""
_EPOCH_MAX: Final = (1 << 15) - 1
_SEQUENCE_MASK: Final = (1 << 31) - 1


class Target(NamedTuple):
    topic_id: bytes
    partition: int


NO_TARGET: Final = Target(bytes(16), -1)


def is_copied(cursor: ScheduleCursor, entry: DueEntry) -> bool:
    """Returns whether the cursor has passed a record. It has passed all below its floor."""
    return entry.offset < cursor.floor or cursor.has_promoted(entry)


class PlannedBatch(NamedTuple):
    """A batch of copies. It may have been sent, and may have been written."""

    offsets: tuple[int, ...]
    """Of the records, in the order of the batch."""
    after: ScheduleCursor
    """The cursor once the batch has been written."""
    made_ms: int
    """When the batch was planned. It is the timestamp of the copies."""


class CopyState(NamedTuple):
    cursor: ScheduleCursor
    """It does not include the planned batches."""
    end_epoch: int = -1
    """The leader epoch of the last record before `end`, of the last cursor. -1: there is none."""
    target: Target = NO_TARGET
    """Where the planned batches go."""
    producer_id: int = -1
    producer_epoch: int = 0
    sequence: int = 0
    """Of the first record of the first planned batch, or of the next one."""
    is_broken: bool = False
    """The sequence numbers after the planned batches may be in use: a new epoch comes next."""
    planned: tuple[PlannedBatch, ...] = ()

    @property
    def last_cursor(self) -> ScheduleCursor:
        return self.planned[-1].after if self.planned else self.cursor

    def written(self, count: int) -> CopyState:
        """The first batches of the plan have been written."""
        if not count:
            return self
        done = self.planned[:count]
        records = sum(len(batch.offsets) for batch in done)
        return self._replace(
            cursor=done[-1].after,
            sequence=(self.sequence + records) & _SEQUENCE_MASK,
            planned=self.planned[count:],
        )

    def sequences(self) -> list[int]:
        """Returns the first sequence number of each planned batch."""
        found: list[int] = []
        sequence = self.sequence
        for batch in self.planned:
            found.append(sequence)
            sequence = (sequence + len(batch.offsets)) & _SEQUENCE_MASK
        return found

    def in_new_epoch(self, target: Target) -> CopyState:
        """Numbers the planned batches again. None of them is in the target.

        It is stored before any of them is sent. A producer id has a limited number of epochs, so
        another one may be needed.
        """
        begun = self._replace(target=target, sequence=0, is_broken=False)
        if self.producer_id < 0 or self.producer_epoch == _EPOCH_MAX:
            return begun._replace(producer_id=-1, producer_epoch=0)
        return begun._replace(producer_epoch=self.producer_epoch + 1)

    def without_batches_from(self, index: int) -> CopyState:
        """Records of this planned batch are gone, so it cannot be built again."""
        return self._replace(planned=self.planned[:index], is_broken=True)

    def cut(self, offset: int, end_epoch: int) -> CopyState:
        """The log has lost the records from an offset on. `end_epoch` wrote the one before."""
        whole = 0
        for batch in self.planned:
            if any(each >= offset for each in batch.offsets):
                break
            whole += 1
        kept = tuple(
            batch._replace(after=batch.after.truncated(offset)) for batch in self.planned[:whole]
        )
        return self._replace(
            cursor=self.cursor.truncated(offset),
            end_epoch=end_epoch,
            planned=kept,
            is_broken=self.is_broken or whole < len(self.planned),
        )


def lost_from(state: CopyState, log_epoch: int, epoch_end: int, log_end: int) -> int | None:
    """Returns the first offset that an unclean election has lost. None: the log has all records.

    `log_epoch` is the largest leader epoch in the log up to `state.end_epoch`, and `epoch_end` the
    offset after it; -1 if the log has none. If it is an earlier epoch than the stored one, it is
    unknown where the logs part. Then everything from the floor on counts as lost, and is copied
    again.
    """
    cursor, end = state.last_cursor, log_end
    if -1 not in (log_epoch, state.end_epoch):
        end = min(end, epoch_end)
        if log_epoch < state.end_epoch:
            return min(end, state.cursor.floor)
    return end if cursor.end > end else None
