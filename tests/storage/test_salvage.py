"""What counts as damage and what as a torn tail, above the recovery point of the checkpoint.

The log has twenty batches. Each was synced, but the log's own checkpoint was never updated.
"""

from __future__ import annotations

import pytest

from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged
from penstock.storage.log import Log
from penstock.storage.offset_checkpoint import LogOffsets

from .log_bench import LogBench, append, append_batch, new_bench, offsets_of

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
    """Returns every readable offset, and skips damaged ranges."""
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


# After a kill: the page cache has everything


@pytest.mark.parametrize("inside", [8, 11, 16, 17, 23, 57, 61, 70])
def test_bit_rot_after_a_kill_is_damage(inside: int) -> None:
    """A flipped bit at any position of a batch, including its length. It is reported, and the
    batches after it are kept and readable."""
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


def test_bit_rot_in_the_last_batch_after_a_kill_is_damage() -> None:
    """The batch is complete, so it was not being written. Its offsets are never assigned again."""
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
def test_bit_rot_in_a_closed_segment_after_a_kill_is_damage(bad: int) -> None:
    """In its last batch too: the segments after it stay. Nothing was synced."""
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
    """The file ends within it: it was never acknowledged."""
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


# After a power cut


def test_below_the_synced_offset_bit_rot_is_damage_after_a_power_cut() -> None:
    """The recovery point was never stored, but the synced offset was stored a few seconds ago."""
    bench, log = written()
    known = noted(log, synced_offset=15)
    bench.lose_power()
    rot(bench, BAD)
    log = bench.open(known=known)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(BAD, BAD + 1)]
    assert readable(log) == [*range(BAD), *range(BAD + 1, COUNT)]


def test_above_the_synced_offset_bad_bytes_are_a_torn_tail() -> None:
    """The disk may have written a later page and not an earlier one."""
    bench, log = written()
    known = noted(log, synced_offset=BAD)
    bench.lose_power()
    rot(bench, BAD)
    log = bench.open(known=known)
    assert (log.end_offset, log.damage) == (BAD, [])


def test_synced_bytes_that_are_missing_are_damage() -> None:
    """The file is shorter than what was stored. The offsets are not assigned again."""
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


def test_a_synced_segment_that_is_missing_is_damage() -> None:
    """An empty log that was never closed is not a new one if its synced offset was stored."""
    bench, log = written()
    known = noted(log)
    bench.lose_power()
    bench.write_file(bench.log_path(), b"")
    log = bench.open(known=known)
    assert [(held.start_offset, held.end_offset) for held in log.damage] == [(0, COUNT)]
    assert log.end_offset == COUNT


# Stored offsets that no longer apply


@pytest.mark.parametrize(("cut", "committed"), [("truncate", 5), ("start", 0)])
def test_offsets_stored_before_a_truncation_count_up_to_where_it_cut(
    cut: str, committed: int
) -> None:
    """Above that other records may be there since, which are neither synced nor committed."""
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
    assert log.restored_high_watermark == committed
    bench.kill()
    assert bench.open(known=known, cache_is_intact=True).restored_high_watermark == committed


def test_the_lowest_of_several_truncations_counts() -> None:
    """Also those before a restart. Offsets that are stored later take the truncations into
    account."""
    bench, log = written()
    known = noted(log, high_watermark=COUNT)
    log.truncate_to(9)
    append(log, COUNT, epoch=1)
    bench.kill()
    log = bench.open(known=known)
    log.truncate_to(12)
    append(log, COUNT, epoch=2)
    bench.kill()
    log = bench.open(known=known)
    assert log.restored_high_watermark == 9
    known = noted(log, high_watermark=15)
    log.on_offsets_noted(log.generation)
    log.truncate_to(14)
    bench.kill()
    assert bench.open(known=known).restored_high_watermark == 14


def test_offsets_of_another_topic_or_log_are_ignored() -> None:
    """A deleted log with the same name, or one that was removed by hand and created again."""
    bench, log = written()
    known = noted(log, COUNT + 5, COUNT + 5)
    for other in (known._replace(topic_id="x"), known._replace(generation=log.generation - 1)):
        bench.kill()
        log = bench.open(known=other)
        assert (log.end_offset, log.damage, log.restored_high_watermark) == (COUNT, [], 0)


def test_the_high_watermark_is_limited_to_the_log_end() -> None:
    """Committed records that a crash lost are replaced by others, which are not committed."""
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
