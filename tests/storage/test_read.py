"""Reading: whole batches from an offset, as they are in the file."""

from __future__ import annotations

from errno import EIO
from typing import cast

import pytest

from penstock.ports import File
from penstock.records.batch import iter_batches
from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged, LogOffline, OffsetOutOfRange, StorageError
from penstock.storage.log_reader import LogSlice

from .log_bench import LogBench, append, append_batch, offsets_of, record, records_of

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)


def bases(piece: LogSlice | None) -> list[int]:
    return [] if piece is None else [header.base_offset for _, header in iter_batches(piece.data)]


def test_a_read_returns_as_many_whole_batches_as_fit(bench: LogBench) -> None:
    """At most the requested bytes, never a part of a batch."""
    log = bench.create()
    append(log, 10)
    assert bases(log.read(2, 3 * BATCH_BYTES)) == [2, 3, 4]
    assert bases(log.read(2, 4 * BATCH_BYTES - 1)) == [2, 3, 4]
    assert bases(log.read(2, 1 << 20)) == list(range(2, 10))


@pytest.mark.parametrize("bytes_max", [0, 1, BATCH_BYTES - 1])
def test_the_first_batch_is_returned_even_if_it_is_larger(bench: LogBench, bytes_max: int) -> None:
    """Otherwise a reader with a small limit could not get past a large batch."""
    log = bench.create()
    append(log, 3)
    assert bases(log.read(1, bytes_max)) == [1]


def test_the_batch_that_contains_the_offset_is_returned_whole(bench: LogBench) -> None:
    """Batches are never split or decompressed."""
    log = bench.create()
    append_batch(log, 5)
    append_batch(log, 5)
    assert bases(log.read(7, 0)) == [5]
    assert bases(log.read(4, 0)) == [0]


def test_a_slice_gives_its_position(bench: LogBench) -> None:
    """The bytes are those of the file at this position."""
    log = bench.create(SEGMENTED)
    append(log, 25)
    piece = log.read(13, 2 * BATCH_BYTES)
    assert piece is not None
    assert (piece.segment_base, piece.position) == (10, 3 * BATCH_BYTES)
    data = bench.read_file(bench.log_path(10))
    assert data[piece.position :].startswith(piece.data)


def test_a_read_ends_with_its_segment(bench: LogBench) -> None:
    """A slice is one piece of one file. The next read continues in the next file."""
    log = bench.create(SEGMENTED)
    append(log, 25)
    assert bases(log.read(8, 1 << 20)) == [8, 9]
    assert bases(log.read(10, 1 << 20)) == list(range(10, 20))


def test_a_read_at_the_end_returns_none(bench: LogBench) -> None:
    """A reader may wait at the end offset. It is not an error."""
    log = bench.create()
    assert log.read(0, 100) is None
    append(log, 3)
    assert log.read(3, 100) is None


@pytest.mark.parametrize("offset", [-1, 1, 6, 100])
def test_an_offset_outside_the_log_is_out_of_range(bench: LogBench, offset: int) -> None:
    """Below the start or above the end. The error contains both, and says where to seek."""
    log = bench.create()
    append(log, 5)
    log.delete_before(2)
    with pytest.raises(OffsetOutOfRange, match="seek to its beginning or its end") as caught:
        log.read(offset, 100)
    error = caught.value
    assert (error.offset, error.start_offset, error.end_offset) == (offset, 2, 5)


@pytest.mark.parametrize("config", [LogConfig(), SEGMENTED])
def test_no_batch_above_the_upper_bound_is_returned(bench: LogBench, config: LogConfig) -> None:
    """A reader gets no batch with an offset at or above the high watermark."""
    log = bench.create(config)
    append(log, 25)
    for upper in range(26):
        for offset in range(26):
            found = bases(log.read(offset, 1 << 20, upper))
            assert all(base < upper for base in found)
            assert bool(found) == (offset < upper)


def test_a_batch_that_spans_the_bound_is_not_returned(bench: LogBench) -> None:
    """A batch is returned whole or not at all."""
    log = bench.create()
    append_batch(log, 5)
    append_batch(log, 5)
    assert bases(log.read(0, 1 << 20, 7)) == [0]
    assert log.read(5, 1 << 20, 7) is None
    assert bases(log.read(5, 1 << 20, 10)) == [5]


