"""Reading a log while it is in use: damage is found, quarantined and not served."""

from __future__ import annotations

import pytest

from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log
from penstock.storage.scrub import ScrubCursor, ScrubPiece

from .log_bench import LogBench, append, offsets_of, record

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


def scrub(log: Log, bytes_max: int = 1 << 20) -> list[ScrubPiece]:
    """Runs one round and quarantines what is bad."""
    cursor, pieces = ScrubCursor(log), []
    while (piece := cursor.next_piece(bytes_max)) is not None:
        piece.run()
        pieces.append(piece)
        bad = piece.damage(log)
        if bad is not None:
            log.quarantine(bad)
    return pieces


def ranges(log: Log) -> list[tuple[int, int]]:
    return [(held.start_offset, held.end_offset) for held in log.damage]


@pytest.mark.parametrize("bytes_max", [1, 3 * BATCH_BYTES, 1 << 20])
def test_a_sound_log_is_read_completely(bench: LogBench, bytes_max: int) -> None:
    """Every batch once, however small the pieces are."""
    log = bench.create(SEGMENTED)
    append(log, 14, epoch=3)
    log.delete_before(2)
    pieces = scrub(log, bytes_max)
    digests = [each for piece in pieces for each in piece.digests]
    assert [each.base_offset for each in digests] == list(range(14))
    assert {each.leader_epoch for each in digests} == {3}
    assert sum(piece.position - piece.start for piece in pieces) == log.size
    assert log.damage == []


@pytest.mark.parametrize(
    ("offset", "byte", "bit"), [(1, 70, 0), (5, 8, 7), (9, 0, 7), (12, 70, 1), (13, 17, 0)]
)
def test_a_bad_batch_is_quarantined_and_the_rest_is_served(
    bench: LogBench, offset: int, byte: int, bit: int
) -> None:
    """In a closed segment or the last one, even if it was read correctly before."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.flush(checkpoint=True)
    assert offsets_of(log) == list(range(14))
    base = offset // 4 * 4
    bench.flip_bit(bench.log_path(base), (offset - base) * BATCH_BYTES + byte, bit)
    scrub(log)
    assert ranges(log) == [(offset, offset + 1)]
    with pytest.raises(LogDamaged, match="quarantined"):
        log.read(offset, 1000)
    append(log, 3)
    for restart in (lambda held: held, bench.reopen, lambda _: bench.kill_and_open()):
        log = restart(log)
        assert ranges(log) == [(offset, offset + 1)]
        assert offsets_of(log, offset + 1) == list(range(offset + 1, 17))
        scrub(log)
        assert ranges(log) == [(offset, offset + 1)]


def test_adjacent_bad_batches_are_one_range(bench: LogBench) -> None:
    """The range between two valid batches."""
    log = bench.create()
    append(log, 12)
    log.flush(checkpoint=True)
    for number in (5, 6, 7):
        bench.flip_bit(bench.log_path(), number * BATCH_BYTES + 70)
    scrub(log, BATCH_BYTES)
    assert ranges(log) == [(5, 8)]


def test_a_repaired_log_is_complete_again(bench: LogBench) -> None:
    """It is truncated at the damage, and the rest is written again from there."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.flush(checkpoint=True)
    bench.flip_bit(bench.log_path(4), BATCH_BYTES + 70)
    scrub(log)
    log.truncate_to(5)
    append(log, 9)
    assert (offsets_of(log), log.damage) == (list(range(14)), [])
    scrub(log)
    assert log.damage == []
    log.flush()
    bench.lose_power()
    log = bench.open()
    assert (offsets_of(log), log.damage) == (list(range(14)), [])


def test_a_piece_from_before_a_truncation_does_not_count(bench: LogBench) -> None:
    """The bytes that it read may have been replaced since."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    log.flush(checkpoint=True)
    bench.flip_bit(bench.log_path(4), BATCH_BYTES + 70)
    cursor = ScrubCursor(log)
    found = []
    while (piece := cursor.next_piece(1 << 20)) is not None:
        piece.run()
        if piece.bad is not None:
            found.append(piece)
            log.truncate_to(4)
            append(log, 3)
            break
    assert found[0].damage(log) is None
    assert cursor.next_piece(1 << 20) is None


def test_a_segment_that_is_deleted_meanwhile_is_skipped(bench: LogBench) -> None:
    """The round continues with the next one."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    cursor = ScrubCursor(log)
    first = cursor.next_piece(1)
    assert first is not None
    first.run()
    log.delete_before(9)
    following = cursor.next_piece(1 << 20)
    assert following is not None
    assert following.segment.base_offset == 8
