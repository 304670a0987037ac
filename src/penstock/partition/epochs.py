"""Maps offsets to the leader epoch that wrote them (KIP-101, KIP-279).

A follower that rejoins asks where its last epoch ended in the leader's log, and truncates to there.
The answer must name the epoch that was actually found: after fast failovers, the requested epoch
may be unknown here.

Invariant: epochs and start offsets of the entries increase strictly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.wire.errors import ErrorCode, KafkaError

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The largest epoch at or below the requested one, and the first offset after it."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def first(self) -> EpochStart | None:
        return self._entries[0] if self._entries else None

    @property
    def latest(self) -> int:
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that `epoch` writes from `start_offset` on. Returns True if the entries changed.

        An entry that contradicts the new one (a later epoch, or a start offset that is not lower)
        belongs to a leader whose records, if it wrote any, are no longer in this log. It is
        removed.
        """
        if epoch <= UNDEFINED_EPOCH or (self._entries and self._entries[-1].epoch == epoch):
            return False
        while self._entries and (
            self._entries[-1].epoch > epoch or self._entries[-1].start_offset >= start_offset
        ):
            self._entries.pop()
        if not self._entries or self._entries[-1].epoch != epoch:
            self._entries.append(EpochStart(epoch, start_offset))
        return True

    def clear(self) -> bool:
        """Forgets everything. Returns True if there was anything."""
        changed = bool(self._entries)
        self._entries.clear()
        return changed

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forgets epochs that start at or after `end_offset`. Returns True if there were any."""
        kept = bisect_left(self._entries, end_offset, key=lambda entry: entry.start_offset)
        changed = kept < len(self._entries)
        del self._entries[kept:]
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forgets the epochs of deleted records, except that of the last one.

        A replica whose log ends at `start_offset` is compared by the epoch of its last record. This
        log no longer has that record, but must still know which epoch wrote it: the replica's own
        may never have been committed. Returns True if the entries changed.
        """
        last_deleted = start_offset - 1
        upto = bisect_right(self._entries, last_deleted, key=lambda entry: entry.start_offset)
        if upto == 0 or (upto == 1 and self._entries[0].start_offset == last_deleted):
            return False
        self._entries[:upto] = [EpochStart(self._entries[upto - 1].epoch, last_deleted)]
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Returns where `epoch` ended in this log; undefined if it is newer than all, or none is
        known."""
        if epoch == UNDEFINED_EPOCH or not self._entries:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self._entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        after = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if after == len(self._entries):
            # The caller knows a newer epoch than this log does.
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if after == 0:
            # It ended before the first epoch that is still known.
            return EpochEnd(epoch, self._entries[0].start_offset)
        return EpochEnd(self._entries[after - 1].epoch, self._entries[after].start_offset)

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch that wrote `offset`."""
        upto = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[upto - 1].epoch if upto else UNDEFINED_EPOCH


def diverging_epoch(
    epochs: LeaderEpochs, fetch_offset: int, last_fetched_epoch: int, log_end_offset: int
) -> EpochEnd | None:
    """Returns where a log that ends at `fetch_offset`, in that epoch, diverges from this one.

    Returns None if it does not. `epochs` must contain the leader's own epoch, which is noted when a
    leadership begins. An epoch that this log does not know raises OFFSET_OUT_OF_RANGE: the logs
    have nothing in common.
    """
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    first = epochs.first
    if (
        first is not None
        and last_fetched_epoch < first.epoch
        and fetch_offset == first.start_offset
    ):
        # This log was restarted there, and does not know which epoch wrote the offset before.
        return EpochEnd(last_fetched_epoch, fetch_offset - 1)
    found = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
    if found.epoch == UNDEFINED_EPOCH:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Leader epoch {last_fetched_epoch} is not in this log, which has the epochs "
            f"{[entry.epoch for entry in epochs.entries]}.",
        )
    if found.epoch < last_fetched_epoch or found.end_offset < fetch_offset:
        return found
    return None
