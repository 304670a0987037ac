"""Checks an open log against its model and against itself.

The checks hold whatever happened to the log before. A failed check raises `Broken` with a sentence
about what is wrong. The checks read through the log's ordinary calls. Only the indexes are read
directly, because a linear search can hide a wrong index for a long time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from penstock.partition.producer_state import ProducerEntry
from penstock.records.aborted import AbortedProducers
from penstock.records.batch import CorruptBatch, iter_batches
from penstock.records.record import read_records
from penstock.sim.crash.log_model import LogModel, ModelBatch, model_batch
from penstock.storage.errors import LogDamaged
from penstock.storage.index import ENTRY_SIZE, decode_entries
from penstock.storage.log import Log
from penstock.storage.segment import Segment
from penstock.storage.spans import FileSpan
from penstock.storage.timesearch import offset_for_time


class Broken(Exception):
    """The log broke a promise. The message says which."""


def read_batches(log: Log, offset: int, bytes_max: int, upper: int | None = None) -> list[bytes]:
    """Returns the batches of one read, after checking their CRCs again."""
    found = log.read(offset, bytes_max, upper)
    if found is None:
        return []
    try:
        return [
            bytes(found.data[position : position + header.size])
            for position, header in iter_batches(found.data)
        ]
    except CorruptBatch as error:
        raise Broken(f"a read at {offset} of {bytes_max} bytes gave a bad batch: {error}") from None


def read_all(log: Log, bytes_max: Callable[[], int]) -> tuple[list[ModelBatch], list[int]]:
    """Reads everything from the log start on, read by read. Returns the batches and the
    refused offsets."""
    batches: list[ModelBatch] = []
    refused: list[int] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        try:
            data = read_batches(log, offset, bytes_max())
        except LogDamaged:
            hole = [held for held in log.damage if held.start_offset <= offset < held.end_offset]
            if not hole:
                refused.append(offset)
            offset = hole[0].end_offset if hole else offset + 1
            continue
        if not data:
            break
        batches.extend(model_batch(stored) for stored in data)
        if batches[-1].next_offset <= offset:
            raise Broken(f"a read at {offset} gave {batches[-1]}, which ends before it")
        offset = batches[-1].next_offset
    return batches, refused


def check_bounds(log: Log) -> None:
    if not 0 <= log.log_start_offset <= log.end_offset:
        raise Broken(f"the log starts at {log.log_start_offset} and ends at {log.end_offset}")
    if log.recovery_point > log.end_offset:
        raise Broken(f"recovery point {log.recovery_point} is above the end {log.end_offset}")
    bases = [segment.base_offset for segment in log.segments]
    if sorted(set(bases)) != bases or log.active is not log.segments[-1]:
        raise Broken(f"segments are out of order: {bases}")
    if bases[0] > log.log_start_offset and log.log_start_offset < log.end_offset:
        raise Broken(f"the log starts at {log.log_start_offset} but its files at {bases[0]}")


def check_contents(
    log: Log,
    expected: Sequence[ModelBatch],
    found: Sequence[ModelBatch],
    refused: Sequence[int] = (),
) -> None:
    """Checks that the log has exactly the bytes that were appended, except at offsets that
    it refused."""

    def counts(batch: ModelBatch) -> bool:
        return not _in_hole(log, batch) and not any(
            batch.base_offset <= offset <= batch.last_offset for offset in refused
        )

    due = [batch for batch in expected if counts(batch)]
    got = [batch for batch in found if counts(batch)]
    for wanted, read in zip(due, got, strict=False):
        if wanted.data != read.data:
            same = "other bytes" if wanted.header[:3] == read.header[:3] else "another batch"
            raise Broken(f"{same}: {read} was read where {wanted} was appended")
    if len(due) > len(got):
        raise Broken(f"batch {due[len(got)]} is missing; the log ends at {log.end_offset}")
    if len(got) > len(due):
        raise Broken(f"batch {got[len(due)]} was read, but never appended there")


def _in_hole(log: Log, batch: ModelBatch) -> bool:
    return any(
        held.start_offset <= batch.last_offset and batch.base_offset < held.end_offset
        for held in log.damage
    )


def check_read(log: Log, model: LogModel, offset: int, bytes_max: int, upper: int | None) -> None:
    """Checks that one read returns consecutive batches of the model, from the one with the
    offset on."""
    got = read_batches(log, offset, bytes_max, upper)
    bound = log.end_offset if upper is None else min(upper, log.end_offset)
    due = [batch for batch in model.readable() if batch.last_offset >= offset]
    wanted = [batch.data for batch in due if batch.last_offset < bound]
    if got != wanted[: len(got)]:
        raise Broken(f"a read at {offset} below {bound} did not return the next batches")
    if not got and wanted and offset < bound:
        raise Broken(f"a read at {offset} below {bound} returned nothing instead of {due[0]}")
    if len(got) > 1 and sum(map(len, got)) > bytes_max:
        raise Broken(f"a read of at most {bytes_max} bytes returned {sum(map(len, got))}")


def check_committed(log: Log, model: LogModel, offset: int, bytes_max: int) -> None:
    """Checks that a reader of committed records finds exactly the committed ones, from an offset up
    to the first undecided one."""
    end = log.end_offset
    stable = log.producers.last_stable_offset(end, log.log_start_offset)
    due = model.stable_end(end)
    if stable != due and due >= log.log_start_offset:
        raise Broken(f"the last stable offset is {stable} and should be {due}")
    aborted = model.aborted()
    wanted = [
        record.offset
        for batch in model.readable()
        if batch.last_offset < stable and not batch.header.is_control
        for record in batch.records
        if record.offset >= offset and batch.base_offset not in aborted
    ]
    got: list[int] = []
    at = offset
    while (found := log.read_committed(at, bytes_max, stable)) is not None:
        data, listed = found
        if isinstance(data, FileSpan):
            raise Broken("a read that did not allow spans returned one")
        reader = AbortedProducers(listed)
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            if reader.passes(batch, header, 1 << 20):
                got += [record.offset for record in read_records(batch) if record.offset >= offset]
            at = header.next_offset
    if got != wanted:
        raise Broken(f"from {offset} to {stable} {wanted} are committed, but {got} were read")


def check_time(log: Log, model: LogModel, timestamp_ms: int) -> None:
    found = offset_for_time(log, timestamp_ms)
    wanted = model.offset_for_time(timestamp_ms)
    if found != wanted:
        raise Broken(f"the first record at {timestamp_ms} is {wanted}, but the log found {found}")


def check_indexes(log: Log, *, rotted: bool) -> None:
    """Checks that every index entry refers to an existing batch, and that entries increase.

    Rot in an index file is noticed only when the entry is used, and the entry is never trusted
    then. The checks of reads cover that.
    """
    for segment in () if rotted else log.segments:
        starts = {
            position: header.last_offset - segment.base_offset
            for position, header in segment.headers(0)
        }
        for entry in _offset_entries(log, segment):
            position = entry & 0xFFFFFFFF
            if starts.get(position) != entry >> 32:
                raise Broken(
                    f"{segment.index.path} says offset {segment.base_offset + (entry >> 32)} ends "
                    f"the batch at {position}; {starts.get(position)} (relative) does"
                )
        _check_time_index(segment)


def _offset_entries(log: Log, segment: Segment) -> list[int]:
    index = segment.index
    entries: list[int] = []
    if index.spilled:
        file = log.pool.get(index.path)
        entries.extend(decode_entries(file.pread(index.spilled * ENTRY_SIZE, 0)))
        if len(entries) != index.spilled:
            raise Broken(f"{index.path} has {len(entries)} of {index.spilled} entries")
    entries.extend(index.tail)
    if entries != sorted(set(entries)):
        raise Broken(f"entries of {index.path} do not rise: {entries}")
    return entries


def _check_time_index(segment: Segment) -> None:
    entries = segment.time_index.entries()
    for before, after in pairwise(entries):
        if before[0] >= after[0] or before[1] >= after[1]:
            raise Broken(f"{segment.time_index.path} does not increase: {before} before {after}")
    highest = -1
    seen: dict[tuple[int, int], None] = {}
    for _, header in segment.headers(0):
        if header.max_timestamp > highest:
            highest = header.max_timestamp
            seen[highest, header.last_offset - segment.base_offset] = None
    for entry in entries:
        if entry not in seen:
            raise Broken(f"{segment.time_index.path} has {entry}, but no batch has that time")
    if segment.largest_timestamp() != highest:
        raise Broken(f"{segment.path} has time {highest}, but says {segment.largest_timestamp()}")


def check_epochs(log: Log, model: LogModel) -> None:
    """Checks where each leader epoch began, except for one that has no record yet."""
    entries = [entry for entry in log.epochs.entries if entry.start_offset < log.end_offset]
    batches = [
        batch
        for batch in model.ledger
        if batch.last_offset >= log.log_start_offset and batch.next_offset <= log.end_offset
    ]
    epochs = sorted({batch.header.leader_epoch for batch in batches})
    # An epoch may be stored without a record, or all its records may be gone. That does no harm as
    # long as no batch of another epoch is in its range.
    if not {*epochs} <= {entry.epoch for entry in entries}:
        raise Broken(f"leader epochs are {entries}, those of the batches {model.epochs()}")
    for batch in batches:
        first = max(batch.base_offset, log.log_start_offset)
        if (
            not log.epochs.epoch_at(first)
            == batch.header.leader_epoch
            == log.epochs.epoch_at(batch.last_offset)
        ):
            raise Broken(f"leader epochs are {entries}, but one of the batches is {batch}")


def check_producers(log: Log, model: LogModel) -> None:
    """Checks that the producer states equal those of a replay. State below the log start
    may be forgotten, and batches that compaction removed may be missing among a producer's
    older batches."""
    wanted = _by_producer(model.producers())
    found = _by_producer(log.producers.entries(5))
    for producer_id, entries in found.items():
        if producer_id not in wanted:
            raise Broken(f"producer {producer_id} never wrote, but has state {entries}")
    start = log.log_start_offset
    left = {batch.last_offset for batch in model.contents}
    for producer_id, due in wanted.items():
        batches = [
            batch.last_offset for batch in model.ledger if batch.header.producer_id == producer_id
        ]
        here = found.get(producer_id)
        if model.compacted and batches[-1] not in left:
            # Truncated back to a batch that compaction had removed when it was not the last one.
            continue
        if here is None:
            if batches[-1] >= start:
                raise Broken(f"producer {producer_id} wrote {batches[-1]}, but has no state")
            continue
        if batches[-1] >= start:
            _check_producer(producer_id, due, here, start, compacted=model.compacted)


def _by_producer(entries: Sequence[ProducerEntry]) -> dict[int, list[ProducerEntry]]:
    grouped: dict[int, list[ProducerEntry]] = {}
    for entry in entries:
        grouped.setdefault(entry.producer_id, []).append(entry)
    return grouped


def _check_producer(
    producer_id: int,
    wanted: Sequence[ProducerEntry],
    found: Sequence[ProducerEntry],
    log_start: int,
    *,
    compacted: bool,
) -> None:
    last, due = found[-1], wanted[-1]
    # A marker or the beginning of a transaction below the log start may be deleted with
    # its segment.
    if due.current_transaction_first_offset < log_start:
        due = due._replace(current_transaction_first_offset=last.current_transaction_first_offset)
    if (log_start > 0 or compacted) and last.coordinator_epoch < 0:
        due = due._replace(coordinator_epoch=last.coordinator_epoch)
    if due.last_offset < log_start:
        due = due._replace(
            last_sequence=last.last_sequence,
            last_offset=last.last_offset,
            offset_delta=last.offset_delta,
        )
    if compacted:
        # The newest record of the batch may be gone, and its timestamp with it.
        due = due._replace(timestamp=last.timestamp)
    if last != due:
        raise Broken(f"producer {producer_id} is {last} and should be {due}")
    offsets = [entry.last_offset for entry in found if entry.last_offset >= 0]
    history = [entry.last_offset for entry in wanted]
    if not compacted and offsets != history[len(history) - len(offsets) :]:
        raise Broken(f"producer {producer_id} remembers {offsets}, not the last of {history}")
    missing = [at for at in history if at >= log_start and at not in offsets]
    if missing and not compacted:
        raise Broken(f"producer {producer_id} remembers {offsets} and forgot {missing}")
