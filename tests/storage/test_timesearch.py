"""Finding an offset by time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import Codec
from penstock.records.record import ControlMarker, ControlType, Record, build_batch, control_batch
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.timesearch import TimedOffset, newest_record, offset_for_time

from .log_bench import NOW_MS, LogBench, append, new_bench, record, records_of

BATCH_BYTES = len(build_batch([record(0)]))
SEGMENTED = LogConfig(segment_bytes=4 * BATCH_BYTES, index_interval_bytes=BATCH_BYTES)


def put(log: Log, *times: int, codec: Codec = Codec.NONE) -> None:
    """Appends one batch with one record for each timestamp."""
    records = [Record(at, time, b"k", b"v" * 40) for at, time in enumerate(times)]
    log.append(build_batch(records, codec=codec), 0, NOW_MS)


def test_the_first_record_at_or_after_a_time_is_found(bench: LogBench) -> None:
    """With its offset and its own timestamp; None if all records are older."""
    log = bench.create(SEGMENTED)
    append(log, 14)
    assert offset_for_time(log, 0) == TimedOffset(0, NOW_MS)
    assert offset_for_time(log, NOW_MS + 9) == TimedOffset(9, NOW_MS + 9)
    assert offset_for_time(log, NOW_MS + 13) == TimedOffset(13, NOW_MS + 13)
    assert offset_for_time(log, NOW_MS + 14) is None


def test_an_empty_log_has_no_records_to_find(bench: LogBench) -> None:
    """The result is None, not an error."""
    log = bench.create()
    assert offset_for_time(log, 0) is None
    assert newest_record(log) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_the_search_looks_into_the_batch(bench: LogBench, codec: Codec) -> None:
    """The result is the record, not its batch, with any compression."""
    log = bench.create()
    put(log, 100, 300, 200, codec=codec)
    assert offset_for_time(log, 150) == TimedOffset(1, 300)
    assert newest_record(log) == TimedOffset(1, 300)


def test_markers_are_not_found(bench: LogBench) -> None:
    """The end of a transaction has a timestamp, but no reader would ever see it."""
    log = bench.create()
    put(log, 100)
    marker = ControlMarker(ControlType.COMMIT, 0)
    log.append(control_batch(marker, producer_id=1, producer_epoch=0, timestamp=150), 0, NOW_MS)
    put(log, 200)
    assert offset_for_time(log, 120) == TimedOffset(2, 200)


def test_deleted_records_are_not_found(bench: LogBench) -> None:
    """The log start offset limits the search, also within a batch."""
    log = bench.create()
    put(log, 100, 200, 300)
    put(log, 50)
    log.delete_before(2)
    assert offset_for_time(log, 0) == TimedOffset(2, 300)
    log.delete_before(3)
    assert offset_for_time(log, 0) == TimedOffset(3, 50)
    assert newest_record(log) == TimedOffset(3, 50)


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), max_size=14),
    interval=st.sampled_from([0, 150, 4096]),
    restart=st.sampled_from(["none", "clean", "kill", "cut"]),
)
def test_the_search_agrees_with_a_plain_search(
    batches: list[list[int]], interval: int, restart: str
) -> None:
    """With timestamps in any order: live, reopened, recovered, or truncated."""
    bench = new_bench()
    log = bench.create(LogConfig(segment_bytes=500, index_interval_bytes=interval))
    for times in batches:
        put(log, *times)
    if restart == "clean":
        log = bench.reopen(log)
    elif restart == "kill":
        log = bench.kill_and_open()
    elif restart == "cut":
        log.truncate_to(log.end_offset // 2)
    everything = records_of(log)
    for time in range(-1, 32):
        expected = next((held for held in everything if held.timestamp >= time), None)
        found = offset_for_time(log, time)
        assert found == (expected and TimedOffset(expected.offset, expected.timestamp))
    newest = newest_record(log)
    if everything:
        assert newest is not None
        assert newest.timestamp == max(held.timestamp for held in everything)
    else:
        assert newest is None
