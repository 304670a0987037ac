"""Aborted transactions in the log: the `.txnindex` of each segment during all operations on a
segment, and what a reader of committed records gets."""

from __future__ import annotations

import pytest

from penstock.cli.log_items import BadFile, walk
from penstock.partition.producers import ProducerStates
from penstock.partition.transactions import AbortedEntry, decode_entries, encode_entries
from penstock.records.aborted import AbortedProducers, AbortedTransaction
from penstock.records.batch import iter_batches
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)
from penstock.storage.aborted import AbortedIndex
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.producer_snapshots import note_producer
from penstock.storage.retain import apply_retention
from penstock.storage.verify import verify_directory

from .log_bench import NOW_MS, LogBench, each_interruption, new_bench


class Writers:
    """Transactional producers of one log, with their sequences."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._sequences: dict[int, int] = {}

    def write(self, producer_id: int, key: bytes = b"k", value: bytes | None = None) -> int:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        offset = self.log.end_offset
        batch = build_batch(
            [Record(0, NOW_MS + offset, key, value or b"%06d" % offset)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        self.log.append(batch, 0, NOW_MS + offset)
        return offset

    def end(self, producer_id: int, *, commit: bool = False) -> int:
        offset = self.log.end_offset
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        batch = control_batch(
            ControlMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=NOW_MS + offset,
        )
        self.log.append(batch, 0, NOW_MS + offset)
        return offset


def stable_of(log: Log) -> int:
    """Returns the last stable offset of a log that is replicated to its end."""
    return log.producers.last_stable_offset(log.end_offset, log.log_start_offset)


def committed(log: Log, start: int | None = None, bytes_max: int = 1 << 16) -> list[int]:
    """Returns the offsets that a reader of committed records gets, over several reads."""
    offset = log.log_start_offset if start is None else start
    wanted = offset
    found: list[int] = []
    while True:
        answer = log.read_committed(offset, bytes_max, stable_of(log))
        if answer is None:
            return [held for held in found if held >= wanted]
        data, aborted = answer
        assert isinstance(data, memoryview)
        reader = AbortedProducers(aborted)
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            if reader.passes(batch, header, 1 << 20):
                found += [record.offset for record in read_records(batch, header)]
            offset = header.next_offset


def entries_of(log: Log) -> list[AbortedEntry]:
    return log.aborted_entries(log.segments[0].base_offset, log.end_offset)


def derived(log: Log) -> list[AbortedEntry]:
    """Returns the aborted transactions that a replay of the whole log finds."""
    states, found = ProducerStates(), []
    for segment in log.segments:
        for position, header in segment.headers(0):
            if header.has_producer:
                batch = segment.read(position, 0, segment.size, header.size)
                ended = note_producer(states, batch, header, 0)
                if ended is not None and ended.aborted:
                    found.append(AbortedEntry.of(ended))
    return found


def check_entries(log: Log) -> None:
    """Checks the index after compaction: everything that a replay finds aborted is listed, with
    the same or an earlier first offset; and everything that is listed has its marker, since
    otherwise the producer's next records would be skipped."""
    found = {(entry.producer_id, entry.last_offset): entry for entry in entries_of(log)}
    for entry in derived(log):
        assert found[entry.producer_id, entry.last_offset].first_offset <= entry.first_offset
    markers = {
        (header.producer_id, header.base_offset)
        for segment in log.segments
        for _, header in segment.headers(0)
        if header.is_control and header.record_count
    }
    assert found.keys() <= markers


def some_history(log: Log) -> None:
    """Three segments with transactions aborted within one, aborted across two, committed, and one
    open."""
    writers = Writers(log)
    writers.write(1)
    writers.write(2)
    writers.end(1)
    writers.write(3)
    log.roll(NOW_MS)
    writers.write(1)
    writers.end(3, commit=True)
    writers.end(2)
    log.roll(NOW_MS)
    writers.end(1)
    writers.write(2)
    writers.write(4)
    writers.end(4)


SOME_ENTRIES = [
    AbortedEntry(1, 0, 2, 1),
    AbortedEntry(2, 1, 6, 4),
    AbortedEntry(1, 4, 7, 8),
    AbortedEntry(4, 9, 10, 8),
]
SOME_COMMITTED = [3]


def test_a_segment_lists_the_transactions_that_its_markers_aborted(bench: LogBench) -> None:
    """In the order of the markers, with the first offset in any segment. Committed and open
    transactions are not listed. Closed segments have the list in Kafka's file."""
    log = bench.create()
    some_history(log)
    assert entries_of(log) == SOME_ENTRIES == derived(log)
    assert bench.names(".txnindex") == [f"{0:020d}.txnindex", f"{4:020d}.txnindex"]
    first = bench.read_file(bench.path(f"{0:020d}.txnindex"))
    assert first == encode_entries(SOME_ENTRIES[:1])
    assert stable_of(log) == 8
    assert committed(log) == SOME_COMMITTED


