"""Retention applied to files: by time, by size, never above the high watermark."""

from __future__ import annotations

from penstock.partition.retention import UNLIMITED, Reason
from penstock.records.record import Record, build_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.retain import apply_retention

from .log_bench import NOW_MS, LogBench, append, offsets_of, record

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENT_BYTES = 4 * BATCH_BYTES


def config(**values: int | bool) -> LogConfig:
    return LogConfig(segment_bytes=SEGMENT_BYTES, **values)  # type: ignore[arg-type]


def retain(log: Log, now_ms: int = NOW_MS, high_watermark: int | None = None) -> list[int]:
    apply_retention(log, now_ms, log.end_offset if high_watermark is None else high_watermark)
    return offsets_of(log)


def test_old_segments_are_deleted(bench: LogBench) -> None:
    """A segment is deleted when its newest record is older than `retention.ms`."""
    log = bench.create(config(retention_ms=1000))
    append(log, 14)
    assert retain(log, NOW_MS + 1000 + 3) == list(range(14))
    assert retain(log, NOW_MS + 1000 + 4) == list(range(4, 14))
    assert retain(log, NOW_MS + 1000 + 12) == list(range(12, 14))


def test_an_idle_log_becomes_empty(bench: LogBench) -> None:
    """The active segment is deleted too if nothing is written any more. The end offset stays."""
    log = bench.create(config(retention_ms=1000))
    append(log, 14)
    assert retain(log, NOW_MS + 9999) == []
    assert (log.log_start_offset, log.end_offset) == (14, 14)
    assert log.purge() > 0
    assert retain(log, NOW_MS + 99999) == []
    append(log)
    assert offsets_of(log) == [14]
    log = bench.reopen(log)
    assert offsets_of(log) == [14]


def test_the_oldest_segments_are_deleted_by_size(bench: LogBench) -> None:
    """As long as the rest still has `retention.bytes`."""
    log = bench.create(config(retention_ms=UNLIMITED, retention_bytes=8 * BATCH_BYTES))
    append(log, 14)
    assert retain(log) == list(range(4, 14))
    append(log, 2)
    assert retain(log) == list(range(8, 16))


def test_nothing_above_the_high_watermark_is_deleted(bench: LogBench) -> None:
    """An uncommitted record is never too old."""
    log = bench.create(config(retention_ms=1000))
    append(log, 14)
    assert retain(log, NOW_MS + 9999, 7) == list(range(4, 14))
    assert retain(log, NOW_MS + 9999, 8) == list(range(8, 14))
    assert retain(log, NOW_MS + 9999, 13) == [12, 13]


def test_segments_below_a_raised_log_start_are_deleted(bench: LogBench) -> None:
    """After DeleteRecords, whatever the limits are."""
    log = bench.create(config(retention_ms=UNLIMITED, delete=False))
    append(log, 14)
    log.delete_before(6)
    decision = apply_retention(log, NOW_MS, log.end_offset)
    assert all(reason == Reason.START_OFFSET for reason in decision.reasons)
    assert [held.base_offset for held in log.segments] == [4, 8, 12]
    assert offsets_of(log) == list(range(6, 14))


def test_a_compacted_log_keeps_old_records(bench: LogBench) -> None:
    """Without the policy `delete`, age and size do not matter."""
    log = bench.create(config(retention_ms=1, retention_bytes=1, delete=False, compact=True))
    append(log, 14)
    assert retain(log, NOW_MS * 2) == list(range(14))


def test_records_without_timestamps_age_with_their_file(bench: LogBench) -> None:
    """Otherwise they would stay forever, or be deleted at once."""
    log = bench.create(config(retention_ms=1000))
    for _ in range(9):
        log.append(build_batch([Record(0, -1, b"k", b"v" * 60)]), 0, NOW_MS)
    bases = [held.base_offset for held in log.segments]
    assert len(bases) > 2
    assert len(retain(log, NOW_MS + 1000)) == 9
    assert retain(log, NOW_MS + 1001) == []


def test_retention_is_the_same_after_a_restart(bench: LogBench) -> None:
    """The age of a segment that was not read since startup comes from its time index."""
    log = bench.create(config(retention_ms=1000, index_interval_bytes=BATCH_BYTES))
    append(log, 14)
    log = bench.reopen(log)
    assert retain(log, NOW_MS + 1000 + 3) == list(range(14))
    assert retain(log, NOW_MS + 1000 + 4) == list(range(4, 14))
