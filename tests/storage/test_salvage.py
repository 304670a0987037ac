"""What is damage and what a torn tail, above the recovery point of the checkpoint.

A log of twenty batches, each synced, and none of it noted in its own checkpoint since it was made.
"""

from __future__ import annotations

import pytest

from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets

from .bench import LogBench, append, append_batch, new_bench, offsets_of

COUNT = 20
BAD = 7


def written() -> tuple[LogBench, Log]:
    bench = new_bench()
    log = bench.create()
    for _ in range(COUNT):
        append(log)
        log.flush()
    return bench, log


def noted(log: Log, synced_offset: int | None = None, high_watermark: int = 0) -> LogOffsets:
    synced = log.recovery_point if synced_offset is None else synced_offset
    return LogOffsets(log.topic_id, log.generation, synced, high_watermark)


def rot(bench: LogBench, offset: int, inside: int = 70, base_offset: int = 0) -> None:
    bench.flip_bit(bench.log_path(base_offset), bench.position_of(offset, base_offset) + inside)


def readable(log: Log) -> list[int]:
    """Every offset that is read, with the holes stepped over."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.end_offset:
        hole = [held for held in log.damage if held.start_offset <= offset < held.end_offset]
        if hole:
            with pytest.raises(LogDamaged):
                log.read(offset, 1)
            offset = hole[0].end_offset
            continue
        piece = log.read(offset, 1)
        if piece is None:
            break
        offset += 1
        found.append(offset - 1)
    return found


# A process that was killed: the page cache holds everything


@pytest.mark.parametrize("inside", [8, 11, 16, 17, 23, 57, 61, 70])
def test_rot_after_a_kill_is_damage(inside: int) -> None:
    """A flipped bit anywhere in a batch, its length included: it is reported, and what follows is
    kept and readable."""
    bench, _ = written()
    bench.kill()
    rot(bench, BAD, inside)
    log = bench.open(cache_is_intact=True)
    (damage,) = bench.report.damage
    assert (damage.start_offset, damage.end_offset) == (BAD, BAD + 1)
    assert log.end_offset == COUNT
    assert readable(log) == [*range(BAD), *range(BAD + 1, COUNT)]
    append(log)
    assert log.end_offset == COUNT + 1


def test_rot_in_the_last_batch_after_a_kill_is_damage() -> None:
    """It is whole, so nobody was just writing it. Its offsets are never used again."""
    bench, log = written()
    append_batch(log, 5)
    log.flush()
    bench.kill()
    rot(bench, COUNT + 4)
    log = bench.open(cache_is_intact=True)
    (damage,) = bench.report.damage
    assert (damage.start_offset, damage.end_offset) == (COUNT, COUNT + 5)
    append(log)
    assert (log.end_offset, readable(log)) == (COUNT + 6, [*range(COUNT), COUNT + 5])


@pytest.mark.parametrize("bad", range(COUNT))
def test_rot_in_a_sealed_segment_after_a_kill_is_damage(bad: int) -> None:
    """In its last batch as well: the segments after it stay. Nothing of it was synced."""
    bench = new_bench()
    log = bench.create(LogConfig(segment_bytes=500))
    append(log, COUNT)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    bench.kill()
    rot(bench, bad, base_offset=max(base for base in bases if base <= bad))
    log = bench.open(cache_is_intact=True)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(bad, bad + 1)]
    assert readable(log) == [offset for offset in range(COUNT) if offset != bad]


def test_a_batch_that_was_being_written_is_a_torn_tail() -> None:
    """It ends with the file: nobody was told of it."""
    bench, log = written()
    append(log)
    bench.kill()
    file = bench.disk.open(bench.log_path())
    file.truncate(file.size() - 3)
    file.close()
    log = bench.open(cache_is_intact=True)
    assert (log.end_offset, log.damage) == (COUNT, [])
    assert bench.report.cut_bytes > 0


def test_opening_a_damaged_log_again_changes_nothing() -> None:
    bench, _ = written()
    bench.kill()
    rot(bench, BAD)
    rot(bench, COUNT - 1)
    log = bench.open(cache_is_intact=True)
    state = readable(log), log.damage, log.end_offset
    for intact in (True, False):
        files = bench.sim.files()
        bench.kill()
        log = bench.open(cache_is_intact=intact)
        assert (readable(log), log.damage, log.end_offset) == state
        assert bench.sim.files() == files


# After a loss of power


def test_below_the_synced_offset_rot_is_damage_after_a_loss_of_power() -> None:
    """The recovery point was never noted, but a few seconds ago the synced offset was."""
    bench, log = written()
    known = noted(log, synced_offset=15)
    bench.lose_power()
    rot(bench, BAD)
    log = bench.open(known=known)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(BAD, BAD + 1)]
    assert readable(log) == [*range(BAD), *range(BAD + 1, COUNT)]


def test_above_the_synced_offset_it_is_a_torn_tail() -> None:
    """The disk may have written a later page and not an earlier one."""
    bench, log = written()
    known = noted(log, synced_offset=BAD)
    bench.lose_power()
    rot(bench, BAD)
    log = bench.open(known=known)
    assert (log.end_offset, log.damage) == (BAD, [])


def test_what_was_synced_and_is_gone_is_damage() -> None:
    """The file is shorter than what was noted: the offsets are not used again."""
    bench, log = written()
    known = noted(log)
    bench.lose_power()
    file = bench.disk.open(bench.log_path())
    file.truncate(bench.position_of(12))
    file.fsync()
    file.close()
    log = bench.open(known=known)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(12, COUNT)]
    append(log)
    assert offsets_of(log, COUNT) == [COUNT]


def test_a_whole_segment_that_was_synced_and_is_gone_is_damage() -> None:
    """An empty log that was never closed is no new one if more was noted of it."""
    bench, log = written()
    known = noted(log)
    bench.lose_power()
    bench.write_file(bench.log_path(), b"")
    log = bench.open(known=known)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(0, COUNT)]
    assert log.end_offset == COUNT


# Offsets that were noted and no longer hold


@pytest.mark.parametrize("cut", ["truncate", "start"])
def test_offsets_noted_before_a_cut_are_ignored(cut: str) -> None:
    """Other records, not synced and not committed, may lie there since."""
    bench, log = written()
    known = noted(log, high_watermark=COUNT)
    if cut == "truncate":
        log.truncate_to(5)
    else:
        log.start_at(5)
    append(log, COUNT, epoch=1)
    bench.lose_power()
    log = bench.open(known=known)
    assert log.damage == []
    assert log.restored_high_watermark == 0
    bench.kill()
    assert bench.open(known=known, cache_is_intact=True).restored_high_watermark == 0


def test_offsets_of_another_topic_or_another_log_are_ignored() -> None:
    """One of the same name that was deleted; or one that was removed by hand and made again."""
    bench, log = written()
    known = noted(log, COUNT + 5, COUNT + 5)
    for other in (known._replace(topic_id="x"), known._replace(generation=log.generation - 1)):
        bench.kill()
        log = bench.open(known=other)
        assert (log.end_offset, log.damage, log.restored_high_watermark) == (COUNT, [], 0)


def test_the_high_watermark_is_at_most_the_log_end_and_stays_there() -> None:
    """Committed records that a crash took are replaced by others, which are not committed."""
    bench, log = written()
    append(log, 5)
    known = noted(log, 10, COUNT + 5)
    bench.kill()
    file = bench.disk.open(bench.log_path())
    file.truncate(bench.position_of(15))
    file.close()
    log = bench.open(known=known)
    assert (log.end_offset, log.restored_high_watermark) == (15, 15)
    append(log, COUNT, epoch=3)
    bench.kill()
    assert bench.open(known=known).restored_high_watermark == 0


def test_the_high_watermark_survives_a_clean_stop_and_a_kill() -> None:
    bench, log = written()
    known = noted(log, high_watermark=12)
    bench.kill()
    log = bench.open(known=known)
    assert log.restored_high_watermark == 12
    log.close()
    bench.resources.pool.close()
    bench.start_process()
    log = bench.open(known=known)
    assert bench.report.clean
    assert log.restored_high_watermark == 12