def test_a_log_without_aborted_transactions_has_no_index(bench: LogBench) -> None:
    """Neither in memory nor as a file, after rolls, stops and recoveries."""
    log = bench.create()
    writers = Writers(log)
    writers.write(1)
    writers.end(1, commit=True)
    log.roll(NOW_MS)
    log = bench.reopen(log)
    log = bench.kill_and_open()
    assert bench.names(".txnindex") == []
    assert all(segment.aborted is None for segment in log.segments)
    assert committed(log) == [0]


def test_only_overlapping_transactions_are_listed(bench: LogBench) -> None:
    """A read gets the transactions of its own batches, and no others."""
    log = bench.create()
    writers = Writers(log)
    for producer_id in (1, 2, 3):
        writers.write(producer_id)
        writers.end(producer_id)
    log.append(build_batch([Record(0, NOW_MS, b"k", b"v")]), 0, NOW_MS)
    assert [held.producer_id for held in _aborted(log, 0, 1)] == [1]
    assert [held.producer_id for held in _aborted(log, 1, 1)] == [1]
    assert [held.producer_id for held in _aborted(log, 2, 1)] == [2]
    assert [held.producer_id for held in _aborted(log, 2, 1 << 16)] == [2, 3]
    assert _aborted(log, 6, 1 << 16) == []
    for offset in range(log.end_offset):
        assert committed(log, offset, 1) == [6]


def _aborted(log: Log, offset: int, bytes_max: int) -> list[AbortedTransaction]:
    answer = log.read_committed(offset, bytes_max, stable_of(log))
    assert answer is not None
    return answer[1]


def test_a_clean_restart_restores_the_lists(bench: LogBench) -> None:
    """From their files. Only what follows the last snapshot is replayed."""
    log = bench.create()
    some_history(log)
    log = bench.reopen(log)
    assert bench.report.clean
    assert entries_of(log) == SOME_ENTRIES
    assert committed(log) == SOME_COMMITTED
    Writers(log).end(2)
    log = bench.reopen(log)
    assert entries_of(log) == [*SOME_ENTRIES, AbortedEntry(2, 8, 11, 12)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_kill_loses_no_aborted_transaction(bench: LogBench, flushed: bool) -> None:
    """What is not in a known file is replayed, wherever its transaction began."""
    log = bench.create()
    some_history(log)
    if flushed:
        log.flush(checkpoint=True)
    log = bench.kill_and_open()
    assert entries_of(log) == SOME_ENTRIES
    log.flush(checkpoint=True)
    log = bench.kill_and_open()
    assert entries_of(log) == SOME_ENTRIES
    assert committed(log) == SOME_COMMITTED


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "empty"])
@pytest.mark.parametrize("base", [0, 4, 7])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_does_not_match_the_checkpoint_is_rebuilt(
    bench: LogBench, harm: str, base: int, clean: bool
) -> None:
    """If it were trusted, aborted records would pass for committed ones."""
    log = bench.create()
    some_history(log)
    log.flush(checkpoint=True)
    if clean:
        log.close()
    bench.kill()
    path = bench.path(f"{base:020d}.txnindex")
    if clean or base < 7:
        if harm == "flip":
            bench.flip_bit(path, 9)
        elif harm == "remove":
            bench.disk.unlink(path)
        else:
            data = bench.read_file(path)
            bench.write_file(path, data[:-34] if harm == "cut" else b"")
    log = bench.open()
    assert entries_of(log) == SOME_ENTRIES
    log = bench.reopen(log)
    assert entries_of(log) == SOME_ENTRIES
    data = bench.read_file(bench.path(f"{4:020d}.txnindex"))
    assert decode_entries(data) == SOME_ENTRIES[1:2]


def test_opening_after_a_stop_at_any_point_gives_the_same_lists() -> None:
    """A history with transactions is written, flushed, rolled and closed. It is stopped before any
    of its disk calls, by a kill or a power cut. The lists are those of a replay."""

    def prepare(bench: LogBench) -> object:
        log = bench.create(LogConfig(segment_bytes=400))
        writers = Writers(log)
        writers.write(1)
        log.flush()

        def live() -> None:
            some_history(log)
            log.flush(checkpoint=True)
            writers.end(2)
            log.close()

        return live

    for bench in each_interruption(prepare, power_loss_seeds=2):  # type: ignore[arg-type]
        for _ in range(2):
            log = bench.open()
            assert entries_of(log) == derived(log)
            bench.kill()


def test_a_truncation_removes_the_entries_of_its_markers() -> None:
    """Interrupted or not: a transaction that lost its marker is open again, and later entries are
    added after the remaining ones."""

    def prepare(bench: LogBench) -> object:
        log = bench.create()
        some_history(log)
        log.flush(checkpoint=True)
        return lambda: log.truncate_to(6)

    done = 0
    for bench in each_interruption(prepare, power_loss_seeds=2):  # type: ignore[arg-type]
        log = bench.open()
        assert entries_of(log) == derived(log)
        if log.end_offset == 6:
            done += 1
            assert entries_of(log) == SOME_ENTRIES[:1]
            assert stable_of(log) == 1
            Writers(log).end(1)
            log = bench.reopen(log)
            assert entries_of(log) == [SOME_ENTRIES[0], AbortedEntry(1, 4, 6, 1)]
    assert done


