"""What is read from the headers of records, and how batches are divided by it."""

from __future__ import annotations

import pytest

from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.shares.events import BatchKind, LogBatch
from penstock.shares.record_marks import FarRecords, Mark, MarkReader, MarkRules, MarkTable

from .driver import Driver

TIMED = MarkRules(timed=True)
BOTH = MarkRules(timed=True, dedup_window_ms=1000)
Headers = tuple[tuple[str, bytes | None], ...]


def due(time_ms: int) -> tuple[str, bytes]:
    return "penstock-deliver-at", b"%d" % time_ms


def expires(time_ms: int) -> tuple[str, bytes]:
    return "penstock-expires-at", b"%d" % time_ms


def batch_of(
    *headers: Headers, first: int = 0, codec: Codec = Codec.NONE, key: bytes | None = None
) -> tuple[LogBatch, memoryview]:
    records = [Record(first + at, 100, key, b"job", each) for at, each in enumerate(headers)]
    data = build_batch(records, codec=codec)
    return LogBatch(first, first + len(headers) - 1, 0), memoryview(data)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_times_are_read_from_headers(codec: Codec) -> None:
    batch = batch_of((), (due(5),), (due(5),), (due(6), expires(9)), (), codec=codec)
    assert MarkReader(TIMED).read([batch]) == [Mark(1, 2, 5), Mark(3, 3, 6, 9)]


def test_what_is_not_a_time_is_ignored() -> None:
    """The topic may have accepted such records before it got the setting."""
    batch = batch_of((("penstock-deliver-at", b"soon"),), (("penstock-expires-at", None),))
    assert MarkReader(TIMED).read([batch]) == []


def test_batches_without_data_are_not_read() -> None:
    batch, data = batch_of((due(5),))
    for kind in (BatchKind.CONTROL, BatchKind.ABORTED):
        assert MarkReader(BOTH).read([(batch._replace(kind=kind), data)]) == []


def test_the_header_comes_before_the_key() -> None:
    reader = MarkReader(MarkRules(dedup_window_ms=1000))
    one, two = ("penstock-dedup-id", b"1"), ("penstock-dedup-id", b"2")
    assert reader.read([batch_of((one,), (two,), key=b"same")]) == []
    (mark,) = reader.read([batch_of((two,), (), first=2, key=b"same")])
    assert mark == Mark(2, 2, is_duplicate=True)
    assert reader.read([batch_of((), first=4, key=b"same")]) == [Mark(4, 4, is_duplicate=True)]


def test_records_without_an_id_are_no_duplicates() -> None:
    assert MarkReader(BOTH).read([batch_of((), ())]) == []


def test_times_are_ignored_without_the_setting() -> None:
    assert MarkReader(MarkRules(dedup_window_ms=5)).read([batch_of((due(5),))]) == []


def test_a_batch_is_divided_at_its_marks() -> None:
    table = MarkTable(0)
    table.extend([Mark(3, 4, 50), Mark(5, 5, is_duplicate=True), Mark(8, 20, 7)], 30)
    parts = list(table.divide(LogBatch(2, 9, 1)))
    assert parts == [
        LogBatch(2, 2, 1),
        LogBatch(3, 4, 1, due_ms=50),
        LogBatch(5, 5, 1, BatchKind.DUPLICATE),
        LogBatch(6, 7, 1),
        LogBatch(8, 9, 1, due_ms=7),
    ]
    assert list(table.divide(LogBatch(21, 25, 1))) == [LogBatch(21, 25, 1)]
    control = LogBatch(3, 3, 1, BatchKind.CONTROL)
    assert list(table.divide(control)) == [control]


def test_a_batch_is_divided_from_an_offset_on() -> None:
    table = MarkTable(0)
    table.extend([Mark(3, 4, 50), Mark(8, 20, 7)], 30)
    parts = list(table.divide(LogBatch(2, 9, 1), 4))
    assert parts == [LogBatch(4, 4, 1, due_ms=50), LogBatch(5, 7, 1), LogBatch(8, 9, 1, due_ms=7)]


def test_far_records_are_found_a_few_marks_at_a_time() -> None:
    table = MarkTable(0)
    table.extend([Mark(at, at, 50, is_far=at % 4 == 1) for at in range(1, 20, 2)], 30)
    assert table.far_between(0, 30, 3) == FarRecords(7, ((1, 1), (5, 5)))
    assert table.far_between(6, 10, 3) == FarRecords(10, ((9, 9),))
    assert table.far_between(15, 30, 3) == FarRecords(30, ((17, 17),))


def test_marks_within_a_range_are_forgotten() -> None:
    table = MarkTable(0)
    table.extend([Mark(1, 2, 5), Mark(3, 4, 5), Mark(9, 9, 5), Mark(10, 12, 5)], 20)
    table.forget_within(2, 10)
    assert [
        (each.first, each.last) for each in table.divide(LogBatch(0, 20, 0)) if each.due_ms
    ] == [
        (1, 2),
        (10, 12),
    ]


def test_marks_below_the_start_offset_are_forgotten() -> None:
    table = MarkTable(0)
    table.extend([Mark(1, 1, 5), Mark(2, 6, 5), Mark(9, 9, 5)], 10)
    table.forget_below(4)
    assert len(table) == 2
    assert next(table.divide(LogBatch(4, 4, 0))).due_ms == 5


def test_a_duplicate_is_archived_without_a_write_and_passed_by_the_start_offset() -> None:
    driver = Driver()
    driver.append(1)
    driver.append(2, kind=BatchKind.DUPLICATE)
    driver.append(1)
    assert driver.fetch() == ((0, 0, 1), (3, 3, 1))
    driver.ack(0, 0)
    assert driver.machine.start_offset == 3
