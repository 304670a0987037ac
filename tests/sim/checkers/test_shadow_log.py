"""Shadows: copies of a log, read from its files, that follow appends and truncations."""

from __future__ import annotations

from random import Random

from penstock.records.record import Record, build_batch
from penstock.sim.checkers.shadow_log import ShadowLog
from penstock.sim.disk.disk import SimDisk
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from storage.log_bench import NOW_MS, LogBench


def bench() -> LogBench:
    return LogBench(SimDisk(Random(1), Random(2)))


def append(log: Log, value: bytes, epoch: int = 0) -> None:
    batch = build_batch([Record(0, NOW_MS, None, value)])
    log.append(batch, epoch, NOW_MS)


def small(at: LogBench) -> Log:
    """Returns a log that starts a new segment after every other batch."""
    return at.create(LogConfig(segment_bytes=150))


def test_a_shadow_follows_appends_over_segments() -> None:
    """`refresh` returns the new batches, whichever segment they are in."""
    at = bench()
    log = small(at)
    shadow = ShadowLog(log, at.sim.peek)
    assert shadow.refresh() == (False, [])
    for number in range(6):
        append(log, b"%d" % number, epoch=number // 3)
    cut, new = shadow.refresh()
    assert not cut
    assert [mark.base_offset for mark in new] == [0, 1, 2, 3, 4, 5]
    assert [mark.leader_epoch for mark in new] == [0, 0, 0, 1, 1, 1]
    assert len(log.segments) > 1
    append(log, b"more", epoch=1)
    assert [mark.base_offset for mark in shadow.refresh()[1]] == [6]


def test_equal_logs_have_equal_chains_below_every_offset() -> None:
    """A chain differs as soon as one batch does, even if only in its leader epoch."""
    shadows = []
    for values, epoch in ((b"ab", 1), (b"ab", 1), (b"ac", 1), (b"ab", 2)):
        at = bench()
        log = at.create()
        append(log, b"first")
        for value in values:
            append(log, bytes([value]), epoch)
        shadow = ShadowLog(log, at.sim.peek)
        shadow.refresh()
        shadows.append(shadow)
    one, same, other, later = shadows
    assert [one.chain_at(offset) for offset in range(4)] == [
        same.chain_at(offset) for offset in range(4)
    ]
    assert one.chain_at(2) == other.chain_at(2)
    assert one.chain_at(3) != other.chain_at(3)
    assert one.chain_at(2) != later.chain_at(2)
    assert one.chain_at(4) is None


def test_a_truncation_is_noticed_even_if_the_log_has_grown_again() -> None:
    """Then the whole log is read again."""
    at = bench()
    log = at.create()
    for value in (b"a", b"b", b"c"):
        append(log, value)
    shadow = ShadowLog(log, at.sim.peek)
    shadow.refresh()
    kept = shadow.chain_at(2)
    log.truncate_to(2)
    append(log, b"d", epoch=1)
    cut, new = shadow.refresh()
    assert cut
    assert len(new) == 3
    assert shadow.chain_at(2) == kept
    assert shadow.marks[-1].leader_epoch == 1


def test_marks_between_two_offsets() -> None:
    """Returns the batches that are completely between two offsets."""
    at = bench()
    log = at.create()
    for value in (b"a", b"b", b"c", b"d"):
        append(log, value)
    shadow = ShadowLog(log, at.sim.peek)
    shadow.refresh()
    assert [mark.base_offset for mark in shadow.marks_between(1, 3)] == [1, 2]


def test_a_log_that_does_not_begin_at_zero_is_not_whole() -> None:
    """Its chains cannot be compared with those of other replicas."""
    at = bench()
    log = at.create()
    append(log, b"a")
    log.start_at(10)
    append(log, b"b")
    shadow = ShadowLog(log, at.sim.peek)
    shadow.refresh()
    assert not shadow.is_whole
    assert [mark.base_offset for mark in shadow.marks] == [10]