def test_a_truncation_of_a_running_log() -> None:
    """The truncated log is used without a restart, and then with one."""
    bench = new_bench()
    log = bench.create()
    some_history(log)
    log.truncate_to(2)
    assert entries_of(log) == []
    log = bench.reopen(log)
    assert entries_of(log) == []
    assert bench.names(".txnindex") == []
    Writers(log).end(2)
    assert entries_of(log) == [AbortedEntry(2, 1, 2, 0)]


def test_deleting_a_segment_deletes_its_index(bench: LogBench) -> None:
    """A transaction that began in a deleted segment is still listed by its remaining marker."""
    log = bench.create()
    some_history(log)
    log.delete_before(5)
    log.purge()
    assert bench.names(".txnindex") == [f"{4:020d}.txnindex"]
    assert entries_of(log) == SOME_ENTRIES[1:]
    log = bench.reopen(log)
    assert entries_of(log) == SOME_ENTRIES[1:]
    assert committed(log) == []


def test_a_log_that_starts_over_has_no_transactions(bench: LogBench) -> None:
    """No index of the old log is found by the new one."""
    log = bench.create()
    some_history(log)
    log.start_at(100)
    log.purge()
    assert entries_of(log) == []
    assert bench.names(".txnindex") == []


def test_retention_keeps_open_transactions(bench: LogBench) -> None:
    """However old it is: the segment where an open transaction began stays until the transaction
    ends."""
    log = bench.create(LogConfig(retention_ms=1))
    writers = Writers(log)
    writers.write(1)
    writers.end(1)
    log.roll(NOW_MS)
    writers.write(2)
    log.roll(NOW_MS)
    writers.write(3)
    later = NOW_MS + 10_000
    assert apply_retention(log, later, log.end_offset).delete == (0,)
    assert log.log_start_offset == 2
    writers.end(2)
    writers.end(3)
    assert apply_retention(log, later, log.end_offset).delete == (2, 3)


# Compaction


def test_verification_finds_nothing_wrong(bench: LogBench) -> None:
    """A log with transactions is sound, in use and stopped, and none of its files is unknown."""
    log = bench.create()
    some_history(log)
    log.flush(checkpoint=True)
    found = verify_directory(bench.disk, bench.directory, deep=True)
    assert found.sound
    assert not [held for held in found.findings if held.code != "not-stopped"]
    log.close()
    assert not verify_directory(bench.disk, bench.directory, deep=True).findings


@pytest.mark.parametrize("rot", ["not noted", "missing", "cut short"])
def test_verification_reports_a_list_that_is_replaced(bench: LogBench, rot: str) -> None:
    """The next start rebuilds it: a warning, and the log is sound."""
    log = bench.create()
    some_history(log)
    log.close()
    path = bench.path(f"{4:020d}.txnindex")
    if rot == "missing":
        bench.disk.unlink(path)
    else:
        data = encode_entries(SOME_ENTRIES[:2])
        bench.write_file(path, data if rot == "not noted" else data[:-1])
    found = verify_directory(bench.disk, bench.directory)
    assert found.sound
    assert [(held.code, held.path) for held in found.findings] == [("bad-transactions", path)]


@pytest.mark.parametrize("entries", [[], [AbortedEntry(2, 1, 6, 4), AbortedEntry(9, 5, 7, 8)]])
def test_verification_finds_a_wrong_list(bench: LogBench, entries: list[AbortedEntry]) -> None:
    """A list that matches the checkpoint is trusted, even if it has more or less than the
    markers."""
    log = bench.create()
    some_history(log)
    segment = log.segments[1]
    assert segment.aborted is not None
    segment.aborted = AbortedIndex(segment.files.aborted_path, entries)
    if entries:
        segment.aborted.write(log.pool)
    else:
        bench.disk.unlink(segment.files.aborted_path)
    log.close()
    found = verify_directory(bench.disk, bench.directory)
    assert not found.sound
    assert [held.code for held in found.findings] == ["wrong-transactions"]


def test_the_dump_shows_the_list(bench: LogBench) -> None:
    """Each aborted transaction is one line. A file that cannot be decoded is reported."""
    log = bench.create()
    some_history(log)
    log.close()
    path = bench.path(f"{4:020d}.txnindex")
    shown = list(walk(bench.disk, path, records=True, offset=0, maximum=None))
    assert shown[1:] == SOME_ENTRIES[1:2]
    bench.write_file(path, b"\1" * 34)
    shown = list(walk(bench.disk, path, records=True, offset=0, maximum=None))
    assert isinstance(shown[1], BadFile)
