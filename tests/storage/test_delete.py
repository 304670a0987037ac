"""The log start offset: raised by DeleteRecords and retention, never lowered."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO

import pytest

from penstock.partition.epochs import EpochStart
from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import DiskFull, LogOffline, OffsetOutOfRange

from .log_bench import (
    LogBench,
    append,
    append_batch,
    append_produced,
    each_interruption,
    new_bench,
    offsets_of,
    record,
    state_of,
)

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


def test_raising_the_log_start_deletes_whole_segments(bench: LogBench) -> None:
    """Offsets below it can no longer be read. Files entirely below it are renamed, and later
    purged."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    assert log.delete_before(9) == 9
    assert offsets_of(log) == [9, 10, 11, 12, 13]
    assert [held.base_offset for held in log.segments] == [8, 12]
    assert bench.names(".log") == [f"{base:020d}.log" for base in (8, 12)]
    assert log.purge() > 0
    assert log.purge() == 0
    assert bench.names(".deleted") == []
    with pytest.raises(OffsetOutOfRange):
        log.read(8, 100)


def test_the_log_start_may_be_within_a_batch(bench: LogBench) -> None:
    """The whole batch is returned, and its reader skips the records below."""
    log = bench.create()
    append_batch(log, 10)
    log.delete_before(4)
    assert offsets_of(log) == [4, 5, 6, 7, 8, 9]
    assert log.read(4, 0) is not None


def test_the_log_start_never_moves_down(bench: LogBench) -> None:
    """A late request gets the present log start offset."""
    log = bench.create()
    append(log, 5)
    log.delete_before(3)
    assert log.delete_before(1) == 3
    assert log.delete_before(3) == 3
    assert log.log_start_offset == 3


def test_nothing_beyond_the_end_can_be_deleted(bench: LogBench) -> None:
    """The error gives the range of the log."""
    log = bench.create()
    append(log, 5)
    with pytest.raises(OffsetOutOfRange, match=r"\[0, 5\)"):
        log.delete_before(6)
    assert offsets_of(log) == [0, 1, 2, 3, 4]


def test_everything_can_be_deleted(bench: LogBench) -> None:
    """The empty log continues at its end offset, also after a restart."""
    log = bench.create(SEGMENTED)
    append(log, 10)
    log.delete_before(10)
    assert offsets_of(log) == []
    for restart in (bench.reopen, lambda _: bench.kill_and_open()):
        log = restart(log)
        assert (log.log_start_offset, log.end_offset) == (10, 10)
        append(log)
        assert offsets_of(log) == [10]
        log.truncate_to(10)


def test_a_power_cut_after_a_deletion_reuses_no_offsets() -> None:
    """It loses the unflushed bytes but not the log start offset: no offset is assigned twice."""
    for seed in range(40):
        bench = new_bench(seed)
        log = bench.create(SEGMENTED)
        append(log, 10)
        log.delete_before(10)
        bench.lose_power()
        log = bench.open()
        assert (log.log_start_offset, log.end_offset) == (10, 10)
        append(log)
        assert offsets_of(log) == [10]
        assert offsets_of(bench.kill_and_open()) == [10]


def test_epochs_start_at_the_last_deleted_record(bench: LogBench) -> None:
    """Older epochs are removed. The epoch of the last deleted record is still needed, to compare a
    replica whose log ends there, also if another epoch wrote the first record that is left."""
    log = bench.create()
    for epoch in (1, 3, 5):
        append(log, 3, epoch=epoch)
    for offset, expected in (
        (4, (EpochStart(3, 3), EpochStart(5, 6))),
        (6, (EpochStart(3, 5), EpochStart(5, 6))),
        (7, (EpochStart(5, 6),)),
    ):
        log.delete_before(offset)
        assert log.epochs.entries == expected
        log = bench.kill_and_open()
        assert log.epochs.entries == expected


def test_producer_state_survives_the_deletion_of_records(bench: LogBench) -> None:
    """A retry is recognized even if the batch that it repeats was deleted."""
    log = bench.create(SEGMENTED)
    append_produced(log, 7, 0, 10)
    log.delete_before(10)
    log.purge()
    for restart in (bench.reopen, lambda _: bench.kill_and_open()):
        log = restart(log)
        (entry,) = log.producers.entries()
        assert (entry.producer_id, entry.last_sequence) == (7, 9)


def test_snapshots_are_deleted_with_their_segments(bench: LogBench) -> None:
    """A log that runs for years keeps no old snapshots."""
    log = bench.create(SEGMENTED)
    append_produced(log, 7, 0, 40)
    log.delete_before(33)
    log.purge()
    assert all(name >= f"{32:020d}" for name in bench.names(".snapshot"))


def test_damage_below_the_log_start_is_forgotten(bench: LogBench) -> None:
    """Later records in the same segment stay readable after every restart."""
    log = bench.create()
    append(log, 12)
    log.close()
    append(bench.open())
    bench.kill()
    bench.flip_bit(bench.log_path(), 3 * BATCH_BYTES + 8, 7)
    log = bench.open()
    assert [held.start_offset for held in log.damage] == [3]
    log.delete_before(5)
    for restart in (lambda held: held, bench.reopen, bench.reopen, lambda _: bench.kill_and_open()):
        log = restart(log)
        assert offsets_of(log) == list(range(5, 13))


def test_an_interrupted_deletion_is_completed() -> None:
    """Stopped at any point, the log start is the old one or the new one, and nothing above is
    missing."""
    sound = new_bench()
    log = sound.create(SEGMENTED)
    append(log, 30)
    whole = state_of(log)
    log.delete_before(17)
    deleted = state_of(log)
    outcomes = []

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(SEGMENTED)
        append(log, 30)
        log.flush(checkpoint=True)

        def delete() -> None:
            log.delete_before(17)
            log.purge()

        return delete

    for bench in each_interruption(prepare):
        log = bench.open()
        found = state_of(log)
        assert found in (whole, deleted)
        assert bench.names(".deleted") == []
        if found == deleted:
            assert bench.names(".log")[0] == f"{16:020d}.log"
        assert state_of(bench.kill_and_open()) == found
        outcomes.append(found == deleted)
    assert False in outcomes
    assert all(outcomes[-7:])


def test_a_failed_deletion_takes_the_log_offline(bench: LogBench) -> None:
    """The restart completes it."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    bench.sim.fail_next("rename", EIO, path_contains=".deleted")
    with pytest.raises(LogOffline, match="restart the broker"):
        log.delete_before(9)
    assert offsets_of(bench.kill_and_open()) == [9, 10, 11, 12, 13]


def test_a_full_disk_does_not_take_the_log_offline(bench: LogBench) -> None:
    """Deleting frees a full disk, so it must work there, or change nothing and give the reason."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.flush(checkpoint=True)
    bench.sim.capacity_bytes = sum(len(data) for data in bench.sim.files().values())
    try:
        log.delete_before(9)
    except DiskFull:
        assert (log.log_start_offset, offsets_of(log)) == (0, list(range(14)))
    bench.sim.capacity_bytes += 1 << 20
    log.delete_before(9)
    assert log.failure is None
    assert offsets_of(bench.kill_and_open()) == list(range(9, 14))
