"""Batches that are sent from their file: the same bytes as a read, and only where no check is
needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.record import build_batch
from penstock.storage.disk import OsDisk
from penstock.storage.errors import DiskTrouble
from penstock.storage.log import Log
from penstock.storage.spans import SPAN_BYTES_MIN, FileSpan

from .log_bench import LogBench, append, new_bench, record

BATCH_BYTES = len(build_batch([record(0, size=10_000)]))
ENOUGH = 40 * BATCH_BYTES
"""Large enough to be sent from the file."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LogBench]:
    """A bench on a disk with file descriptors."""
    bench = LogBench(OsDisk(), str(tmp_path))
    yield bench
    bench.resources.pool.close()


def bytes_of(piece: memoryview | FileSpan | None) -> bytes:
    """Returns the bytes that a socket would send."""
    assert piece is not None
    if isinstance(piece, FileSpan):
        return os.pread(piece.fileno(), len(piece), piece.position)
    return bytes(piece)


def read(log: Log, offset: int, bytes_max: int, upper: int | None = None) -> bytes:
    piece = log.read(offset, bytes_max, upper)
    assert piece is not None
    return bytes(piece.data)


@pytest.mark.parametrize("bytes_max", [ENOUGH, ENOUGH + 1, 2 * ENOUGH - 1, 1 << 30])
@pytest.mark.parametrize("upper", [None, 95])
def test_a_span_equals_what_a_read_returns(
    bench: LogBench, bytes_max: int, upper: int | None
) -> None:
    """The same whole batches, below the same bound."""
    log = bench.create()
    append(log, 100, size=10_000)
    for offset in (0, 17, 41):
        piece = log.read_or_span(offset, bytes_max, upper)
        assert isinstance(piece, FileSpan)
        assert bytes_of(piece) == bytes(piece.read()) == read(log, offset, bytes_max, upper)
        assert bytes(piece.read(1000)) == bytes_of(piece)[1000:]


def test_a_reader_continues_where_a_span_ended(bench: LogBench) -> None:
    """All spans together are the whole log, each batch once."""
    log = bench.create()
    append(log, 200, size=10_000)
    given, offset = b"", 0
    while offset < 200:
        piece = log.read_or_span(offset, ENOUGH + 5)
        given += bytes_of(piece)
        offset = len(given) // BATCH_BYTES
    assert given == Path(bench.log_path()).read_bytes()


def test_a_small_piece_is_read(bench: LogBench) -> None:
    """Sending it from the file would not pay off."""
    log = bench.create()
    append(log, 20, size=10_000)
    assert isinstance(log.read_or_span(0, SPAN_BYTES_MIN - 1), memoryview)
    assert isinstance(log.read_or_span(19, 1 << 20), memoryview)


def test_a_small_piece_before_a_batch_that_does_not_fit_is_read(bench: LogBench) -> None:
    """The size of the result counts, not the requested size."""
    log = bench.create()
    append(log, 1)
    append(log, 2, size=1 << 20)
    piece = log.read_or_span(0, 1 << 20)
    assert isinstance(piece, memoryview)
    assert len(piece) == len(build_batch([record(0)]))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from((20, 3_000, 40_000, 200_000)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 600_000),
)
def test_spans_of_any_size_equal_a_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], offset: int, bytes_max: int
) -> None:
    """A span is never small, and its bytes are those that a read returns."""
    bench = LogBench(OsDisk(), str(tmp_path_factory.mktemp("log")))
    log = bench.create()
    for size in sizes:
        append(log, size=size)
    offset = min(offset, len(sizes) - 1)
    piece = log.read_or_span(offset, bytes_max)
    assert bytes_of(piece) == read(log, offset, bytes_max)
    assert not isinstance(piece, FileSpan) or len(piece) >= SPAN_BYTES_MIN
    bench.resources.pool.close()


def test_bytes_not_read_since_startup_are_read_first(bench: LogBench) -> None:
    """So they are checked: bad bytes are never sent."""
    log = bench.create()
    append(log, 100, size=10_000)
    log = bench.reopen(log)
    assert isinstance(log.read_or_span(0, ENOUGH), memoryview)
    assert isinstance(log.read_or_span(0, ENOUGH), FileSpan)
    assert isinstance(log.read_or_span(0, ENOUGH + BATCH_BYTES), memoryview)


def test_a_simulated_disk_has_no_spans() -> None:
    """It has no file descriptors, so everything is read."""
    log = new_bench().create()
    append(log, 100, size=10_000)
    piece = log.read_or_span(0, ENOUGH)
    assert isinstance(piece, memoryview)
    assert len(piece) == ENOUGH


def test_a_span_stays_valid_when_the_pool_closes_its_file(tmp_path: Path) -> None:
    """Before the span is sent, the limit of open files may require closing its file."""
    bench = LogBench(OsDisk(), str(tmp_path), handles_max=1)
    log = bench.create()
    append(log, 100, size=10_000)
    piece = log.read_or_span(0, ENOUGH)
    assert isinstance(piece, FileSpan)
    bench.resources.pool.forget(bench.log_path())
    assert bytes_of(piece) == Path(bench.log_path()).read_bytes()[:ENOUGH]
    bench.resources.pool.close()


def test_a_wrong_index_gives_no_span(bench: LogBench) -> None:
    """The batches are read instead, which repairs the index."""
    log = bench.create()
    append(log, 100, size=10_000)
    index = log.active.index
    for at in range(35, len(index.tail)):
        index.tail[at] -= 1 << 32
    assert isinstance(log.read_or_span(0, ENOUGH), memoryview)
    piece = log.read_or_span(0, ENOUGH)
    assert isinstance(piece, FileSpan)
    assert len(piece) == ENOUGH


def test_a_file_that_was_cut_short_is_an_error(bench: LogBench) -> None:
    """A response must not miss some of its bytes."""
    log = bench.create()
    append(log, 100, size=10_000)
    piece = log.read_or_span(0, ENOUGH)
    assert isinstance(piece, FileSpan)
    os.truncate(bench.log_path(), 1000)
    with pytest.raises(OSError, match="shorter than it was"):
        piece.read()


def test_a_file_that_cannot_be_opened_raises_disk_trouble(bench: LogBench) -> None:
    """The caller can answer this error. It must not crash the broker."""
    log = bench.create()
    append(log, 100, size=10_000)
    bench.resources.pool.close()
    os.rename(bench.log_path(), bench.log_path() + ".away")
    with pytest.raises(DiskTrouble, match="could not be read"):
        log.read_or_span(0, ENOUGH)


@pytest.mark.parametrize("cut", ["truncate", "delete", "close", "start again"])
def test_a_span_of_bytes_that_are_gone_is_an_error(bench: LogBench, cut: str) -> None:
    """A span may be sent long after it was requested. By then other bytes may be there."""
    log = bench.create()
    append(log, 100, size=10_000)
    piece = log.read_or_span(0, ENOUGH)
    assert isinstance(piece, FileSpan)
    append(log, 10, size=10_000)
    assert bytes(piece.read(5, 10)) == bytes_of(piece)[5:15]
    match cut:
        case "truncate":
            log.truncate_to(10)
            append(log, 100, size=10_000)
        case "delete":
            log.roll(0)
            log.delete_before(log.end_offset)
        case "close":
            log.abandon("it was closed")
        case "start again":
            log.start_at(500)
    for ask in (piece.read, piece.fileno):
        with pytest.raises(OSError, match="was truncated"):
            ask()
