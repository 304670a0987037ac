"""Tests of the records that are found in a response to a share fetch."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from client.consuming.logs import MadeLog, logs, value
from penstock.client.sharing.acquired import Range, find_acquired
from penstock.records.batch import Codec
from penstock.records.record import ControlType


def joined(log: MadeLog) -> memoryview:
    return memoryview(b"".join(log.batches))


def offsets(ranges: list[Range]) -> list[int]:
    return [offset for each in ranges for offset in range(each.first, each.last + 1)]


@settings(deadline=None, max_examples=100)
@given(logs(), st.data())
def test_each_acquired_offset_is_a_record_or_a_gap(log: MadeLog, data: st.DataObject) -> None:
    """For any batches and ranges, and no record outside of the ranges is returned."""
    chosen = sorted(data.draw(st.sets(st.integers(0, log.end - 1))))
    ranges = [Range(offset, offset, 3) for offset in chosen]
    found = find_acquired(joined(log), ranges, check_crcs=True)
    rows = [row.row[0] for row in found.rows]
    assert rows == [offset for offset in log.all_offsets if offset in chosen]
    assert sorted([*rows, *offsets(found.gaps)]) == chosen
    assert found.damaged == []
    assert found.error is None
    assert all(row.row[3] == value(row.row[0]) for row in found.rows)
    assert {row.deliveries for row in found.rows} <= {3}


def test_ranges_have_their_own_number_of_deliveries() -> None:
    log = MadeLog()
    log.add(range(10), 10, Codec.ZSTD)
    found = find_acquired(joined(log), [Range(6, 7, 2), Range(1, 2, 1)], check_crcs=True)
    assert [(row.row[0], row.deliveries) for row in found.rows] == [(1, 1), (2, 1), (6, 2), (7, 2)]


def test_a_control_batch_is_a_gap() -> None:
    log = MadeLog()
    log.add(range(2), 2)
    log.mark(ControlType.COMMIT)
    found = find_acquired(joined(log), [Range(0, 2, 1)], check_crcs=True)
    assert found.gaps == [Range(2, 2, 1)]


def test_what_the_response_does_not_cover_is_not_a_gap() -> None:
    """A gap is given up for ever. Records that did not arrive must be delivered again."""
    log = MadeLog()
    log.add(range(3), 3)
    data = joined(log)
    for cut, known in ((data, [0, 1, 2]), (data[:-1], []), (data[:0], [])):
        found = find_acquired(cut, [Range(0, 4, 1)], check_crcs=True)
        assert [row.row[0] for row in found.rows] == known
        assert found.gaps == []
        assert offsets(found.damaged) == sorted({0, 1, 2, 3, 4} - set(known))
        assert found.error is not None


def test_a_corrupt_batch_is_not_a_gap() -> None:
    log = MadeLog()
    log.add(range(2), 2)
    log.add(range(2), 2)
    damaged = bytearray(b"".join(log.batches))
    damaged[-1] ^= 1
    found = find_acquired(memoryview(damaged), [Range(0, 3, 1)], check_crcs=True)
    assert [row.row[0] for row in found.rows] == [0, 1]
    assert (found.gaps, offsets(found.damaged)) == ([], [2, 3])
    assert "CRC" in str(found.error)


def test_records_of_a_repeated_batch_are_not_returned_twice() -> None:
    """A broker may send a batch again whose records it has acquired one by one."""
    log = MadeLog()
    log.add(range(4), 4)
    log.add(range(2), 2)
    first, second = log.batches
    found = find_acquired(
        memoryview(first + first + second), [Range(0, 0, 4), Range(3, 4, 3)], check_crcs=True
    )
    assert [row.row[0] for row in found.rows] == [0, 3, 4]
    assert (found.gaps, found.damaged, found.error) == ([], [], None)
