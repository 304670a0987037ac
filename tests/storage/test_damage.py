"""Damage below the recovery point is kept and reported. It is never served or cut off as a torn
tail."""

from __future__ import annotations

import pytest

from penstock.records.record import build_batch, read_records
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log

from .log_bench import LogBench, append, append_batch, new_bench, offsets_of, record

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=6 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)
CHECKPOINT = "penstock-checkpoint"


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(held.start_offset, held.end_offset) for held in log.damage]


def promised(bench: LogBench, count: int = 12, config: LogConfig | None = None) -> None:
    """Makes a log with `count` durable records and one more, and stops it uncleanly."""
    log = bench.create(config)
    append(log, count)
    log.flush(checkpoint=True)
    append(log)
    bench.kill()


def flip(bench: LogBench, offset: int, byte: int = 70, base: int = 0) -> None:
    """Flips a bit in the record at `offset`."""
    bench.flip_bit(bench.log_path(base), (offset - base) * BATCH_BYTES + byte)


def check_around(log: Log, start: int, end: int) -> None:
    """Checks that reads before and after the damage work, and reads within it are refused."""
    for offset in range(log.end_offset):
        if start <= offset < end:
            with pytest.raises(LogDamaged):
                log.read(offset, 1 << 20)
        else:
            piece = log.read(offset, 1 << 20)
            assert piece is not None
            assert int.from_bytes(piece.data[:8], "big") == offset
    if 0 < start <= 6:
        before = log.read(0, 1 << 20)
        assert before is not None
        assert len(before.data) == start * BATCH_BYTES
    if end < log.end_offset:
        assert offsets_of(log, end) == list(range(end, log.end_offset))


@pytest.mark.parametrize("byte", [*range(0, 61, 4), 8, 11, 16, 70, BATCH_BYTES - 1])
def test_a_flipped_bit_is_quarantined(bench: LogBench, byte: int) -> None:
    """At any position of a batch. The log before and after the batch stays readable.

    The CRC does not cover offset, length and epoch. There the adjacent batches show the damage.
    """
    promised(bench)
    flip(bench, 5, byte)
    log = bench.open()
    assert ranges(log) == [(5, 6)]
    assert log.end_offset == 13
    check_around(log, 5, 6)


def test_damage_is_reported_with_its_position(bench: LogBench) -> None:
    """An operator learns which file, which bytes, which offsets, and why."""
    promised(bench)
    flip(bench, 5)
    log = bench.open()
    (damage,) = bench.report.damage
    assert damage == log.damage[0]
    assert (damage.segment_base, damage.start_position, damage.end_position) == (
        *(0, 5 * BATCH_BYTES, 6 * BATCH_BYTES),
    )
    assert "CRC" in damage.reason
    with pytest.raises(LogDamaged, match="read them from another replica"):
        log.read(5, 100)


def test_damaged_bytes_are_kept(bench: LogBench) -> None:
    """They are evidence, and somebody may still be able to repair them."""
    promised(bench)
    flip(bench, 5)
    before = bench.read_file(bench.log_path())
    log = bench.open()
    assert bench.read_file(bench.log_path()) == before
    bench.reopen(log)
    assert bench.read_file(bench.log_path()) == before


def test_damage_survives_restarts(bench: LogBench) -> None:
    """After any number of clean and unclean restarts the range is refused and the rest is
    readable."""
    promised(bench)
    flip(bench, 5)
    log = bench.open()
    for _ in range(2):
        log = bench.kill_and_open()
        assert ranges(log) == [(5, 6)]
        check_around(log, 5, 6)
        log = bench.reopen(log)
        assert bench.report.clean
        assert ranges(log) == [(5, 6)]
        check_around(log, 5, 6)
        append(log)
    log.flush()
    bench.lose_power()
    assert ranges(bench.open()) == [(5, 6)]


@pytest.mark.parametrize("config", [LogConfig(), SEGMENTED])
def test_adjacent_damaged_batches_are_one_range(bench: LogBench, config: LogConfig) -> None:
    """There is no valid batch between them."""
    promised(bench, config=config)
    for offset in (2, 3, 4):
        flip(bench, offset)
    log = _open_reading_all(bench)
    assert ranges(log) == [(2, 5)]
    check_around(log, 2, 5)


