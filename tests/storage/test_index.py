"""The sparse indexes: lookups agree in memory, in the file and across both."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogDamaged
from penstock.storage.index import SPILL_ENTRIES, IndexCache, OffsetIndex, TimeIndex

from .log_bench import LogBench, append, new_bench, offsets_of, record

PATH = "/data/00000000000000000000.index"
BATCH_BYTES = len(build_batch([record(0)]))


def new_index(bench: LogBench, cache: IndexCache | None = None) -> OffsetIndex:
    return OffsetIndex(PATH, bench.resources.pool, cache or bench.resources.cache)


def test_a_lookup_finds_the_last_batch_that_ended_before(bench: LogBench) -> None:
    """Entries are (last offset, start of that batch). A scan from there reaches the offset."""
    index = new_index(bench)
    assert index.lookup(5) is None
    for offset, position in ((10, 1000), (20, 2000)):
        index.append(offset, position)
    assert index.lookup(9) is None
    assert index.lookup(10) == index.lookup(19) == (10, 1000)
    assert index.lookup(20) == index.lookup(99) == (20, 2000)


def test_spilled_and_unspilled_entries_are_one_index(bench: LogBench) -> None:
    """Lookups around the border between file and memory agree with a plain list."""
    index = new_index(bench)
    count = 2 * SPILL_ENTRIES + 100
    for number in range(1, count + 1):
        index.append(number * 10, number * 100)
    assert (index.spilled, len(index.tail), len(index)) == (2 * SPILL_ENTRIES, 100, count)
    border = 2 * SPILL_ENTRIES * 10
    for offset in (*range(border - 30, border + 31), 5, 10, count * 10, count * 10 + 5):
        number = min(offset // 10, count)
        assert index.lookup(offset) == ((number * 10, number * 100) if number else None)
    for position in range(border * 10 - 300, border * 10 + 301, 50):
        number = position // 100
        assert index.boundary_at_or_below(position, position - 100) == (number * 10, number * 100)
    assert index.boundary_at_or_below(50, 0) is None
    assert index.boundary_at_or_below(450, 400) is None
    assert index.last() == (count * 10, count * 100)


def test_the_file_has_kafkas_format(bench: LogBench) -> None:
    """Big-endian pairs of 32 bits, nothing else."""
    index = new_index(bench)
    index.append(1, 256)
    index.append(2, 65536)
    index.spill()
    assert bench.read_file(PATH) == bytes.fromhex("0000000100000100 0000000200010000")
    times = TimeIndex("/data/t", bench.resources.pool)
    times.maybe_append(256, 1)
    times.spill()
    assert bench.read_file("/data/t") == bytes.fromhex("0000000000000100 00000001")


@settings(deadline=None, max_examples=60)
@given(
    entries=st.integers(0, 40),
    spills=st.sets(st.integers(0, 40)),
    cut=st.integers(0, 4500),
    more=st.integers(0, 5),
)
def test_a_truncated_index_equals_one_that_was_never_longer(
    entries: int, spills: set[int], cut: int, more: int
) -> None:
    """Wherever the border between file and memory was, and whatever is added afterwards."""
    bench = new_bench()
    index = new_index(bench)
    expected: list[tuple[int, int]] = []
    for number in range(1, entries + 1):
        index.append(number * 10, number * 100)
        expected.append((number * 10, number * 100))
        if number in spills:
            index.spill()
    index.truncate(cut)
    expected = [entry for entry in expected if entry[1] < cut]
    start = expected[-1] if expected else (0, 0)
    for number in range(1, more + 1):
        index.append(start[0] + number, start[1] + number)
        expected.append((start[0] + number, start[1] + number))
    index.spill()
    assert index.last() == (expected[-1] if expected else None)
    assert len(index) == len(expected)
    for offset in range(0, 450, 3):
        below = [entry for entry in expected if entry[0] <= offset]
        assert index.lookup(offset) == (below[-1] if below else None)
    if index.spilled:
        assert len(bench.read_file(PATH)) == 8 * len(expected)


def test_a_full_disk_keeps_entries_in_memory(bench: LogBench) -> None:
    """Spilling only saves memory. An append never fails because of it, and the next spill writes
    all."""
    index = new_index(bench)
    for number in range(1, SPILL_ENTRIES):
        index.append(number, number)
    bench.sim.capacity_bytes = 100
    index.append(SPILL_ENTRIES, SPILL_ENTRIES)
    assert (index.spilled, index.lookup(SPILL_ENTRIES)) == (0, (SPILL_ENTRIES, SPILL_ENTRIES))
    bench.sim.capacity_bytes = 1 << 30
    index.append(SPILL_ENTRIES + 1, SPILL_ENTRIES + 1)
    assert (index.spilled, len(index.tail)) == (SPILL_ENTRIES + 1, 0)
    for offset in (1, 77, SPILL_ENTRIES + 1):
        assert index.lookup(offset) == (offset, offset)


def test_the_time_index_increases_in_time_and_offset(bench: LogBench) -> None:
    """An entry that is not later than the last one is not added."""
    times = TimeIndex("/data/t", bench.resources.pool)
    for timestamp, offset in ((10, 1), (10, 2), (9, 3), (20, 3), (30, 3), (30, 4)):
        times.maybe_append(timestamp, offset)
    assert times.entries() == [(10, 1), (20, 3), (30, 4)]
    assert times.lookup(9) is None
    assert times.lookup(10) == times.lookup(19) == (10, 1)
    assert times.lookup(30) == times.lookup(99) == (30, 4)


@pytest.mark.parametrize("spilled", [0, 2, 4])
def test_the_time_index_truncates_across_the_border(bench: LogBench, spilled: int) -> None:
    """Entries at or after the offset are removed, in the file and in memory."""
    times = TimeIndex("/data/t", bench.resources.pool)
    for number in range(1, 5):
        times.maybe_append(number * 100, number * 10)
        if number == spilled:
            times.spill()
    times.truncate(30)
    assert times.entries() == [(100, 10), (200, 20)]
    assert times.last() == (200, 20)
    times.maybe_append(150, 25)
    times.maybe_append(250, 25)
    times.spill()
    assert times.entries() == [(100, 10), (200, 20), (250, 25)]
    fresh = TimeIndex("/data/t", bench.resources.pool)
    fresh.spilled = 3
    assert fresh.last() == (250, 25)


def test_the_cache_is_bounded() -> None:
    """The least recently used index is evicted first, however it was added."""
    cache = IndexCache(bytes_max=800)
    forty = array("Q", range(40))
    cache.put("a", array("Q", forty))
    cache.put("b", array("Q", forty))
    assert cache.get("a") is not None
    cache.put("c", array("Q", forty))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.bytes_held == 640
    cache.extend("a", forty)
    assert cache.bytes_held <= 800
    cache.forget("a")
    cache.forget("c")
    assert cache.bytes_held == 0


def test_many_segments_share_the_cache() -> None:
    """Reading a whole long log keeps no more index bytes and open files than allowed."""
    bench = new_bench(handles_max=16, cache_bytes_max=200)
    log = bench.create(LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=0))
    append(log, 400)
    log = bench.reopen(log)
    assert offsets_of(log) == list(range(400))
    assert bench.resources.cache.bytes_held <= 200
    assert len(bench.sim.open_paths()) <= 16


def test_lookups_in_a_log_across_spills(bench: LogBench) -> None:
    """A segment with many more entries than fit into memory reads correctly at every offset."""
    log = bench.create(LogConfig(index_interval_bytes=0))
    count = 2 * SPILL_ENTRIES + 300
    append(log, count)
    assert log.active.index.spilled > 0
    for offset in (*range(0, count, 37), *range(SPILL_ENTRIES - 3, SPILL_ENTRIES + 4), count - 1):
        piece = log.read(offset, 0)
        assert piece is not None
        assert piece.position == offset * BATCH_BYTES
    log.truncate_to(SPILL_ENTRIES + 5)
    append(log, 50)
    for offset in range(SPILL_ENTRIES - 10, SPILL_ENTRIES + 55):
        piece = log.read(offset, 0)
        assert piece is not None
        assert piece.position == offset * BATCH_BYTES


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_an_index_never_hides_a_record(clean: bool) -> None:
    """Indexes are derived data. Whichever bit rots, a read returns the right batch or raises
    LogDamaged.

    A lookup that returns a later position would silently skip records.
    """
    sound = new_bench()
    log = sound.create(LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=0))
    append(log, 15)
    log.close()
    size = len(sound.read_file(sound.path("00000000000000000000.index")))
    assert size > 16
    for position in range(size):
        for bit in (0, 2):
            bench = new_bench()
            log = bench.create(sound.config)
            append(log, 15)
            log.close()
            bench.flip_bit(bench.path("00000000000000000000.index"), position, bit)
            if not clean:
                append(bench.open())
                bench.kill()
            log = bench.open()
            for offset in range(15):
                try:
                    piece = log.read(offset, 0)
                except LogDamaged:
                    continue
                assert piece is not None
                assert piece.position == offset % 10 * BATCH_BYTES


def test_one_open_file_is_enough() -> None:
    """A log works with any limit of open files."""
    bench = new_bench(handles_max=1)
    log = bench.create(LogConfig(segment_bytes=5 * BATCH_BYTES, index_interval_bytes=0))
    append(log, 23)
    log.flush()
    assert offsets_of(log) == list(range(23))
    append(log, 2)
    log = bench.kill_and_open()
    assert offsets_of(log) == list(range(25))
    log.truncate_to(12)
    log.delete_before(3)
    assert offsets_of(bench.reopen(log)) == list(range(3, 12))
