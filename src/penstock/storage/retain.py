"""Applies retention to a log. `partition.retention` decides what to delete."""

from __future__ import annotations

from penstock.partition.retention import UNLIMITED, RetentionDecision, SegmentInfo, expired_segments
from penstock.records.batch import NO_TIMESTAMP
from penstock.storage.errors import LogDamaged, disk_trouble
from penstock.storage.log import Log
from penstock.storage.segment import Segment


def apply_retention(log: Log, now_ms: int, high_watermark: int) -> RetentionDecision:
    """Deletes expired segments. `Log.purge` frees the files later.

    Records of an open transaction do not expire. They are not committed yet, or will be aborted,
    and a replay of the log must find both ends of the transaction.
    """
    stable = log.producers.last_stable_offset(high_watermark, log.log_start_offset)
    with disk_trouble(f"retention could not read the age of {log.directory}"):
        decision = _decide(log, now_ms, stable)
    if decision.roll_active:
        log.roll(now_ms)
        decision = _decide(log, now_ms, stable)
    if decision.delete:
        log.delete_before(decision.log_start_offset)
    return decision


def _newest(segment: Segment) -> int:
    try:
        return segment.largest_timestamp()
    except LogDamaged:
        # Use the age of the file instead: a damaged segment must not stop retention.
        return NO_TIMESTAMP


def _decide(log: Log, now_ms: int, last_stable_offset: int) -> RetentionDecision:
    config = log.config
    return expired_segments(
        [
            SegmentInfo(
                base_offset=segment.base_offset,
                next_offset=log.end_offset,
                size_bytes=segment.size,
                max_timestamp_ms=_newest(segment),
                modified_ms=segment.created_ms,
            )
            for segment in log.segments
        ],
        now_ms=now_ms,
        # Without the policy `delete`, only segments below the log start offset are removed.
        retention_ms=config.retention_ms if config.delete else UNLIMITED,
        retention_bytes=config.retention_bytes if config.delete else UNLIMITED,
        log_start_offset=log.log_start_offset,
        high_watermark=last_stable_offset,
    )
