"""Aborted transactions in a log that is compacted."""

from __future__ import annotations

from penstock.partition.transactions import AbortedEntry
from penstock.storage.cleaner import begin_clean
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from storage.test_transactions import (
    Writers,
    check_entries,
    committed,
    entries_of,
    stable_of,
)

from .log_bench import NOW_MS, LogBench, each_interruption


def clean(log: Log, now_ms: int = NOW_MS) -> None:
    task = begin_clean(
        log, now_ms=now_ms, last_stable_offset=stable_of(log), map_bytes_max=1 << 20, force=True
    )
    assert task is not None
    task.run()
    assert task.install(log)


def test_an_aborted_record_supersedes_nothing(bench: LogBench) -> None:
    """The committed value of its key stays, and the aborted one is removed."""
    log = bench.create(LogConfig(compact=True))
    writers = Writers(log)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    writers.write(2, b"a")
    writers.write(2, b"b")
    writers.write(1, b"c")
    writers.end(2)
    writers.end(1, commit=True)
    log.roll(NOW_MS)
    log.flush(checkpoint=True)
    clean(log)
    assert committed(log) == [0, 4]
    assert [header.base_offset for _, header in bench.batches()] == [0, 1, 3, 4, 5, 6]
    assert bench.batches()[2][1].record_count == 0
    assert entries_of(log) == [AbortedEntry(2, 2, 5, 4)]
    log = bench.reopen(log)
    assert entries_of(log) == [AbortedEntry(2, 2, 5, 4)]
    assert committed(log) == [0, 4]


def test_the_second_round_knows_earlier_aborts(bench: LogBench) -> None:
    """A transaction aborted in the part that is already clean does not affect what its producer
    wrote later."""
    log = bench.create(LogConfig(compact=True))
    writers = Writers(log)
    writers.write(1, b"a")
    writers.end(1)
    log.roll(NOW_MS)
    log.flush(checkpoint=True)
    clean(log)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    writers.write(1, b"b")
    writers.end(1, commit=True)
    log.roll(NOW_MS)
    log.flush(checkpoint=True)
    clean(log)
    assert committed(log) == [2, 4]


def test_compaction_stops_at_an_open_transaction(bench: LogBench) -> None:
    """It is not yet known which values it will supersede."""
    log = bench.create(LogConfig(compact=True))
    writers = Writers(log)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    log.roll(NOW_MS)
    writers.write(2, b"a")
    log.roll(NOW_MS)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    log.roll(NOW_MS)
    log.flush(checkpoint=True)
    clean(log)
    assert committed(log) == [0]
    writers.end(2)
    log.flush(checkpoint=True)
    clean(log)
    assert committed(log) == [3]


def test_markers_are_removed_after_the_delete_horizon(bench: LogBench) -> None:
    """First the data is removed, then the marker is stamped, then it is removed with its index
    entry."""
    log = bench.create(LogConfig(compact=True, delete_retention_ms=1000))
    writers = Writers(log)
    writers.write(1, b"a")
    writers.end(1)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    writers.write(1, b"a")
    writers.end(1, commit=True)
    now_ms, seen = NOW_MS, []
    for _ in range(5):
        log.roll(now_ms)
        log.flush(checkpoint=True)
        clean(log, now_ms)
        log = bench.reopen(log)
        seen.append(([header.base_offset for _, header in bench.batches()], len(entries_of(log))))
        assert committed(log)[-1] == log.end_offset - 2
        now_ms += 2000
        writers = Writers(log)
        writers._sequences[1] = log.end_offset // 2
        writers.write(1, b"a")
        writers.end(1, commit=True)
    assert [count for _, count in seen] == [1, 1, 0, 0, 0]
    assert 1 in seen[1][0]
    assert 1 not in seen[2][0]


def test_cleaning_can_be_stopped_at_any_point() -> None:
    """The lists match the batches whichever segments have been replaced, also where two segments
    with their own lists were merged and no checkpoint says so."""

    def prepare(bench: LogBench) -> object:
        log = bench.create(LogConfig(compact=True))
        writers = Writers(log)
        for producer_id in (1, 2, 3):
            writers.write(producer_id, b"%d" % producer_id)
            if producer_id == 2:
                log.roll(NOW_MS)
        for producer_id in (1, 2):
            writers.end(producer_id)
        log.roll(NOW_MS)
        writers.end(3, commit=True)
        writers.write(1, b"x")
        log.flush(checkpoint=True)
        task = begin_clean(
            log, now_ms=NOW_MS, last_stable_offset=5, map_bytes_max=1 << 20, force=True
        )
        assert task is not None

        def work() -> None:
            task.run()
            task.install(log)
            log.flush()

        return work

    for bench in each_interruption(prepare, power_loss_seeds=2):  # type: ignore[arg-type]
        for _ in range(2):
            log = bench.open()
            check_entries(log)
            assert committed(log) == [2]
            bench.kill()
