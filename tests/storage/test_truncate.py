"""Truncation: a follower removes what its leader does not have, and an interrupted one is
completed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from errno import EIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.epochs import EpochStart
from penstock.records.record import build_batch
from penstock.storage.checkpoints import decode_checkpoint, encode_checkpoint
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogOffline, OffsetOutOfRange, StorageError
from penstock.storage.log import Log

from .log_bench import (
    NOW_MS,
    LogBench,
    append,
    append_batch,
    append_produced,
    each_interruption,
    new_bench,
    offsets_of,
    record,
    records_of,
    state_of,
)

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


@pytest.mark.parametrize("offset", range(15))
def test_a_truncated_log_equals_one_that_was_never_longer(bench: LogBench, offset: int) -> None:
    """Records, epochs, producers and later appends are those of a log that ended there."""
    log = bench.create(SEGMENTED)
    grow(log, 14)
    log.truncate_to(offset)
    other = new_bench()
    expected = other.create(SEGMENTED)
    grow(expected, offset)
    assert state_of(log) == state_of(expected)
    assert [held.base_offset for held in log.segments if held.size] == [
        held.base_offset for held in expected.segments if held.size
    ]
    grow(log, 20)
    grow(expected, 20)
    assert state_of(log) == state_of(expected)
    log.flush()
    bench.lose_power()
    assert state_of(bench.open()) == state_of(expected)


def grow(log: Log, end_offset: int) -> None:
    """Appends up to an offset, always the same records, with epochs and producers."""
    while log.end_offset < end_offset:
        number = log.end_offset
        batch = build_batch(
            [record(number)], producer_id=number % 3, producer_epoch=0, base_sequence=number // 3
        )
        log.append(batch, number // 5, NOW_MS)


def test_truncating_beyond_the_end_does_nothing(bench: LogBench) -> None:
    log = bench.create()
    append(log, 3)
    log.truncate_to(3)
    log.truncate_to(99)
    assert offsets_of(log) == [0, 1, 2]


def test_truncating_below_the_log_start_is_out_of_range(bench: LogBench) -> None:
    """A deleted offset cannot be the end of the log."""
    log = bench.create()
    append(log, 5)
    log.delete_before(3)
    with pytest.raises(OffsetOutOfRange, match=r"holds \[3, 5\)"):
        log.truncate_to(2)
    assert offsets_of(log) == [3, 4]


def test_a_batch_is_truncated_as_a_whole(bench: LogBench) -> None:
    """An offset within a batch removes the whole batch, also after a restart."""
    log = bench.create()
    append(log, 2)
    append_batch(log, 5)
    log.flush()
    log.truncate_to(4)
    assert (log.end_offset, offsets_of(log)) == (2, [0, 1])
    assert log.recovery_point <= 2
    log = bench.kill_and_open()
    assert (log.end_offset, offsets_of(log), log.damage) == (2, [0, 1], [])


def test_the_log_start_never_exceeds_the_end(bench: LogBench) -> None:
    """Not even when the batch that contains the log start is truncated."""
    log = bench.create()
    append_batch(log, 10)
    log.delete_before(5)
    log.truncate_to(7)
    assert log.log_start_offset <= log.end_offset
    log = bench.kill_and_open()
    assert log.log_start_offset <= log.end_offset
    append(log)
    assert offsets_of(log)[-1] == log.end_offset - 1


def test_epochs_are_truncated_too(bench: LogBench) -> None:
    """An epoch whose records are gone is no longer known."""
    log = bench.create()
    for epoch in (1, 3, 5):
        append(log, 3, epoch=epoch)
    log.truncate_to(6)
    assert log.epochs.entries == (EpochStart(1, 0), EpochStart(3, 3))
    append(log, 1, epoch=4)
    assert log.epochs.end_offset_for(3, log.end_offset) == (3, 6)
    assert bench.kill_and_open().epochs.entries[-1] == EpochStart(4, 6)


def test_producer_state_is_truncated_too(bench: LogBench) -> None:
    """A retry of a truncated batch is a new batch. A retry of an earlier one is still a
    duplicate."""
    log = bench.create(SEGMENTED)
    append_produced(log, 7, 0, 12)
    log.truncate_to(6)
    (entry,) = log.producers.entries()
    assert (entry.last_sequence, entry.last_offset) == (5, 5)


def test_a_truncation_right_after_a_roll_can_be_flushed(bench: LogBench) -> None:
    """Dirty files that were deleted are not flushed any more."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.truncate_to(2)
    log.flush()
    append(log, 3)
    log.flush()
    assert offsets_of(log) == [0, 1, 2, 3, 4]


