"""A full disk: refused early, survived if it happens anyway, over when space returns."""

from __future__ import annotations

from errno import EIO

import pytest

from penstock.records.record import build_batch
from penstock.storage.config import LogConfig
from penstock.storage.errors import DiskFull, LogOffline
from penstock.storage.log import Log
from penstock.storage.space import SpaceGuard

from .log_bench import NOW_MS, LogBench, append, new_bench, offsets_of, record, records_of

BATCH_BYTES = len(build_batch([record(0)]))
RESERVE = 100_000


def used(bench: LogBench) -> int:
    return sum(len(data) for data in bench.sim.files().values())


def leave_free(bench: LogBench, size: int) -> None:
    """Sets the free space, as if other programs had used or freed it, and checks it."""
    bench.sim.capacity_bytes = used(bench) + size
    bench.resources.space.check()


def test_appends_are_refused_at_the_low_water_mark() -> None:
    """Before the disk is full. The error says how much space is free and what to do."""
    bench = new_bench(reserve_bytes=RESERVE)
    log = bench.create()
    append(log, 3)
    leave_free(bench, RESERVE + 10 * BATCH_BYTES)
    advice = r"are kept in reserve: free space or lower retention; appends resume automatically"
    with pytest.raises(DiskFull, match=advice):
        append(log, 12)
    assert log.end_offset >= 10
    assert bench.sim.free_bytes("/data") >= RESERVE - BATCH_BYTES
    assert offsets_of(log) == list(range(log.end_offset))


def test_reads_and_flushes_continue() -> None:
    """Only appends need space. The reserve is for everything else."""
    bench = new_bench(reserve_bytes=RESERVE)
    log = bench.create()
    append(log, 10)
    leave_free(bench, RESERVE - 1)
    with pytest.raises(DiskFull):
        append(log, 100)
    log.flush(checkpoint=True)
    end = log.end_offset
    assert offsets_of(log) == list(range(end))
    log.delete_before(3)
    log.truncate_to(end - 1)
    assert offsets_of(bench.reopen(log)) == list(range(3, end - 1))


def test_replica_appends_are_refused_too() -> None:
    """A follower on a full disk reports an error instead of writing a partial batch."""
    bench = new_bench(reserve_bytes=RESERVE)
    log = bench.create()
    leave_free(bench, RESERVE - 1)
    with pytest.raises(DiskFull):
        log.append_replica(bytes(build_batch([record(0)])), NOW_MS)
    assert log.end_offset == 0


