"""Finds single records of a batch without making objects of them: by time, or because they are
invalid."""

from __future__ import annotations

from typing import Any

from penstock.records.checking import HAS_EARLY, HAS_KEYLESS, HAS_LATE, NO_LIMIT, Walk


def largest_timestamp(payload: Any, count: int, base_timestamp: int) -> int:
    """Returns the largest timestamp of the records; -1 if none has one."""
    walk = Walk(payload, count, base_timestamp)
    walk.go(0, NO_LIMIT, -NO_LIMIT, 0, True)
    return walk.newest


def find_records(
    payload: Any,
    count: int,
    base_timestamp: int,
    *,
    keyless: bool,
    earliest: int,
    latest: int,
    records_max: int,
) -> list[tuple[int, int, bool]]:
    """Finds records without a key (if `keyless`), or not between `earliest` and `latest`: up to
    `records_max` of them, each as its number in the batch, its timestamp, and whether that is out
    of bounds."""
    walk = Walk(payload, count, base_timestamp)
    out_of_bounds = HAS_EARLY | HAS_LATE
    wanted = out_of_bounds | HAS_KEYLESS if keyless else out_of_bounds
    found: list[tuple[int, int, bool]] = []
    while len(found) < records_max:
        bits = walk.go(earliest, latest, -NO_LIMIT, wanted, False)
        if not bits & wanted:
            break
        found.append((walk.last_number, walk.last_timestamp, bool(bits & out_of_bounds)))
    return found


def first_record_at(
    payload: Any,
    count: int,
    base_offset: int,
    base_timestamp: int,
    *,
    timestamp_ms: int,
    start_offset: int,
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first record at or after a time, from `start_offset`."""
    walk = Walk(payload, count, base_timestamp)
    bits = walk.go(0, timestamp_ms - 1, start_offset - base_offset, HAS_LATE, True)
    if not bits & HAS_LATE:
        return None
    return base_offset + walk.last_offset_delta, walk.last_timestamp


def newest_record(
    payload: Any, count: int, base_offset: int, base_timestamp: int, *, start_offset: int
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first record with the largest timestamp, from
    `start_offset` on; None if no record there has a timestamp."""
    walk = Walk(payload, count, base_timestamp)
    walk.go(0, NO_LIMIT, start_offset - base_offset, 0, True)
    if walk.newest < 0:
        return None
    return first_record_at(
        payload,
        count,
        base_offset,
        base_timestamp,
        timestamp_ms=walk.newest,
        start_offset=start_offset,
    )
