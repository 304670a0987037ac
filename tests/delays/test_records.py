"""When records are due, and what their copies contain."""

from __future__ import annotations

import pytest

from penstock.delays.copy_state import CopyState, PlannedBatch, Target
from penstock.delays.formats import decode, encode
from penstock.delays.records import SourceRecord, due_entries, planned_batches, records_in
from penstock.records.batch import Codec, read_header
from penstock.records.record import Record, build_batch, read_records
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.wire.errors import ProtocolError

CURSOR = ScheduleCursor(3, 9, 1_000, 4)


def batch(*records: Record, codec: Codec = Codec.NONE) -> memoryview:
    return memoryview(build_batch(records, codec=codec))


def due(offset: int, text: bytes | None) -> Record:
    return Record(offset, 5, b"k", b"v", (("penstock-deliver-at", text),))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_due_times_are_read_from_headers(codec: Codec) -> None:
    """A record without a time, or with one that is no number, is due at once."""
    timed = batch(due(7, b"90"), Record(8, 5, None, b"v"), due(9, b"soon"), due(11, None))
    plain = batch(Record(12, 5, None, b"v"), Record(13, 5, None, b"v"), codec=codec)
    entries = [(90, 7), (0, 8), (0, 9), (0, 11), (0, 12), (0, 13)]
    assert due_entries([timed, plain]) == [DueEntry(*each) for each in entries]


def test_the_name_of_the_header_in_a_value_is_no_due_time() -> None:
    assert due_entries([batch(Record(0, 5, None, b"penstock-deliver-at"))]) == [DueEntry(0, 0)]


def test_only_wanted_records_are_kept() -> None:
    data = bytes(batch(due(3, b"1"), due(4, b"2"), codec=Codec.LZ4))
    found = records_in([data], frozenset({4, 9}))
    assert [*found] == [4]
    assert found[4].codec == Codec.LZ4


def test_batches_of_a_plan_have_their_sequence_numbers() -> None:
    planned = tuple(PlannedBatch(each, CURSOR, 777) for each in ((1, 4), (2,)))
    state = CopyState(CURSOR, 0, Target(b"t" * 16, 0), 9, 2, (1 << 31) - 1, False, planned)
    sources = [
        [SourceRecord(due(offset, b"1"), Codec.NONE) for offset in each.offsets] for each in planned
    ]
    built = [*planned_batches(state, sources)]
    headers = [read_header(each) for each in built]
    assert [(each.producer_id, each.producer_epoch) for each in headers] == [(9, 2)] * 2
    assert [each.base_sequence for each in headers] == [(1 << 31) - 1, 1]
    copy = read_records(built[0])[1]
    assert (copy.timestamp, copy.headers) == (777, (("penstock-timestamp", b"5"),))


def test_a_copy_is_not_larger_than_its_record() -> None:
    """The target has the same limit as the delay topic, usually."""
    now = 1_800_000_000_000
    record = Record(0, now, b"k", bytes(100), (("penstock-deliver-at", b"%d" % now),))
    source = SourceRecord(record, Codec.NONE)
    state = CopyState(CURSOR, planned=(PlannedBatch((0,), CURSOR, now),), producer_id=1)
    (copy,) = planned_batches(state, [[source]])
    assert len(copy) <= len(build_batch([record]))
    assert source.size >= len(copy) - len(build_batch([]))


def test_a_state_is_stored_and_read_again() -> None:
    planned = (
        PlannedBatch((3, 4, 5, 9, 8), CURSOR._replace(floor=4), 7),
        PlannedBatch((6,), CURSOR, 8),
    )
    state = CopyState(CURSOR, 6, Target(bytes(range(16)), 3), 1 << 40, 12, 99, True, planned)
    assert decode(encode(state)) == state
    assert decode(encode(CopyState(CURSOR))) == CopyState(CURSOR)


def test_a_damaged_state_is_refused() -> None:
    data = encode(CopyState(CURSOR))
    with pytest.raises(ProtocolError, match="damaged"):
        decode(data[:20])
    with pytest.raises(ProtocolError, match="newer than this broker"):
        decode(b"\0\7" + data[2:])