def test_appends_resume_when_space_returns() -> None:
    """Without a restart, once a tenth more than the reserve is free. The margin prevents
    flapping."""
    bench = new_bench(reserve_bytes=RESERVE)
    log = bench.create()
    leave_free(bench, RESERVE - 1)
    with pytest.raises(DiskFull):
        append(log)
    leave_free(bench, RESERVE + RESERVE // 20)
    with pytest.raises(DiskFull):
        append(log)
    leave_free(bench, RESERVE + RESERVE // 10 + BATCH_BYTES)
    append(log)
    assert offsets_of(log) == [0]


def test_the_free_space_is_not_read_for_every_append() -> None:
    """With much free space, one reading is good for many appends."""
    bench = new_bench(reserve_bytes=RESERVE)
    log = bench.create()
    asked = bench.sim.counters["free_bytes"]
    append(log, 1000)
    assert bench.sim.counters["free_bytes"] - asked < 10


def test_the_guard_notices_space_used_by_other_programs() -> None:
    """The owner's timer reads the free space again, whatever the last reading allowed."""
    bench = new_bench()
    guard = SpaceGuard(bench.disk, "/data", RESERVE)
    assert guard.allows(100)
    leave_free(bench, RESERVE - 1)
    guard.check()
    assert not guard.allows(100)
    assert guard.refusing
    assert "/data" in guard.explain()


@pytest.mark.parametrize("free", [0, 1, 50, BATCH_BYTES - 1])
def test_a_disk_that_fills_up_within_a_batch(free: int) -> None:
    """The partial batch is cut off, nothing is lost, and the log continues later."""
    bench = new_bench()
    log = bench.create()
    append(log, 5)
    size = len(bench.read_file(bench.log_path()))
    leave_free(bench, free)
    with pytest.raises(DiskFull, match="free space or lower retention"):
        append(log)
    assert len(bench.read_file(bench.log_path())) == size
    assert (log.end_offset, offsets_of(log), log.failure) == (5, list(range(5)), None)
    leave_free(bench, 1 << 20)
    append(log, 2)
    assert offsets_of(log) == list(range(7))
    assert offsets_of(bench.kill_and_open()) == list(range(7))


def test_a_refused_batch_does_not_come_back() -> None:
    """Not even after a power cut, and not even if only a zero byte at its end did not fit: by then
    another batch has its offset, and consumers may have read that one."""
    refused, taken = (build_batch([record(5)._replace(value=value * 40)]) for value in (b"a", b"b"))
    assert refused[-1] == 0
    for seed in range(200):
        bench = new_bench(seed)
        log = bench.create()
        append(log, 5)
        log.flush()
        leave_free(bench, len(refused) - 1)
        with pytest.raises(DiskFull):
            log.append(bytearray(refused), 0, NOW_MS)
        leave_free(bench, 1 << 20)
        log.append(bytearray(taken), 0, NOW_MS)
        append(log, 3)
        bench.lose_power()
        recovered = bench.open()
        assert all(held.value == b"b" * 40 for held in records_of(recovered, 5)[:1])


def test_a_cut_that_cannot_be_synced_takes_the_log_offline() -> None:
    """It is unknown what a restart would find, so nothing may be written in its place."""
    bench = new_bench()
    log = bench.create()
    append(log, 5)
    leave_free(bench, 50)
    bench.sim.fail_next("fsync", EIO, path_contains=".log")
    with pytest.raises(LogOffline, match="could not be undone"):
        append(log)


def test_a_disk_that_fills_up_within_a_replicas_chunk(bench: LogBench) -> None:
    """The batches before the one that did not fit are kept."""
    log = bench.create()
    chunk = bytearray()
    for offset in range(4):
        chunk += build_batch([record(offset)._replace(offset=offset)])
    leave_free(bench, 2 * BATCH_BYTES + 50)
    with pytest.raises(DiskFull):
        log.append_replica(bytes(chunk), NOW_MS)
    assert (log.end_offset, offsets_of(log)) == (2, [0, 1])
    leave_free(bench, 1 << 20)
    log.append_replica(bytes(chunk[2 * BATCH_BYTES :]), NOW_MS)
    assert offsets_of(bench.kill_and_open()) == [0, 1, 2, 3]


def grow_until_full(log: Log, size: int) -> None:
    with pytest.raises(DiskFull):
        for _ in range(1000):
            append(log, size=size)


@pytest.mark.parametrize("free", range(0, 700, 23))
def test_a_disk_that_fills_up_while_rolling(free: int) -> None:
    """Whichever file of the new segment does not fit, records appended afterwards stay.

    An incomplete segment must not block records that still fit into the old one.
    """
    bench = new_bench()
    log = bench.create(LogConfig(segment_bytes=10 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES))
    append(log, 9)
    leave_free(bench, free)
    grow_until_full(log, 300)
    leave_free(bench, 1 << 20)
    end = log.end_offset
    append(log, 1, size=10)
    append(log, 25)
    log.flush()
    expected = list(range(end + 26))
    assert offsets_of(log) == expected
    log = bench.kill_and_open()
    assert (offsets_of(log), log.damage) == (expected, [])
    log = bench.reopen(log)
    assert (offsets_of(log), log.damage) == (expected, [])


def test_a_write_that_cannot_be_undone_takes_the_log_offline(bench: LogBench) -> None:
    """If the partial batch cannot be cut off, nothing may be appended after it."""
    log = bench.create()
    append(log)
    leave_free(bench, 10)
    bench.sim.fail_next("truncate", EIO)
    with pytest.raises(LogOffline, match="could not be undone"):
        append(log)
    assert log.failure is not None
