"""Starting a log over: a follower that shares nothing with its leader deletes all of its log, or
none."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO

import pytest

from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import DiskFull, LogOffline
from penstock.storage.log import Log
from penstock.storage.verify import verify_directory

from .log_bench import (
    NOW_MS,
    LogBench,
    LogState,
    append,
    each_interruption,
    new_bench,
    offsets_of,
    record,
    state_of,
)

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


def grow(log: Log, end_offset: int) -> None:
    """Appends up to an offset, with epochs and producers."""
    while log.end_offset < end_offset:
        number = log.end_offset
        batch = build_batch(
            [record(number)], producer_id=number % 3, producer_epoch=0, base_sequence=number // 3
        )
        log.append(batch, number // 5, NOW_MS)


@pytest.mark.parametrize("offset", [0, 4, 9, 14, 15, 1_000, 5_000_000_000])
def test_a_log_that_starts_over_is_like_a_new_log(bench: LogBench, offset: int) -> None:
    """At an offset below, within or above its range: records, epochs, producers and files are
    gone."""
    log = bench.create(SEGMENTED)
    grow(log, 14)
    log.start_at(offset)
    assert state_of(log) == ((offset, offset), [], (), [], [])
    assert (log.recovery_point, log.cleaned_offset) == (offset, offset)
    assert [name for name in bench.names() if not name.endswith(".deleted")] == [
        f"{offset:020d}.log",
        *(["leader-epoch-checkpoint"] if "leader-epoch-checkpoint" in bench.names() else []),
        "partition.metadata",
        "penstock-checkpoint",
    ]
    assert log.purge() > 0
    append(log, 10, epoch=9)
    assert offsets_of(log) == list(range(offset, offset + 10))
    expected = state_of(log)
    log.flush()
    bench.lose_power()
    assert state_of(bench.open()) == expected


def test_a_log_that_starts_over_is_durable_at_once() -> None:
    """Without a flush, after a kill, a power cut or a clean stop."""
    for seed in range(12):
        bench = new_bench(seed)
        log = bench.create(SEGMENTED)
        grow(log, 30)
        log.start_at(17)
        if seed % 3 == 0:
            bench.lose_power()
        elif seed % 3 == 1:
            bench.kill()
        else:
            log.close()
            bench.start_process()
        log = bench.open()
        assert state_of(log) == ((17, 17), [], (), [], [])
        append(log)
        assert offsets_of(log) == [17]


@pytest.mark.parametrize("offset", [0, 8, 9, 100])
def test_an_interrupted_start_over_is_completed(offset: int) -> None:
    """Stopped at any point, the log is as before, or empty at the offset. It never keeps only a
    part."""
    sound = new_bench()
    before = sound.create(SEGMENTED)
    grow(before, 30)
    whole = state_of(before)
    empty = LogState(((offset, offset), [], (), [], []))
    outcomes = []

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(SEGMENTED)
        grow(log, 30)
        log.flush(checkpoint=True)

        def begin_anew() -> None:
            log.start_at(offset)
            log.purge()

        return begin_anew

    for bench in each_interruption(prepare, power_loss_seeds=4):
        log = bench.open()
        found = state_of(log)
        assert found in (whole, empty)
        assert bench.names(".deleted") == []
        assert state_of(bench.kill_and_open()) == found
        outcomes.append(found == empty)
    assert False in outcomes
    assert all(outcomes[-5:])


def test_appends_after_a_start_over_survive_a_power_cut() -> None:
    """Everything flushed after it is there, and nothing of the old log comes back."""
    for seed in range(20):
        bench = new_bench(seed)
        log = bench.create(SEGMENTED)
        grow(log, 30)
        log.flush(checkpoint=True)
        log.start_at(8)
        append(log, 6, epoch=7)
        log.flush()
        append(log, 6, epoch=7)
        bench.lose_power()
        log = bench.open()
        assert log.log_start_offset == 8
        assert 14 <= log.end_offset <= 20
        assert offsets_of(log) == list(range(8, log.end_offset))
        assert log.epochs.entries == ((7, 8),)
        assert log.damage == []


@pytest.mark.parametrize("operation", ["create", "unlink", "fsync", "rename", "sync_directory"])
def test_a_failed_start_over_takes_the_log_offline(operation: str) -> None:
    """Only a restart can tell what is there, and it completes the operation."""
    for skip in range(20):
        bench = new_bench()
        log = bench.create(SEGMENTED)
        grow(log, 14)
        log.flush(checkpoint=True)
        bench.sim.fail_next(operation, EIO, skip=skip)
        try:
            log.start_at(5)
        except LogOffline as error:
            assert "restart the broker" in str(error)
            bench.sim.heal()
            log = bench.kill_and_open()
            assert (log.log_start_offset, log.end_offset) in ((5, 5), (0, 14))
        else:
            assert skip > 0
            break
    else:
        raise AssertionError(f"{operation} kept failing")


def test_without_space_for_the_checkpoint_nothing_changes(bench: LogBench) -> None:
    """It can be retried when there is space."""
    log = bench.create(SEGMENTED)
    grow(log, 14)
    log.flush(checkpoint=True)
    before = state_of(log)
    bench.sim.capacity_bytes = sum(len(data) for data in bench.sim.files().values())
    with pytest.raises(DiskFull):
        log.start_at(99)
    assert state_of(log) == before
    bench.sim.capacity_bytes += 1 << 20
    log.start_at(99)
    assert log.end_offset == 99


def test_damage_is_removed_with_the_old_log(bench: LogBench) -> None:
    """A quarantined range of the old log no longer matters."""
    log = bench.create()
    append(log, 12)
    log.close()
    append(bench.open())
    bench.kill()
    bench.flip_bit(bench.log_path(), 3 * BATCH_BYTES + 8, 7)
    log = bench.open()
    assert log.damage
    log.start_at(2)
    append(log, 8)
    assert (offsets_of(log), log.damage) == (list(range(2, 10)), [])
    log = bench.kill_and_open()
    assert (offsets_of(log), log.damage) == (list(range(2, 10)), [])


def test_verify_reports_an_interrupted_start_over(bench: LogBench) -> None:
    """As something that the next start completes, not as damage."""
    log = bench.create(SEGMENTED)
    grow(log, 14)
    log.flush(checkpoint=True)
    bench.sim.fail_next("sync_directory", EIO, skip=1)
    with pytest.raises(LogOffline):
        log.start_at(5)
    bench.sim.heal()
    bench.kill()
    (report,) = verify_directory(bench.disk, bench.root).logs
    assert "restarting" in [found.code for found in report.findings]
