"""Reading: whole batches from an offset, as they lie in the file."""

from __future__ import annotations

from errno import EIO

import pytest

from penstock.records.batch import iter_batches
from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged, LogOffline, OffsetOutOfRange, StorageError
from penstock.storage.read_log import LogSlice

from .bench import LogBench, append, append_batch, offsets_of, record, records_of

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)


def bases(piece: LogSlice | None) -> list[int]:
    return [] if piece is None else [header.base_offset for _, header in iter_batches(piece.data)]


def test_reads_as_many_whole_batches_as_fit(bench: LogBench) -> None:
    """At most the bytes asked for, never part of a batch."""
    log = bench.create()
    append(log, 10)
    assert bases(log.read(2, 3 * BATCH_BYTES)) == [2, 3, 4]
    assert bases(log.read(2, 4 * BATCH_BYTES - 1)) == [2, 3, 4]
    assert bases(log.read(2, 1 << 20)) == list(range(2, 10))


@pytest.mark.parametrize("bytes_max", [0, 1, BATCH_BYTES - 1])
def test_first_batch_comes_even_if_larger(bench: LogBench, bytes_max: int) -> None:
    """Else a reader with a small limit would never get past a large batch."""
    log = bench.create()
    append(log, 3)
    assert bases(log.read(1, bytes_max)) == [1]


def test_batch_that_holds_the_offset_comes_whole(bench: LogBench) -> None:
    """An offset in the middle of a batch brings all of it: batches are never opened."""
    log = bench.create()
    append_batch(log, 5)
    append_batch(log, 5)
    assert bases(log.read(7, 0)) == [5]
    assert bases(log.read(4, 0)) == [0]


def test_slice_says_where_it_lies(bench: LogBench) -> None:
    """The bytes are those of the file at the place named."""
    log = bench.create(SEGMENTED)
    append(log, 25)
    piece = log.read(13, 2 * BATCH_BYTES)
    assert piece is not None
    assert (piece.segment_base, piece.position) == (10, 3 * BATCH_BYTES)
    data = bench.read_file(bench.log_path(10))
    assert data[piece.position :].startswith(piece.data)


def test_a_read_ends_with_its_segment(bench: LogBench) -> None:
    """A slice is one piece of one file; the next read goes on in the next."""
    log = bench.create(SEGMENTED)
    append(log, 25)
    assert bases(log.read(8, 1 << 20)) == [8, 9]
    assert bases(log.read(10, 1 << 20)) == list(range(10, 20))


def test_nothing_at_the_end(bench: LogBench) -> None:
    """The end offset is a place to wait at, not an error."""
    log = bench.create()
    assert log.read(0, 100) is None
    append(log, 3)
    assert log.read(3, 100) is None


@pytest.mark.parametrize("offset", [-1, 1, 6, 100])
def test_offset_outside_the_log_is_out_of_range(bench: LogBench, offset: int) -> None:
    """Below the start or above the end; the error carries both and says where to go."""
    log = bench.create()
    append(log, 5)
    log.delete_before(2)
    with pytest.raises(OffsetOutOfRange, match="seek to one of the two ends") as caught:
        log.read(offset, 100)
    error = caught.value
    assert (error.offset, error.start_offset, error.end_offset) == (offset, 2, 5)


@pytest.mark.parametrize("config", [LogConfig(), SEGMENTED])
def test_nothing_above_the_bound_is_given_out(bench: LogBench, config: LogConfig) -> None:
    """A reader sees no batch that reaches to the high watermark or beyond."""
    log = bench.create(config)
    append(log, 25)
    for upper in range(26):
        for offset in range(26):
            found = bases(log.read(offset, 1 << 20, upper))
            assert all(base < upper for base in found)
            assert bool(found) == (offset < upper)


def test_batch_that_spans_the_bound_waits(bench: LogBench) -> None:
    """A batch is given whole or not at all."""
    log = bench.create()
    append_batch(log, 5)
    append_batch(log, 5)
    assert bases(log.read(0, 1 << 20, 7)) == [0]
    assert log.read(5, 1 << 20, 7) is None
    assert bases(log.read(5, 1 << 20, 10)) == [5]


@pytest.mark.parametrize("interval", [0, 1, BATCH_BYTES, 3 * BATCH_BYTES, 1 << 20])
def test_every_offset_is_found_whatever_the_index(bench: LogBench, interval: int) -> None:
    """The index makes a read faster, and changes nothing else: live, reopened and recovered."""
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
    """Bytes not seen since the start are checked on the way out; what is good before them comes."""
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
def test_bad_header_never_brings_the_wrong_batch(bench: LogBench, byte: int) -> None:
    """Offset and length lie outside the CRC: a reader gets the right batch, or an error of ours."""
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


def test_read_error_is_reported_as_ours(bench: LogBench) -> None:
    """A sector that cannot be read is an answer for the caller, not a crash of the broker."""
    log = bench.create()
    append(log, 3)
    bench.sim.fail_next("pread", EIO)
    with pytest.raises(StorageError):
        log.read(1, 100)


def test_closed_log_takes_no_calls(bench: LogBench) -> None:
    """Whoever still holds it is told why."""
    log = bench.create()
    append(log)
    log.close()
    with pytest.raises(LogOffline, match="it was closed"):
        log.read(0, 1)
    with pytest.raises(LogOffline, match="it was closed"):
        append(log)
    with pytest.raises(LogOffline, match="it was closed"):
        log.flush()


def test_real_files_read_back(real_bench: LogBench) -> None:
    """The same on the disk of this machine."""
    real_bench.config = SEGMENTED
    log = real_bench.create()
    append(log, 35)
    assert offsets_of(log) == list(range(35))
    log = real_bench.reopen(log)
    assert real_bench.report.clean
    assert offsets_of(log) == list(range(35))