def test_old_index_entries_do_not_come_back() -> None:
    """A segment that was truncated and grew again is read by its present contents, also after a
    crash."""
    config = LogConfig(segment_bytes=6000, index_interval_bytes=1000)
    for seed in range(30):
        bench = new_bench(seed)
        log = bench.create(config)
        append(log, 40)
        log.flush(checkpoint=True)
        log.truncate_to(3)
        append(log, 2, size=1500)
        append(log, 60)
        log.flush(checkpoint=True)
        bench.lose_power()
        log = bench.open()
        for offset in range(65):
            assert records_of(log, offset)[0].offset == offset


def test_an_interrupted_truncation_is_completed() -> None:
    """Stopped at any point, the log is as before or as it should be, without a gap."""
    sound = new_bench()
    before = sound.create(SEGMENTED)
    grow(before, 30)
    whole = state_of(before)
    before.truncate_to(9)
    cut = state_of(before)
    outcomes = []

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create(SEGMENTED)
        grow(log, 30)
        log.flush(checkpoint=True)
        return lambda: log.truncate_to(9)

    for bench in each_interruption(prepare):
        found = state_of(bench.open())
        assert found in (whole, cut)
        assert state_of(bench.kill_and_open()) == found
        outcomes.append(found == cut)
    assert False in outcomes
    assert all(outcomes[-7:])


def test_an_interrupted_truncation_above_damage_is_completed() -> None:
    """Damage below the target does not prevent the rest from being truncated."""

    def prepare(bench: LogBench) -> Callable[[], object]:
        log = bench.create()
        append(log, 12)
        log.close()
        append(bench.open())
        bench.kill()
        # An impossible length: a scan by lengths ends here.
        bench.flip_bit(bench.log_path(), 3 * BATCH_BYTES + 8, 7)
        log = bench.open()
        return lambda: log.truncate_to(8)

    for bench in each_interruption(prepare, power_loss_seeds=2):
        log = bench.open()
        assert [(held.start_offset, held.end_offset) for held in log.damage] == [(3, 4)]
        assert log.end_offset in (8, 12, 13)
        assert offsets_of(log, 4) == list(range(4, log.end_offset))


@pytest.mark.parametrize(("byte", "bit"), [(70, 0), (8, 7), (0, 7)])
def test_a_truncation_that_meets_bit_rot_harms_no_later_append(byte: int, bit: int) -> None:
    """It is done, or not done, or the log is offline: no checkpoint is left that truncates later
    records."""
    bench = new_bench()
    log = bench.create()
    append_produced(log, 7, 0, 12)
    log = bench.reopen(log)
    position = bench.position_of(3) + byte
    bench.flip_bit(bench.log_path(), position, bit)
    with suppress(StorageError):
        log.truncate_to(8)
    if log.failure is None:
        append(log)
        log.flush()
        end = log.end_offset
        log = bench.kill_and_open()
        assert log.end_offset == end
        assert offsets_of(log, end - 1) == [end - 1]


