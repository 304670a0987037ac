"""Opening a log whose other files are bad, missing or left over: they are rebuilt or removed."""

from __future__ import annotations

import pytest

from penstock.records.batch import read_header
from storage.test_recovery import CHECKPOINT, EPOCHS, busy

from .log_bench import (
    LogBench,
    state_of,
)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", b"x", bytes(24), bytes(range(48)), b"\xff" * 24])
@pytest.mark.parametrize("clean", [True, False])
def test_bad_indexes_are_rebuilt(
    bench: LogBench, suffix: str, content: bytes | None, clean: bool
) -> None:
    """Missing, empty, cut, zeros or garbage, in any segment: reads and segment ages are correct."""
    log = busy(bench)
    expected = state_of(log)
    times = [held.largest_timestamp() for held in log.segments]
    if clean:
        log.close()
    else:
        log.flush(checkpoint=True)
        bench.kill()
    for name in bench.names(suffix):
        if content is None:
            bench.disk.unlink(bench.path(name))
        else:
            bench.write_file(bench.path(name), content)
    bench.start_process()
    log = bench.open()
    assert state_of(log) == expected
    assert [held.largest_timestamp() for held in log.segments] == times
    for offset in range(log.end_offset):
        piece = log.read(offset, 0)
        assert piece is not None
        assert read_header(piece.data).base_offset <= offset <= read_header(piece.data).last_offset
    log = bench.reopen(log)
    assert state_of(log) == expected
    assert log.damage == []


def test_an_index_without_a_segment_is_removed(bench: LogBench) -> None:
    """Otherwise it would later be used for a new segment with that base offset."""
    log = busy(bench)
    log.close()
    bench.write_file(bench.path(f"{999:020d}.index"), bytes(16))
    bench.write_file(bench.path(f"{999:020d}.timeindex"), bytes(24))
    bench.open()
    assert not [name for name in bench.names() if name.startswith(f"{999:020d}")]


def test_incomplete_files_are_removed(bench: LogBench) -> None:
    """Files that were being written or deleted when the process stopped."""
    log = busy(bench)
    expected = state_of(log)
    log.close()
    stray = [CHECKPOINT + ".tmp", f"{0:020d}.log.cleaned", f"{0:020d}.index.deleted"]
    for name in stray:
        bench.write_file(bench.path(name), b"half")
    assert state_of(bench.open()) == expected
    assert not set(stray) & set(bench.names())


@pytest.mark.parametrize("content", [None, b"", b"0\n9\n1 1\n", b"\xff\xfe", b"0\n2\n5 5\n4 9\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_bad_epoch_file_is_rebuilt(bench: LogBench, content: bytes | None, clean: bool) -> None:
    """From the batches, which contain their epochs."""
    log = busy(bench)
    expected = state_of(log)
    if clean:
        log.close()
    else:
        log.flush(checkpoint=True)
        bench.kill()
    if content is None:
        bench.disk.unlink(bench.path(EPOCHS))
    else:
        bench.write_file(bench.path(EPOCHS), content)
    bench.start_process()
    log = bench.open()
    assert state_of(log) == expected
    log = bench.reopen(log)
    assert state_of(log) == expected
    assert bench.report.notes == []


@pytest.mark.parametrize("content", [None, b"", b"nonsense", bytes(20)])
@pytest.mark.parametrize("clean", [True, False])
def test_bad_snapshots_are_replaced_by_a_replay(
    bench: LogBench, content: bytes | None, clean: bool
) -> None:
    """Producer state is restored from the batches, from the start of the log if necessary."""
    log = busy(bench)
    expected = state_of(log)
    if clean:
        log.close()
    else:
        log.flush(checkpoint=True)
        bench.kill()
    for name in bench.names(".snapshot"):
        if content is None:
            bench.disk.unlink(bench.path(name))
        else:
            bench.write_file(bench.path(name), content)
    bench.start_process()
    assert state_of(bench.open()) == expected


@pytest.mark.parametrize("content", [None, b"", b"penstock-checkpoint 1\ncrc32c 00000000\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_bad_checkpoint_means_reading_the_whole_log(
    bench: LogBench, content: bytes | None, clean: bool
) -> None:
    """A log without a checkpoint is not treated as empty."""
    log = busy(bench)
    expected = state_of(log)
    size = log.size
    if clean:
        log.close()
    else:
        log.flush(checkpoint=True)
        bench.kill()
    if content is None:
        bench.disk.unlink(bench.path(CHECKPOINT))
    else:
        bench.write_file(bench.path(CHECKPOINT), content)
    bench.start_process()
    log = bench.open()
    assert state_of(log) == expected
    assert not bench.report.clean
    assert bench.report.scanned_bytes == size
    assert any("the whole log is read" in note for note in bench.report.notes)
    assert state_of(bench.reopen(log)) == expected
    assert bench.report.clean
