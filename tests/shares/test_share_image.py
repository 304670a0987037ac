"""What is stored of a share partition, and what a new leader makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.effects import LogRecord
from penstock.shares.formats import Entry, OrderNote, ReadNote, Snapshot, decode, record_of
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import CallOrder
from penstock.shares.states import DONE, AckType, GiveUpReason, RecordState
from penstock.shares.stored_states import StoredStates
from penstock.wire.errors import ErrorCode, ProtocolError

from .driver import JOBS, Driver, snapshot_record

STORED_STATES = [state for state in RecordState if state is not RecordState.ACQUIRED]
SPANS = st.builds(
    lambda first, size, state, count, due, reason: StoredSpan(
        first, first + size, state, count, due, reason
    ),
    st.integers(0, 40),
    st.integers(0, 12),
    st.sampled_from(STORED_STATES),
    st.integers(0, 3),
    st.sampled_from([0, 0, 7]),
    st.sampled_from(GiveUpReason),
)
DELTAS = st.builds(
    lambda start, end, epoch, spans: Delta(0, start, end, epoch, tuple(spans)),
    st.integers(0, 20),
    st.integers(0, 60),
    st.integers(0, 5),
    st.lists(SPANS, max_size=4),
)


@given(st.lists(DELTAS, max_size=8))
@settings(deadline=None, max_examples=300)
def test_an_image_is_what_its_deltas_say_about_each_offset(deltas: list[Delta]) -> None:
    """Compared with a dict from each offset to what was stored last."""
    image = ShareImage.starting_at(0)
    start, model = 0, dict[int, tuple[object, ...]]()
    for delta in deltas:
        image.apply(delta)
        for span in delta.spans:
            model |= dict.fromkeys(range(span.first, span.last + 1), span[2:])
        start = max(start, delta.start_offset)
        while start in model and model[start][0] in DONE:
            start += 1
    never = (RecordState.AVAILABLE, 0, 0, GiveUpReason.NONE, 0)
    expanded = {
        offset: span[2:] for span in image.spans for offset in range(span.first, span.last + 1)
    }
    assert image.start_offset == start
    assert expanded == {
        offset: value for offset, value in model.items() if offset >= start and value != never
    }
    for one, next_one in zip(image.spans, image.spans[1:], strict=False):
        assert one.last < next_one.first
        assert one.last + 1 < next_one.first or one[2:] != next_one[2:]


@given(st.lists(SPANS, max_size=5), st.integers(0, 60))
def test_records_survive_a_round_trip(spans: list[StoredSpan], start: int) -> None:
    image = ShareImage(3, start, 70, 9, spans)
    delta = Delta(3, start, 70, 9, tuple(spans))
    order = CallOrder(2, 1 << 40)
    marker = Snapshot(image, 4, -1, order, 1_000_000)
    for content in (
        *(Snapshot(image), Snapshot(image, 4, 1_000), Snapshot(image, 4, 1_000, order), marker),
        *(delta, ReadNote(4), OrderNote(order), None),
    ):
        entry = Entry(JOBS, content)
        assert decode(record_of(entry)) == entry


def test_a_damaged_record_is_refused() -> None:
    delta = Delta(0, 0, 9, 0, (StoredSpan(0, 9, RecordState.ACQUIRED, 1),))
    record = record_of(Entry(JOBS, delta))
    with pytest.raises(ProtocolError, match="group jobs at offset 0"):
        decode(record)
    assert record.value is not None
    with pytest.raises(ProtocolError, match="ShareValue"):
        decode(LogRecord(record.key, record.value[:-3]))
    with pytest.raises(ProtocolError, match="no value"):
        decode(LogRecord(record.key, None))


def test_removal_and_reset_are_replayed() -> None:
    states = StoredStates()
    delta = Delta(0, 5, 5, 0, ())
    states.apply(Entry(JOBS, delta), 0)
    assert len(states) == 0
    states.apply(Entry(JOBS, Snapshot(ShareImage.starting_at(2, state_epoch=1))), 1)
    states.apply(Entry(JOBS, delta), 2)
    state = states.get(JOBS)
    assert state is not None
    assert state.image.start_offset == 2
    states.apply(Entry(JOBS, None), 3)
    assert len(states) == 0


def test_acquired_records_are_delivered_again_after_a_failover() -> None:
    """With the count that was stored last."""
    driver = Driver()
    driver.append(4)
    driver.fetch("anna")
    driver.ack(1, 1)
    driver.ack(2, 2, AckType.RELEASE)
    driver.fetch("ben")
    driver.fail_over()
    assert driver.fetch("cleo") == ((0, 0, 1), (2, 2, 2), (3, 3, 1))
    assert driver.ack(0, 0, member="anna") is ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize("written", [0, 1])
def test_a_write_under_way_counts_after_a_failover_if_it_is_in_the_log(written: int) -> None:
    driver = Driver(holds_writes=True)
    driver.append(4)
    driver.fetch()
    driver.acknowledge(0, 1)
    driver.fail_over(written=written)
    assert driver.machine.start_offset == (2 if written else 0)


def test_states_of_lost_records_are_cut_off() -> None:
    """New records at the same offsets are delivered, also by the leader after the next."""
    driver = Driver()
    driver.append(2, epoch=4)
    driver.append(4, epoch=5)
    driver.fetch()
    driver.ack(3, 5)
    assert (driver.replayed().end_offset, driver.replayed().end_leader_epoch) == (6, 5)
    del driver.log[1]
    driver.log_end = 2
    driver.fail_over(truncate_to=2)
    driver.append(3, epoch=6)
    assert driver.fetch() == ((0, 4, 1),)
    driver.ack(4, 4)
    assert (driver.replayed().end_offset, driver.replayed().end_leader_epoch) == (5, 6)
    driver.fail_over()
    assert driver.fetch() == ((0, 3, 1),)


def test_a_log_that_begins_later_moves_the_start() -> None:
    image = ShareImage(0, 2, 9, 1, [StoredSpan(4, 8, RecordState.ACKNOWLEDGED, 1)])
    image.drop_below(5)
    assert (image.start_offset, image.end_offset, image.spans) == (9, 9, [])


def test_facts_are_stored_with_the_next_write() -> None:
    driver = Driver()
    driver.append(1)
    driver.leave_hole(2)
    driver.append(1)
    driver.fetch()
    assert driver.replayed().spans == []
    driver.ack(3, 3)
    assert [span[:3] for span in driver.replayed().spans] == [
        (1, 2, RecordState.ARCHIVED),
        (3, 3, RecordState.ACKNOWLEDGED),
    ]
    assert driver.replayed().start_offset == 0
    driver.ack(0, 0)
    assert driver.replayed().start_offset == 4


def test_facts_of_a_failed_write_are_stored_with_the_next() -> None:
    driver = Driver(holds_writes=True)
    driver.append(1)
    driver.leave_hole(2)
    driver.append(1)
    driver.fetch()
    driver.acknowledge(0, 0)
    driver.fail()
    driver.acknowledge(0, 0)
    driver.commit()
    assert driver.replayed().start_offset == 3


def test_a_snapshot_replaces_the_deltas_before_it() -> None:
    driver = Driver(ShareSettings(delivery_limit=9))
    driver.append(6)
    driver.fetch()
    driver.ack(0, 5, *[AckType.ACCEPT, AckType.RELEASE] * 3)
    before = driver.replayed()
    driver.state_log = [snapshot_record(driver.replayed())]
    assert driver.replayed() == before