def test_truncated_damage_is_gone(bench: LogBench) -> None:
    """New records at these offsets can be read, also after a restart."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.close()
    append(bench.open())
    bench.kill()
    bench.flip_bit(bench.log_path(8), BATCH_BYTES + 70)
    bench.write_file(bench.path("penstock-checkpoint"), _checkpoint_before_stop(bench))
    log = bench.open()
    assert [held.start_offset for held in log.damage] == [9]
    log.truncate_to(6)
    assert log.damage == []
    assert bench.kill_and_open().damage == []
    log = bench.open()
    append(log, 10)
    assert offsets_of(log) == list(range(16))
    assert offsets_of(bench.reopen(log)) == list(range(16))


def _checkpoint_before_stop(bench: LogBench) -> bytes:
    """Returns the checkpoint without a clean stop and with all indexes to rebuild: everything is
    read."""
    checkpoint = decode_checkpoint(bench.read_file(bench.path("penstock-checkpoint")))
    return encode_checkpoint(replace(checkpoint, clean_stop=None, indexed_offset=0))


def test_a_truncation_within_damage_frees_its_offsets(bench: LogBench) -> None:
    """Records that the leader sends again for a quarantined range can be read."""
    log = bench.create()
    append(log, 12)
    log.close()
    append(bench.open())
    bench.kill()
    for number in (5, 6, 7):
        bench.flip_bit(bench.log_path(), number * BATCH_BYTES + 70)
    log = bench.open()
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(5, 8)]
    log.truncate_to(6)
    append(log, 6)
    assert offsets_of(log, 6) == list(range(6, 12))
    assert offsets_of(bench.reopen(log), 6) == list(range(6, 12))
    append(log := bench.open())
    log = bench.kill_and_open()
    assert offsets_of(log, 6) == list(range(6, 13))


@pytest.mark.parametrize("first", [5, 6, 7, 8])
def test_a_truncation_at_the_start_of_damage_removes_the_damaged_bytes(
    bench: LogBench, first: int
) -> None:
    """Otherwise records fetched again would follow them, and the damage would be found again."""
    log = bench.create()
    append(log, 12)
    log.close()
    append(bench.open())
    bench.kill()
    for number in range(first, 9):
        bench.flip_bit(bench.log_path(), number * BATCH_BYTES + 70)
    log = bench.open()
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(first, 9)]
    log.truncate_to(first)
    assert log.damage == []
    assert log.active.size == first * BATCH_BYTES
    append(log, 6)
    assert offsets_of(log) == list(range(first + 6))
    log = bench.kill_and_open()
    assert log.damage == []
    assert offsets_of(log) == list(range(first + 6))


@pytest.mark.parametrize("operation", ["unlink", "truncate", "fsync", "rename", "sync_directory"])
def test_a_failed_truncation_takes_the_log_offline(operation: str) -> None:
    """Only a restart can tell what is there, and it completes the operation."""
    for skip in range(12):
        bench = new_bench()
        log = bench.create(SEGMENTED)
        append(log, 14)
        log.flush(checkpoint=True)
        bench.sim.fail_next(operation, EIO, skip=skip)
        try:
            log.truncate_to(5)
        except LogOffline as error:
            assert "restart the broker" in str(error)
            bench.sim.heal()
            assert bench.kill_and_open().end_offset in (5, 14)
        else:
            assert skip > 0
            break


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), min_size=1, max_size=6))
def test_any_sequence_of_appends_and_truncations(steps: list[tuple[int, float]]) -> None:
    """However often it is truncated and grows, the log has what was last written at each offset."""
    bench = new_bench()
    log = bench.create(LogConfig(segment_bytes=3 * BATCH_BYTES, index_interval_bytes=0))
    model: list[bytes] = []
    for epoch, (count, share) in enumerate(steps):
        for number in range(count):
            value = b"%d/%d" % (epoch, number)
            log.append(build_batch([record(0)._replace(value=value)]), epoch, NOW_MS)
            model.append(value)
        target = int(len(model) * share)
        log.truncate_to(target)
        del model[target:]
        assert [held.value for held in records_of(log)] == model
    log = bench.kill_and_open()
    assert [held.value for held in records_of(log)] == model