@pytest.mark.parametrize("interval", [0, 1, BATCH_BYTES, 3 * BATCH_BYTES, 1 << 20])
def test_every_offset_is_found_with_any_index_interval(bench: LogBench, interval: int) -> None:
    """The index only makes reads faster: live, reopened and recovered logs read the same."""
    log = bench.create(LogConfig(segment_bytes=20 * BATCH_BYTES, index_interval_bytes=interval))
    append(log, 30)
    append_batch(log, 7)
    append(log, 10)

    def check() -> None:
        for offset in range(47):
            piece = log.read(offset, 3 * BATCH_BYTES)
            assert piece is not None
            first = next(iter_batches(piece.data))[1]
            assert first.base_offset <= offset <= first.last_offset
            assert len(piece.data) <= max(3 * BATCH_BYTES, first.size)
        assert [held.offset for held in records_of(log, bytes_max=500)] == list(range(47))

    check()
    log = bench.reopen(log)
    check()
    append(log)
    log = bench.kill_and_open()
    log.truncate_to(47)
    check()


def test_bad_bytes_are_never_served(bench: LogBench) -> None:
    """Bytes not read since startup are checked first. The valid batches before them are
    returned."""
    log = bench.create()
    append(log, 10)
    log.close()
    bench.flip_bit(bench.log_path(), 5 * BATCH_BYTES + 70)
    log = bench.open()
    assert bench.report.clean
    assert bases(log.read(2, 1 << 20)) == [2, 3, 4]
    with pytest.raises(LogDamaged, match="read from another replica, or restore the file"):
        log.read(5, 1 << 20)


@pytest.mark.parametrize("byte", range(12))
def test_a_bad_header_never_returns_the_wrong_batch(bench: LogBench, byte: int) -> None:
    """The CRC does not cover offset and length: a reader gets the right batch, or a
    `StorageError`."""
    log = bench.create(LogConfig(index_interval_bytes=2 * BATCH_BYTES))
    append(log, 10)
    log.close()
    bench.flip_bit(bench.log_path(), 5 * BATCH_BYTES + byte, 7 if byte in (0, 8) else 1)
    log = bench.open()
    for offset in range(10):
        for bytes_max in (0, 2 * BATCH_BYTES, 7 * BATCH_BYTES - 1, 1 << 20):
            try:
                piece = log.read(offset, bytes_max)
            except StorageError:
                assert offset >= 5
            else:
                assert bases(piece)[:1] == [offset]


def test_a_read_error_raises_storage_error(bench: LogBench) -> None:
    """A sector that cannot be read must not crash the broker."""
    log = bench.create()
    append(log, 3)
    bench.sim.fail_next("pread", EIO)
    with pytest.raises(StorageError):
        log.read(1, 100)


def test_a_closed_log_refuses_all_calls(bench: LogBench) -> None:
    """The error gives the reason."""
    log = bench.create()
    append(log)
    log.close()
    with pytest.raises(LogOffline, match="it was closed"):
        log.read(0, 1)
    with pytest.raises(LogOffline, match="it was closed"):
        append(log)
    with pytest.raises(LogOffline, match="it was closed"):
        log.flush()


def test_records_are_read_from_real_files(real_bench: LogBench) -> None:
    real_bench.config = SEGMENTED
    log = real_bench.create()
    append(log, 35)
    assert offsets_of(log) == list(range(35))
    log = real_bench.reopen(log)
    assert real_bench.report.clean
    assert offsets_of(log) == list(range(35))


def test_an_append_does_not_mark_earlier_bytes_as_verified(bench: LogBench) -> None:
    """After a clean restart old bytes are checked when they are first read, with or without
    appends."""
    log = bench.create()
    append(log, 10)
    log.close()
    bench.kill()
    bench.flip_bit(bench.log_path(), 4 * BATCH_BYTES - 10)
    log = bench.open()
    assert bench.report.clean
    append(log, 5)
    assert bases(log.read(10, 1 << 20)) == list(range(10, 15))
    assert bases(log.read(0, 1 << 20)) == [0, 1, 2]
    with pytest.raises(LogDamaged):
        log.read(3, 1 << 20)


