"""Durability: what a flush guarantees, and the consequences of a failed one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from errno import EIO, EMFILE, ENOSPC

import pytest

from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import DiskFull, LogOffline, StorageError

from .log_bench import (
    LogBench,
    append,
    each_interruption,
    new_bench,
    offsets_of,
    record,
    records_of,
    state_of,
)

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
SEEDS = range(30)


def test_a_created_log_survives_a_power_cut() -> None:
    """It is there, empty, with its topic id."""
    for seed in SEEDS:
        bench = new_bench(seed)
        bench.create()
        bench.lose_power()
        log = bench.open()
        assert (log.log_start_offset, log.end_offset, log.topic_id) == (0, 0, "id")


@pytest.mark.parametrize("config", [LogConfig(), SEGMENTED])
def test_flushed_records_survive_a_power_cut(config: LogConfig) -> None:
    """All of them, also in new segments: a file is durable only together with its name."""
    for seed in SEEDS:
        bench = new_bench(seed)
        log = bench.create(config)
        append(log, 5, epoch=1)
        log.flush()
        append(log, 9, epoch=2)
        log.flush()
        expected = state_of(log)
        append(log, 6, epoch=3)
        bench.lose_power()
        log = bench.open()
        assert log.damage == []
        assert records_of(log)[:14] == expected[1]
        log.truncate_to(14)
        assert state_of(log) == expected


def test_the_recovery_point_moves_only_with_flushes(bench: LogBench) -> None:
    """Records below it may be acknowledged as durable."""
    log = bench.create()
    append(log, 3)
    assert (log.recovery_point, log.needs_flush) == (0, True)
    log.flush()
    assert (log.recovery_point, log.needs_flush) == (3, False)


def test_appends_during_a_flush_wait_for_the_next(bench: LogBench) -> None:
    """A flush covers what was written when it began, and only once it has ended."""
    log = bench.create(SEGMENTED)
    append(log, 3)
    plan = log.begin_flush()
    append(log, 10)
    assert log.recovery_point == 0
    plan.run()
    assert log.recovery_point == 0
    log.end_flush(plan)
    assert (log.recovery_point, log.needs_flush) == (3, True)
    log.flush()
    assert log.recovery_point == 13


def test_only_one_flush_runs_at_a_time(bench: LogBench) -> None:
    """Neither a second flush nor a truncation or deletion may overlap it. The caller must wait."""
    log = bench.create()
    append(log, 3)
    plan = log.begin_flush()
    with pytest.raises(RuntimeError, match="is being flushed"):
        log.flush()
    with pytest.raises(RuntimeError, match="is being flushed"):
        log.truncate_to(2)
    with pytest.raises(RuntimeError, match="is being flushed"):
        log.delete_before(1)
    plan.run()
    log.end_flush(plan)
    log.flush()
    log.truncate_to(2)
    log.delete_before(1)
    assert offsets_of(log) == [1]


def test_a_failed_fsync_takes_the_log_offline_for_good(bench: LogBench) -> None:
    """The kernel drops the dirty pages, so a second fsync would succeed although the data is
    lost."""
    log = bench.create()
    append(log, 3)
    log.flush()
    append(log, 3)
    bench.sim.fail_next("fsync", EIO)
    with pytest.raises(LogOffline, match=r"fsync failed.*repair the disk and restart the broker"):
        log.flush()
    fsyncs = bench.sim.counters["fsync"]
    with pytest.raises(LogOffline, match="fsync failed"):
        log.flush()
    with pytest.raises(LogOffline, match="fsync failed"):
        append(log)
    with pytest.raises(LogOffline, match="fsync failed"):
        log.read(0, 10)
    assert bench.sim.counters["fsync"] == fsyncs
    assert log.recovery_point == 3


def test_an_offline_log_is_not_marked_as_cleanly_stopped() -> None:
    """Closing it writes nothing. The next start reads what is there."""
    for seed in SEEDS:
        bench = new_bench(seed)
        log = bench.create()
        append(log, 3)
        log.flush()
        append(log, 3)
        bench.sim.fail_next("fsync", EIO)
        with pytest.raises(LogOffline):
            log.flush()
        log.close()
        bench.resources.pool.close()
        bench.lose_power()
        log = bench.open()
        assert not bench.report.clean
        assert log.damage == []
        assert offsets_of(log)[:3] == [0, 1, 2]


@pytest.mark.parametrize("operation", ["fsync", "sync_directory", "rename"])
def test_any_failing_step_makes_the_flush_fail(operation: str) -> None:
    """The names of new files and the checkpoint are part of the guarantee."""
    steps = 0
    for skip in range(10):
        bench = new_bench()
        log = bench.create(SEGMENTED)
        append(log, 9)
        bench.sim.fail_next(operation, EIO, skip=skip)
        try:
            log.flush()
        except LogOffline:
            steps += 1
            assert log.failure is not None
            assert log.recovery_point == 0
        else:
            break
    assert steps >= 1


def test_a_flush_without_a_free_file_descriptor_raises_storage_error() -> None:
    """If the log stays online, the next flush makes everything durable."""
    bench = new_bench(handles_max=2)
    log = bench.create(SEGMENTED)
    append(log, 30)
    bench.sim.fail_next("open", EMFILE)
    with pytest.raises(StorageError):
        log.flush()
    if log.failure is None:
        log.flush()
        assert log.recovery_point == 30


def test_an_evicted_file_is_still_flushed() -> None:
    """A pool too small for all dirty files loses none of them."""
    bench = new_bench(handles_max=2)
    log = bench.create(SEGMENTED)
    append(log, 30)
    log.flush()
    durable = bench.sim.durable_files()
    for path, data in bench.sim.files().items():
        assert durable[path] == data
    assert len(bench.sim.open_paths()) <= 2


def test_a_failed_close_is_reported(bench: LogBench) -> None:
    """The stop is not clean, and the next start recovers the log."""
    log = bench.create()
    append(log, 3)
    bench.sim.fail_next("fsync", EIO)
    with pytest.raises(LogOffline):
        log.close()
    assert offsets_of(bench.kill_and_open()) == [0, 1, 2]
    assert not bench.report.clean


def test_a_checkpoint_limits_what_recovery_reads(bench: LogBench) -> None:
    """With a checkpoint, the next start reads only the last segments."""
    log = bench.create(SEGMENTED)
    append(log, 40)
    log.flush(checkpoint=True)
    append(log, 1)
    bench.kill_and_open()
    assert 0 < bench.report.scanned_bytes <= 8 * BATCH_BYTES


def test_a_full_disk_does_not_fail_the_log(bench: LogBench) -> None:
    """No space for a checkpoint is not a failed fsync: the data is safe and the log stays
    usable."""
    log = bench.create(SEGMENTED)
    append(log, 9)
    bench.sim.fail_next("pwrite", ENOSPC, path_contains="checkpoint", times=100)
    with suppress(DiskFull):
        log.flush()
    assert log.failure is None
    assert offsets_of(log) == list(range(9))
    bench.sim.heal()
    log.flush()
    assert log.recovery_point == 9
    bench.lose_power()
    assert offsets_of(bench.open()) == list(range(9))


def test_indexes_are_durable_with_their_segments() -> None:
    """After a flush and a power cut, no index of a closed segment has to be rebuilt."""
    for seed in SEEDS:
        bench = new_bench(seed)
        log = bench.create(SEGMENTED)
        append(log, 30)
        log.flush()
        bench.lose_power()
        log = bench.open()
        assert offsets_of(log) == list(range(30))
        log = bench.reopen(log)
        assert bench.report.clean
        assert bench.report.notes == []


@pytest.mark.parametrize("closing", [False, True])
def test_an_interrupted_flush_loses_nothing_flushed_before(closing: bool) -> None:
    """Stopped at any point, everything flushed before is there, and the rest is a prefix."""
    clean = []

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(SEGMENTED)
        append(log, 6, epoch=1)
        log.flush()
        append(log, 7, epoch=2)
        return log.close if closing else log.flush

    for bench in each_interruption(prepare):
        log = bench.open()
        assert offsets_of(log) == list(range(log.end_offset))
        assert 6 <= log.end_offset <= 13
        assert log.damage == []
        assert log.epochs.epoch_at(5) == 1
        assert log.epochs.latest == (2 if log.end_offset > 6 else 1)
        clean.append((log.end_offset, bench.report.clean))
    assert all(end == 13 for end, _ in clean[-7:])
    assert all(was_clean == closing for _, was_clean in clean[-7:])
