"""A model of what a partition's log must contain, as plain lists, for the checks of crash cases.

The model knows three things that the log under test cannot be asked for:

- `ledger`: every batch that was appended and neither truncated nor declared lost, as it was
  acknowledged. Deletion and compaction do not change it: producer state is a replay of it.
- `contents`: the batches that a reader must find. Equal to the ledger until compaction removes
  some.
- `durable_end`: up to where a finished flush has promised that a power loss loses nothing.

When a process dies in the middle of an operation, the result is open. `Outcome` is the set of
states that recovery may then produce: any prefix of what was appended (including the batches that
were being appended) that keeps what was promised for this kind of crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.partition.epochs import EpochStart, LeaderEpochs
from penstock.partition.producer_state import BATCHES_REMEMBERED, ProducerEntry
from penstock.partition.producers import ProducerStates
from penstock.records.batch import BatchHeader, read_header
from penstock.records.record import ControlType, Record, read_control, read_records
from penstock.storage.producer_snapshots import note_producer


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A batch as it is stored in the log, stamped."""

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
    """Parses a valid batch. Cached, because the same few are read again and again."""
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
    """The set of logs that may result from a crash."""

    ledger: list[ModelBatch]
    """What was appended, then what was being appended, in order."""
    contents: list[ModelBatch]
    end_min_kill: int
    end_min_power: int
    start_min: int
    start_max: int
    may_be_cleaned: bool
    """A compaction was in progress: batches may be as before, or compacted."""
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

    # Operations

    def append(self, batch: ModelBatch) -> None:
        self.ledger.append(batch)
        self.contents.append(batch)
        self.end = batch.next_offset

    def flushed(self, end_offset: int) -> None:
        self.durable_end = max(self.durable_end, end_offset)

    def cut_point(self, offset: int) -> int:
        """Returns where the log ends after a truncation to `offset`: batches are removed whole."""
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

    # Crashes

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
        """Continues from the state that recovery produced, which was checked to be allowed by
        the outcome."""
        self.ledger, self.contents = outcome.ledger, outcome.contents
        self._cut(end)
        self.log_start = log_start
        self.end = end
        self.durable_end = min(self.durable_end, end)

    # Derived state

    def readable(self) -> list[ModelBatch]:
        """Returns the batches at or above the log start. The first may begin before it."""
        return [batch for batch in self.contents if batch.last_offset >= self.log_start]

    def epochs(self) -> tuple[EpochStart, ...]:
        epochs = LeaderEpochs()
        for batch in self.ledger:
            epochs.assign(batch.header.leader_epoch, batch.base_offset)
        epochs.truncate_from_start(self.log_start)
        return tuple(entry for entry in epochs.entries if entry.start_offset < self.end)

    def producers(self) -> list[ProducerEntry]:
        """Returns the state of all producers after a replay of the whole ledger."""
        states = ProducerStates()
        for batch in self.ledger:
            if batch.header.has_producer:
                note_producer(states, batch.data, batch.header, 0)
        return states.entries(BATCHES_REMEMBERED)

    def stable_end(self, high_watermark: int) -> int:
        """Returns where reads of committed records end: the first offset of a transaction that is
        open, or whose marker is not below the high watermark."""
        firsts = [first for first, last in self._transactions() if last >= high_watermark]
        return min([*firsts, high_watermark])

    def _transactions(self) -> list[tuple[int, int]]:
        """Returns the first offset and the marker's offset of each transaction. An open transaction
        has a very large marker offset."""
        found: list[tuple[int, int]] = []
        begun: dict[int, int] = {}
        for batch in self.ledger:
            header = batch.header
            if header.is_control:
                first = begun.pop(header.producer_id, None)
                if first is not None:
                    found.append((first, batch.base_offset))
            elif header.is_transactional:
                begun.setdefault(header.producer_id, batch.base_offset)
        return [*found, *((first, 2**63) for first in begun.values())]

    def aborted(self) -> set[int]:
        """Returns the base offsets of the batches that belong to aborted transactions."""
        found: set[int] = set()
        begun: dict[int, list[int]] = {}
        for batch in self.ledger:
            header = batch.header
            if header.is_control:
                members = begun.pop(header.producer_id, [])
                if read_control(batch.records[0]).type == ControlType.ABORT:
                    found.update(members)
            elif header.is_transactional:
                begun.setdefault(header.producer_id, []).append(batch.base_offset)
        return found

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Returns the first record, in offset order, with this timestamp or a later one."""
        for batch in self.readable():
            if batch.header.is_control:
                continue
            for record in batch.records:
                if record.timestamp >= timestamp_ms and record.offset >= self.log_start:
                    return record.offset, record.timestamp
        return None


def thinned_wrongly(
    before: Sequence[ModelBatch],
    after: Sequence[ModelBatch],
    uncleanable_offset: int,
    now_ms: int,
    aborted: Collection[int] = (),
) -> str | None:
    """Returns what is wrong with `after` as a compaction of `before`, or None if it is correct.
    `aborted` has the base offsets of aborted batches: they may be removed, and do not supersede
    other records."""
    left = {batch.base_offset: batch for batch in after}
    newest = {record.key: record.offset for record in _counting(before, aborted)}
    oldest_left = {record.key: record.offset for record in reversed(_counting(after, aborted))}
    begun: set[int] = set()
    for old in before:
        new = left.pop(old.base_offset, None)
        wrong = None
        if new is not None and new.data == old.data:
            pass
        elif old.next_offset > uncleanable_offset:
            wrong = f"batch {old} at or above {uncleanable_offset} was compacted"
        elif new is not None and _identity(new.header) != _identity(old.header):
            wrong = f"compaction turned {old.header} into {new.header}"
        elif old.header.is_control:
            wrong = _marker_wrongly(old, new, now_ms, is_needed=old.header.producer_id in begun)
        else:
            is_aborted = old.base_offset in aborted
            wrong = _batch_wrongly(old, new, newest, oldest_left, now_ms, is_aborted=is_aborted)
        if wrong is not None:
            return wrong
        if old.header.is_control:
            begun.discard(old.header.producer_id)
        elif old.header.is_transactional:
            begun.add(old.header.producer_id)
    if left:
        return f"compaction invented batches at {sorted(left)}"
    return None


def _counting(batches: Sequence[ModelBatch], aborted: Collection[int]) -> list[Record]:
    return [
        record
        for batch in batches
        if not batch.header.is_control and batch.base_offset not in aborted
        for record in batch.records
    ]


def _marker_wrongly(
    old: ModelBatch, new: ModelBatch | None, now_ms: int, *, is_needed: bool
) -> str | None:
    """Checks a marker. It gets a delete horizon once no batch of its transaction is left, and is
    removed later."""
    if is_needed:
        return f"the marker {old} was compacted before the batches of its transaction"
    if new is not None and new.records == old.records:
        return None
    horizon_ms = old.header.delete_horizon_ms
    gone = new is None or not new.records
    if gone and (not old.records or (horizon_ms is not None and horizon_ms <= now_ms)):
        return None
    return f"the marker {old} was compacted too early"


def _batch_wrongly(
    old: ModelBatch,
    new: ModelBatch | None,
    newest: Mapping[bytes | None, int],
    oldest_left: Mapping[bytes | None, int],
    now_ms: int,
    *,
    is_aborted: bool,
) -> str | None:
    kept = {record.offset: record for record in new.records} if new is not None else {}
    horizon_ms = old.header.delete_horizon_ms
    for record in old.records:
        found = kept.pop(record.offset, None)
        if found is not None and found != record:
            return f"compaction changed {record} to {found}"
        if found is not None or is_aborted or newest[record.key] > record.offset:
            continue
        if record.value is not None or horizon_ms is None or horizon_ms > now_ms:
            return f"compaction lost {record}, the newest of its key"
        if oldest_left.get(record.key, record.offset) < record.offset:
            return f"compaction removed the tombstone {record} before the records it deletes"
    return f"compaction invented {kept} in {old}" if kept else None


def _identity(header: BatchHeader) -> tuple[int, ...]:
    """Returns what compaction must not change: offsets, leader epoch, producer."""
    return (
        header.base_offset,
        header.last_offset_delta,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