def test_separate_damage_is_separate_ranges(bench: LogBench) -> None:
    """The valid batches between them are served."""
    promised(bench)
    flip(bench, 2)
    flip(bench, 6)
    log = bench.open()
    assert ranges(log) == [(2, 3), (6, 7)]
    assert _readable(log) == [0, 1, 3, 4, 5, *range(7, 13)]


def _readable(log: Log) -> list[int]:
    """Returns the offsets that a reader gets if it skips those that are refused."""
    found: list[int] = []
    offset = 0
    while offset < log.end_offset:
        try:
            piece = log.read(offset, 0)
        except LogDamaged:
            offset += 1
            continue
        assert piece is not None
        found += [held.offset for held in read_records(piece.data)]
        offset = found[-1] + 1
    return found


def _open_reading_all(bench: LogBench) -> Log:
    """Opens the log without its indexes: all segments are read, wherever the recovery point is."""
    for name in bench.names("index"):
        bench.disk.unlink(bench.path(name))
    return bench.open()


def test_damage_in_a_closed_segment(bench: LogBench) -> None:
    """The segment is entirely below the recovery point, but must be read because its index is
    missing."""
    promised(bench, 20, SEGMENTED)
    flip(bench, 8, base=6)
    log = _open_reading_all(bench)
    assert ranges(log) == [(8, 9)]
    check_around(log, 8, 9)
    log = bench.reopen(log)
    assert ranges(log) == [(8, 9)]
    check_around(log, 8, 9)


def test_damage_at_the_end_of_a_closed_segment(bench: LogBench) -> None:
    """The range ends where the next segment begins."""
    promised(bench, 20, SEGMENTED)
    flip(bench, 11, base=6)
    log = _open_reading_all(bench)
    assert ranges(log) == [(11, 12)]
    check_around(log, 11, 12)


def test_a_completely_damaged_first_segment(bench: LogBench) -> None:
    """The log start offset does not change."""
    promised(bench, 20, SEGMENTED)
    for offset in range(6):
        flip(bench, offset)
    log = _open_reading_all(bench)
    assert ranges(log) == [(0, 6)]
    assert log.log_start_offset == 0
    assert offsets_of(log, 6) == list(range(6, 21))


def test_damage_up_to_the_recovery_point(bench: LogBench) -> None:
    """The last durable batch is bad. Its offset is never assigned again."""
    log = bench.create()
    append(log, 8)
    log.flush(checkpoint=True)
    bench.kill()
    flip(bench, 7)
    log = bench.open()
    assert ranges(log) == [(7, 8)]
    assert log.end_offset == 8
    append(log, 3)
    assert offsets_of(log, 8) == [8, 9, 10]
    for _ in range(2):
        log = bench.kill_and_open()
        assert ranges(log) == [(7, 8)]
        assert offsets_of(log, 8) == [8, 9, 10]
        check_around(log, 7, 8)
    log = bench.reopen(log)
    assert ranges(log) == [(7, 8)]
    assert offsets_of(log, 8) == [8, 9, 10]


@pytest.mark.parametrize("size", [0, 30, 5 * BATCH_BYTES, 5 * BATCH_BYTES + 40])
def test_a_file_shorter_than_the_recovery_point_is_damage(bench: LogBench, size: int) -> None:
    """Durable bytes are gone. They are reported as damage, and their offsets are not assigned
    again."""
    log = bench.create()
    append(log, 8)
    log.flush(checkpoint=True)
    bench.kill()
    bench.write_file(bench.log_path(), bench.read_file(bench.log_path())[:size])
    log = bench.open()
    kept = size // BATCH_BYTES
    assert ranges(log) == [(kept, 8)]
    assert log.end_offset == 8
    append(log, 2)
    for _ in range(2):
        check_around(log, kept, 8)
        assert offsets_of(log, 8) == [8, 9]
        log = bench.kill_and_open()
    assert ranges(log) == [(kept, 8)]