def test_appended_bytes_need_no_check(bench: LogBench) -> None:
    """Also after bytes that have not been read. Once those are read, the whole file is verified."""
    log = bench.create()
    append(log, 10)
    log = bench.reopen(log)
    append(log, 5)
    active = log.active
    assert active.has_verified(10 * BATCH_BYTES, active.size)
    assert not active.has_verified(9 * BATCH_BYTES, active.size)
    assert bases(log.read(0, 10 * BATCH_BYTES)) == list(range(10))
    assert active.has_verified(0, active.size)
    log = bench.reopen(log)
    append(log, 3)
    log.truncate_to(12)
    append(log, 1)
    assert not log.active.has_verified(11 * BATCH_BYTES, 13 * BATCH_BYTES)


def preads(bench: LogBench) -> int:
    return bench.sim.counters["pread"]


def test_a_sequential_reader_needs_one_disk_read(bench: LogBench) -> None:
    """Neither the index nor earlier batches are read again."""
    log = bench.create(LogConfig(index_interval_bytes=2 * BATCH_BYTES))
    append(log, 100)
    assert bases(log.read(0, 10 * BATCH_BYTES)) == list(range(10))
    before = preads(bench)
    assert bases(log.read(10, 10 * BATCH_BYTES)) == list(range(10, 20))
    assert preads(bench) - before == 1
    assert bases(log.read(20, 10 * BATCH_BYTES + 1)) == list(range(20, 30))
    assert bases(log.read(30, 1 << 20)) == list(range(30, 100))
    append(log, 5)
    before = preads(bench)
    assert bases(log.read(100, 1 << 20)) == list(range(100, 105))
    assert preads(bench) - before == 2


def test_readers_at_different_offsets_do_not_disturb_each_other(bench: LogBench) -> None:
    """The remembered position of the last read is only a hint for the next one."""
    log = bench.create(LogConfig(index_interval_bytes=3 * BATCH_BYTES))
    append(log, 60)
    for offset in range(0, 30, 3):
        assert bases(log.read(offset, 3 * BATCH_BYTES)) == list(range(offset, offset + 3))
        behind = 59 - offset
        assert bases(log.read(behind, 2 * BATCH_BYTES)) == list(range(behind, 60))[:2]


def test_the_position_of_the_last_read_is_forgotten_after_a_truncation(bench: LogBench) -> None:
    """Other batches of other sizes are there afterwards."""
    log = bench.create()
    append(log, 20)
    assert bases(log.read(0, 10 * BATCH_BYTES)) == list(range(10))
    log.truncate_to(5)
    append(log, 3, size=200)
    append(log, 10)
    assert bases(log.read(10, 1 << 20)) == list(range(10, 18))
    assert offsets_of(log) == list(range(18))


def test_a_wrong_index_entry_at_the_end_of_a_read_is_ignored(bench: LogBench) -> None:
    """The bytes that were read show that it is wrong. The index is repaired."""
    log = bench.create(LogConfig(index_interval_bytes=BATCH_BYTES))
    append(log, 40)
    index = log.active.index
    wrong = [entry - (1 << 32) for entry in index.tail[10:]]
    del index.tail[10:]
    index.tail.extend(wrong)
    assert bases(log.read(0, 20 * BATCH_BYTES + 7)) == list(range(20))
    assert bases(log.read(20, 7 * BATCH_BYTES)) == list(range(20, 27))


class Counting:
    """A file that records the sizes of reads."""

    def __init__(self, file: File, taken: list[int]) -> None:
        self._file = file
        self._taken = taken

    def pread(self, size: int, position: int) -> bytes:
        self._taken.append(size)
        return self._file.pread(size, position)


def test_batches_that_do_not_fit_are_not_read(bench: LogBench) -> None:
    """Only the header of such a batch is read."""
    log = bench.create()
    append(log, 3, size=200_000)
    taken: list[int] = []
    handle = log.active.pool.handle(log.active.path)
    handle.file = cast(File, Counting(handle.file, taken))
    piece = log.read(0, 350_000)
    assert piece is not None
    assert len(piece.data) == log.active.size // 3
    assert sum(taken) < len(piece.data) + 2000
