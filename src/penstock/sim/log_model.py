"""What a partition's log must hold, as plain lists: the other half of every crash case.

The model knows three things the log under test cannot be asked about:

- `ledger`: every batch that was appended and neither truncated nor declared lost, as it was
  acknowledged. Deleting and compacting do not touch it: producer state is a replay of it.
- `contents`: the batches a reader must find. Equal to the ledger until compaction thins it out.
- `durable_end`: up to where a finished flush has promised that a power loss takes nothing.

When a process dies in the middle of an operation the outcome is open. `Outcome` is the set of
states that recovery may then come up with: any prefix of what was appended (the batches in flight
included) that keeps what was promised for this kind of death.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.partition.epochs import EpochStart, LeaderEpochs
from penstock.partition.producers import BATCHES_REMEMBERED, ProducerEntry, ProducerStates
from penstock.records.batch import BatchHeader, read_header
from penstock.records.record import Record, read_records
from penstock.storage.producer_state import note_producer


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A batch as it lies in the log, stamped."""

    data: bytes
    header: BatchHeader
    records: tuple[Record, ...]
    base_offset: int
    last_offset: int
    next_offset: int

    def __str__(self) -> str:
        return f"[{self.base_offset}, {self.last_offset}] of epoch {self.header.leader_epoch}"


@lru_cache(maxsize=4096)
def model_batch(stored: bytes) -> ModelBatch:
    """A sound batch; the same few are read again and again."""
    header = read_header(stored)
    return ModelBatch(
        stored,
        header,
        tuple(read_records(stored)),
        header.base_offset,
        header.last_offset,
        header.next_offset,
    )


@dataclass(slots=True)
class Outcome:
    """Which logs may come out of a crash."""

    ledger: list[ModelBatch]
    """What was appended, then what was being appended, in order."""
    contents: list[ModelBatch]
    end_min_kill: int
    end_min_power: int
    start_min: int
    start_max: int
    may_be_cleaned: bool
    """A compaction was under way: batches may be as they were, or thinned."""
    power_lost: bool = False

    @property
    def end_min(self) -> int:
        return self.end_min_power if self.power_lost else self.end_min_kill


@dataclass(slots=True)
class LogModel:
    log_start: int = 0
    end: int = 0
    durable_end: int = 0
    ledger: list[ModelBatch] = field(default_factory=list)
    contents: list[ModelBatch] = field(default_factory=list)
    compacted: bool = False

    # What happened

    def append(self, batch: ModelBatch) -> None:
        self.ledger.append(batch)
        self.contents.append(batch)
        self.end = batch.next_offset

    def flushed(self, end_offset: int) -> None:
        self.durable_end = max(self.durable_end, end_offset)

    def cut_point(self, offset: int) -> int:
        """The end of what a truncation to `offset` leaves: batches go whole."""
        left = [batch.next_offset for batch in self.contents if batch.next_offset <= offset]
        return left[-1] if left else 0

    def truncate(self, end: int) -> None:
        self._cut(end)
        self.end = max(end, self.log_start)
        self.durable_end = min(self.durable_end, end)

    def _cut(self, end: int) -> None:
        self.contents = [batch for batch in self.contents if batch.next_offset <= end]
        self.ledger = [batch for batch in self.ledger if batch.next_offset <= end]

    def delete_before(self, offset: int) -> None:
        self.log_start = max(self.log_start, offset)

    # Death

    def outcome(
        self,
        *,
        appending: Sequence[ModelBatch] = (),
        truncating_to: int | None = None,
        deleting_before: int | None = None,
        cleaning: bool = False,
    ) -> Outcome:
        kept = self.end if truncating_to is None else min(self.end, self.cut_point(truncating_to))
        start_max = self.log_start if deleting_before is None else deleting_before
        return Outcome(
            ledger=[*self.ledger, *appending],
            contents=[*self.contents, *appending],
            end_min_kill=kept,
            end_min_power=min(kept, self.durable_end),
            start_min=self.log_start,
            start_max=max(self.log_start, start_max),
            may_be_cleaned=cleaning,
        )

    def adopt(self, outcome: Outcome, log_start: int, end: int) -> None:
        """Go on from the state that recovery came up with, checked to be one of the outcome's."""
        self.ledger, self.contents = outcome.ledger, outcome.contents
        self._cut(end)
        self.log_start = log_start
        self.end = end
        self.durable_end = min(self.durable_end, end)

    # What follows from it

    def readable(self) -> list[ModelBatch]:
        """The batches at or above the log start; the first may begin before it."""
        return [batch for batch in self.contents if batch.last_offset >= self.log_start]

    def epochs(self) -> tuple[EpochStart, ...]:
        epochs = LeaderEpochs()
        for batch in self.ledger:
            epochs.assign(batch.header.leader_epoch, batch.base_offset)
        epochs.truncate_from_start(self.log_start)
        return tuple(entry for entry in epochs.entries if entry.start_offset < self.end)

    def producers(self) -> list[ProducerEntry]:
        """The state of all producers that the whole ledger adds up to."""
        states = ProducerStates()
        for batch in self.ledger:
            if batch.header.has_producer:
                note_producer(states, batch.data, batch.header)
        return states.entries(BATCHES_REMEMBERED)

    def first_unstable(self) -> int:
        """The first offset of an open transaction, else the end."""
        firsts = [entry.current_transaction_first_offset for entry in self.producers()]
        return min((first for first in firsts if first >= 0), default=self.end)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The first record, in offset order, that is as late."""
        for batch in self.readable():
            if batch.header.is_control:
                continue
            for record in batch.records:
                if record.timestamp >= timestamp_ms and record.offset >= self.log_start:
                    return record.offset, record.timestamp
        return None


def thinned_wrongly(
    before: Sequence[ModelBatch], after: Sequence[ModelBatch], uncleanable_offset: int, now_ms: int
) -> str | None:
    """What is wrong with `after` as a compaction of `before`, None if it is a right one."""
    left = {batch.base_offset: batch for batch in after}
    newest = {record.key: record.offset for batch in before for record in batch.records}
    oldest_left = {
        record.key: record.offset for batch in reversed(after) for record in reversed(batch.records)
    }
    for old in before:
        new = left.pop(old.base_offset, None)
        if new is not None and new.data == old.data:
            continue
        if old.next_offset > uncleanable_offset:
            return f"batch {old} at or above {uncleanable_offset} was compacted"
        if old.header.is_control:
            return f"the marker {old} was compacted"
        if new is not None and _identity(new.header) != _identity(old.header):
            return f"compaction turned {old.header} into {new.header}"
        kept = {record.offset: record for record in new.records} if new is not None else {}
        horizon_ms = old.header.delete_horizon_ms
        for record in old.records:
            found = kept.pop(record.offset, None)
            if found is not None and found != record:
                return f"compaction changed {record} to {found}"
            if found is not None or newest[record.key] > record.offset:
                continue
            if record.value is not None or horizon_ms is None or horizon_ms > now_ms:
                return f"compaction lost {record}, the newest of its key"
            if oldest_left.get(record.key, record.offset) < record.offset:
                return f"compaction dropped the tombstone {record} before what it deletes"
        if kept:
            return f"compaction invented {kept} in {old}"
    if left:
        return f"compaction invented batches at {sorted(left)}"
    return None


def _identity(header: BatchHeader) -> tuple[int, ...]:
    """What no compaction may change: offsets, leader epoch, producer."""
    return (
        header.base_offset,
        header.last_offset_delta,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