def test_a_lost_file_is_reported_as_damage(bench: LogBench) -> None:
    """A whole segment of durable records is missing. Its offsets are refused, not skipped."""
    for clean in (True, False):
        bench = new_bench()
        log = bench.create(SEGMENTED)
        append(log, 20)
        if clean:
            log.close()
        else:
            log.flush(checkpoint=True)
            append(log)
            bench.kill()
        bench.start_process()
        for suffix in (".log", ".index", ".timeindex"):
            bench.sim.lose_file(bench.path(f"{6:020d}{suffix}"))
        log = bench.open()
        assert ranges(log) == [(6, 12)]
        with pytest.raises(LogDamaged):
            log.read(7, 100)
        assert offsets_of(log, 12) == list(range(12, log.end_offset))
        log = bench.reopen(log)
        assert ranges(log) == [(6, 12)]


def test_a_log_that_lost_all_files_keeps_its_end_offset(bench: LogBench) -> None:
    """Only the checkpoint is left. The log does not start over at offset 0."""
    log = bench.create()
    append(log, 8)
    log.flush(checkpoint=True)
    bench.kill()
    bench.sim.lose_file(bench.log_path())
    log = bench.open()
    assert log.end_offset == 8
    append(log)
    assert log.end_offset == 9


def test_a_torn_tail_after_damage(bench: LogBench) -> None:
    """Durable batches are quarantined, the others are cut off."""
    promised(bench)
    flip(bench, 5)
    flip(bench, 12)
    log = bench.open()
    assert ranges(log) == [(5, 6)]
    assert log.end_offset == 12
    assert bench.report.cut_bytes == BATCH_BYTES


@pytest.mark.parametrize("offset", [0, 5, 10])
def test_without_checkpoint_a_bad_batch_before_valid_ones_is_damage(
    bench: LogBench, offset: int
) -> None:
    """The recovery point is unknown. A bad position with valid batches after it is not a torn
    tail.

    Opening the log again must not turn it into one.
    """
    log = bench.create()
    append(log, 12)
    log.flush(checkpoint=True)
    bench.kill()
    flip(bench, offset)
    bench.disk.unlink(bench.path(CHECKPOINT))
    for _ in range(3):
        log = bench.open()
        assert ranges(log) == [(offset, offset + 1)]
        assert log.end_offset == 12
        check_around(log, offset, offset + 1)
        bench.kill()


def test_without_checkpoint_a_bad_end_is_a_torn_tail(bench: LogBench) -> None:
    """Nothing follows it: the most common result of a crash."""
    log = bench.create()
    append(log, 12)
    bench.kill()
    flip(bench, 11)
    bench.disk.unlink(bench.path(CHECKPOINT))
    log = bench.open()
    assert (log.end_offset, ranges(log)) == (11, [])
    append(log)
    assert offsets_of(bench.kill_and_open()) == list(range(12))


@pytest.mark.parametrize("byte", [0, 8, 16, 20, 40, 70])
@pytest.mark.parametrize("offset", [0, 5, 11])
def test_bit_rot_after_a_clean_stop_does_not_prevent_opening(
    bench: LogBench, offset: int, byte: int
) -> None:
    """After a clean stop the log is opened without reading it. The rest of it is served."""
    log = bench.create()
    append(log, 12)
    log.close()
    flip_high = 7 if byte in (0, 8) else 0
    bench.flip_bit(bench.log_path(), offset * BATCH_BYTES + byte, flip_high)
    log = bench.open()
    for at in range(offset):
        piece = log.read(at, 0)
        assert piece is not None
        assert int.from_bytes(piece.data[:8], "big") == at
    with pytest.raises(LogDamaged):
        log.read(offset, 0)
    append(log)
    assert log.end_offset == 13


def test_damage_covers_all_offsets_of_a_batch(bench: LogBench) -> None:
    """A batch of many records is lost as a whole."""
    log = bench.create()
    append(log, 2)
    append_batch(log, 10)
    append(log, 2)
    log.flush(checkpoint=True)
    bench.kill()
    bench.flip_bit(bench.log_path(), bench.position_of(5) + 100)
    log = bench.open()
    assert ranges(log) == [(2, 12)]
    assert offsets_of(log, 12) == [12, 13]
