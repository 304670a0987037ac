"""Tests of what a member holds, and of how much it may fetch."""

from __future__ import annotations

from penstock.client.sharing.acquired import AcquiredRow
from penstock.client.sharing.leases import Lease, LeaseState, LeaseTable
from penstock.client.sharing.membership import SharePart
from penstock.records.batch import TimestampType
from penstock.topic_partition import TopicPartition

PART = SharePart(bytes(16), 0)


def lease(offset: int, until: float = 30.0, broker: int = 1) -> Lease:
    row = AcquiredRow((offset, 0, None, b"12345", ()), 1, TimestampType.CREATE_TIME, 5)
    return Lease(PART, TopicPartition("jobs", 0), broker, row, 0.0, until)


def filled(count: int, records_max: int = 10) -> LeaseTable:
    table = LeaseTable(records_max, 1_000)
    for offset in range(count):
        table.add(lease(offset))
    return table


def test_leases_are_taken_in_order_and_free_room_when_they_end() -> None:
    table = filled(3)
    first = table.take(0.0)
    assert first is not None
    assert (first.offset, first.state, len(table), table.held_bytes) == (
        *(0, LeaseState.HELD),
        *(3, 15),
    )
    table.end(first, LeaseState.SETTLED)
    table.end(first, LeaseState.LOST)
    assert (len(table), table.held_bytes, first.state) == (2, 10, LeaseState.SETTLED)


def test_a_buffered_lease_whose_lock_is_over_is_dropped() -> None:
    table = LeaseTable(10, 1_000)
    table.add(lease(0, until=5.0))
    table.add(lease(1, until=9.0))
    taken = table.take(5.0)
    assert taken is not None
    assert (taken.offset, table.expired) == (1, 1)


def test_a_second_delivery_ends_the_first() -> None:
    table = filled(1)
    first = table.take(0.0)
    table.add(lease(0))
    second = table.take(0.0)
    assert first is not None
    assert second is not None
    assert first.state is LeaseState.LOST
    assert second.is_open
    assert len(table) == 1
    table.end(second, LeaseState.SETTLED)
    assert not table.holds(1)


def test_a_fetch_gets_the_free_room_and_no_more_than_that() -> None:
    table = filled(4)
    assert table.take(0.0) is not None
    room = table.room(1, [1])
    assert room is not None
    assert (room.records, room.nbytes, room.is_turn) == (6, 980, False)
    assert table.room(2, [2]) is None
    table.give_back(1)
    assert table.room(2, [2]) is not None


def test_no_fetch_for_a_few_records_while_others_are_buffered() -> None:
    table = filled(9)
    assert table.room(1, [1]) is None
    while table.take(0.0) is not None:
        pass
    assert table.room(1, [1]) is not None, "nothing is buffered, so even one record helps"


def test_leaders_take_turns_if_there_is_not_enough_room_for_all() -> None:
    table = LeaseTable(1, 1_000)
    served = []
    for _ in range(6):
        for broker in (1, 2, 3):
            room = table.room(broker, [1, 2, 3])
            if room is not None:
                assert (room.records, room.is_turn) == (1, True)
                served.append(broker)
                table.give_back(broker)
                break
    assert served == [1, 2, 3, 1, 2, 3]


def test_memory_limits_fetches() -> None:
    table = LeaseTable(10, 15)
    for offset in range(3):
        table.add(lease(offset))
        table.take(0.0)
    assert table.room(1, [1]) is None


def test_a_delivery_whose_earlier_one_is_being_settled_makes_no_lease() -> None:
    """The acknowledgement that waits at the leader settles the new delivery as well."""
    table = filled(1)
    first = table.take(0.0)
    assert first is not None
    first.state = LeaseState.SETTLING
    assert not table.add(lease(0))
    assert table.take(0.0) is None
    assert table.add(lease(0, broker=2)), "another leader does not get that acknowledgement"
    assert first.state is LeaseState.LOST


def test_nothing_is_fetched_during_a_pause() -> None:
    table = filled(0)
    table.is_paused = True
    assert (table.is_hungry, table.room(1, [1])) == (False, None)
    table.is_paused = False
    room = table.room(1, [1])
    assert room is not None
    assert room.records == 10
