"""One share partition: locks, acknowledgements, delivery counts, limits."""

from __future__ import annotations

import pytest

from penstock.coordination.invariants import InvariantViolated
from penstock.shares.events import BatchKind, SettingsChanged, WriteCommitted
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AckType, AcquireMode, RecordState
from penstock.wire.errors import ErrorCode

from .driver import Driver

LOCK_MS = 30_000


def states(driver: Driver) -> list[tuple[int, int, RecordState, int]]:
    return [
        (span.first, span.last, span.state, span.delivery_count) for span in driver.machine.spans
    ]


def test_a_record_is_delivered_to_one_member_only() -> None:
    driver = Driver()
    driver.append(5)
    assert driver.fetch("anna") == ((0, 4, 1),)
    assert driver.fetch("ben") == ()


def test_accepted_records_move_the_start() -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch()
    assert driver.ack(1, 2) is ErrorCode.NONE
    assert driver.machine.start_offset == 0
    assert states(driver) == [
        (0, 0, RecordState.ACQUIRED, 1),
        (1, 2, RecordState.ACKNOWLEDGED, 1),
        (3, 4, RecordState.ACQUIRED, 1),
    ]
    assert driver.ack(0, 0) is ErrorCode.NONE
    assert driver.machine.start_offset == 3
    assert driver.machine.occupancy() == (0, 2, 0, 0, 0)


def test_one_request_may_accept_release_and_reject() -> None:
    driver = Driver()
    driver.append(4)
    driver.fetch()
    types = (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.GAP)
    assert driver.ack(0, 3, *types) is ErrorCode.NONE
    assert states(driver) == [
        (1, 1, RecordState.AVAILABLE, 1),
        (2, 3, RecordState.ARCHIVED, 1),
    ]
    assert driver.fetch("ben") == ((1, 1, 2),)


@pytest.mark.parametrize("member", ["ben", "anna"])
def test_acknowledgements_of_a_partition_succeed_or_fail_together(member: str) -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch("anna", 5)
    driver.ack(4, 4)
    assert driver.ack(2, 4, member=member) is ErrorCode.INVALID_RECORD_STATE
    assert states(driver)[0] == (0, 3, RecordState.ACQUIRED, 1)


def test_records_that_were_never_delivered_cannot_be_acknowledged() -> None:
    driver = Driver()
    driver.append(2)
    driver.append(2)
    driver.fetch(max_records=1)
    assert driver.ack(0, 2) is ErrorCode.INVALID_RECORD_STATE
    assert driver.ack(0, 1) is ErrorCode.NONE


def test_a_malformed_acknowledgement_changes_nothing() -> None:
    driver = Driver()
    driver.append(3)
    driver.fetch()
    assert driver.ack(2, 1) is ErrorCode.INVALID_REQUEST
    assert driver.ack(0, 2, AckType.ACCEPT, AckType.ACCEPT) is ErrorCode.INVALID_REQUEST
    assert driver.ack(0, 2, AckType.RENEW) is ErrorCode.INVALID_REQUEST
    assert states(driver) == [(0, 2, RecordState.ACQUIRED, 1)]


def test_an_acknowledgement_is_answered_when_it_is_durable() -> None:
    driver = Driver(holds_writes=True)
    driver.append(3)
    driver.fetch()
    token = driver.acknowledge(0, 2)
    assert token not in driver.answers
    assert driver.ack(0, 0) is ErrorCode.INVALID_RECORD_STATE
    assert driver.machine.start_offset == 0
    driver.commit()
    assert driver.answers[token] is ErrorCode.NONE
    assert driver.machine.start_offset == 3


def test_after_a_failed_write_the_member_still_holds_the_records() -> None:
    driver = Driver(holds_writes=True)
    driver.append(3)
    driver.fetch()
    token = driver.acknowledge(0, 2)
    driver.fail()
    assert driver.answers[token] is ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.fetch("ben") == ()
    again = driver.acknowledge(0, 2)
    driver.commit()
    assert driver.answers[again] is ErrorCode.NONE


def test_a_lock_that_ended_during_a_failed_write_is_released() -> None:
    driver = Driver(holds_writes=True)
    driver.append(1)
    driver.fetch()
    driver.acknowledge(0, 0)
    driver.wait(LOCK_MS * 2)
    driver.fail()
    assert driver.fetch("ben") == ()
    driver.wait(2000)
    driver.commit()
    assert driver.fetch("ben") == ((0, 0, 2),)


def test_a_record_whose_lock_has_ended_is_delivered_again() -> None:
    driver = Driver()
    driver.append(2)
    driver.fetch("anna")
    driver.wait(LOCK_MS - 1)
    assert driver.fetch("ben") == ()
    wakes = driver.wakes
    driver.wait(1)
    assert driver.wakes > wakes
    assert driver.fetch("ben") == ((0, 1, 2),)
    assert driver.ack(0, 1, member="anna") is ErrorCode.INVALID_RECORD_STATE
    assert driver.machine.redelivered == 2


def test_the_end_of_a_lock_is_tried_again_until_it_is_stored() -> None:
    driver = Driver(holds_writes=True)
    driver.append(1)
    driver.fetch()
    driver.wait(LOCK_MS)
    driver.fail()
    driver.wait(5000)
    driver.fail()
    assert driver.fetch("ben") == ()
    driver.wait(5000)
    driver.commit()
    assert driver.fetch("ben") == ((0, 0, 2),)


def test_a_renewed_lock_lasts_longer() -> None:
    driver = Driver()
    driver.append(2)
    driver.fetch()
    driver.wait(LOCK_MS - 1)
    assert driver.ack(1, 1, AckType.RENEW, is_renew=True) is ErrorCode.NONE
    driver.wait(LOCK_MS - 1)
    assert driver.fetch("ben") == ((0, 0, 2),)
    driver.wait(100)
    assert driver.fetch("ben") == ((1, 1, 2),)


def test_renewals_can_be_switched_off() -> None:
    driver = Driver(ShareSettings(renew_enabled=False))
    driver.append(1)
    driver.fetch()
    assert driver.ack(0, 0, AckType.RENEW, is_renew=True) is ErrorCode.INVALID_RECORD_STATE


def test_a_session_that_ends_releases_its_records() -> None:
    driver = Driver()
    driver.append(3)
    driver.append(3)
    driver.fetch("anna", 1)
    driver.fetch("ben", 1)
    driver.end_session("anna")
    assert driver.fetch("cleo") == ((0, 2, 2),)


def test_records_are_archived_at_the_delivery_limit() -> None:
    driver = Driver(ShareSettings(delivery_limit=2))
    driver.append(1)
    for delivery in (1, 2):
        assert driver.fetch() == ((0, 0, delivery),)
        driver.ack(0, 0, AckType.RELEASE)
    assert driver.fetch() == ()
    assert driver.machine.start_offset == 1


def test_often_delivered_records_are_isolated() -> None:
    """Of eight records, one fetch gets half after the third delivery, then one."""
    driver = Driver(ShareSettings(delivery_limit=5))
    driver.append(8)
    driver.append(1)
    for delivery in (1, 2, 3):
        assert driver.fetch(max_records=8) == ((0, 7, delivery),)
        driver.end_session()
    assert driver.fetch("anna") == ((0, 3, 4),)
    assert driver.fetch("ben") == ((4, 5, 4),)
    driver.end_session("anna")
    assert driver.fetch("anna") == ((0, 0, 5),)
    assert driver.fetch("cleo") == ((1, 1, 5),)


def test_an_isolated_record_is_not_delivered_with_others() -> None:
    driver = Driver(ShareSettings(delivery_limit=3))
    driver.append(3)
    driver.fetch()
    driver.ack(1, 1, AckType.RELEASE)
    driver.fetch("ben")
    driver.ack(1, 1, AckType.RELEASE, member="ben")
    driver.ack(0, 0, AckType.RELEASE)
    assert driver.fetch("cleo") == ((0, 0, 2),)
    assert driver.fetch("cleo") == ((1, 1, 3),)


def test_batches_are_acquired_as_a_whole() -> None:
    driver = Driver()
    for _ in range(3):
        driver.append(10)
    assert driver.fetch(max_records=11) == ((0, 19, 1),)


def test_the_record_limit_is_exact_if_asked_for() -> None:
    driver = Driver()
    driver.append(10)
    mode = AcquireMode.RECORD_LIMIT
    assert driver.fetch("anna", 4, mode=mode) == ((0, 3, 1),)
    assert driver.fetch("ben", 4, mode=mode) == ((4, 7, 1),)
    driver.end_session("anna")
    assert driver.fetch("cleo", 3, mode=mode) == ((0, 2, 2),)
    assert driver.fetch("cleo", 3, mode=mode) == ((3, 3, 2), (8, 9, 1))


def test_acquired_ranges_are_split_at_batches_of_the_log() -> None:
    driver = Driver()
    for _ in range(5):
        driver.append(2)
    assert driver.fetch(batch_size=3) == ((0, 3, 1), (4, 7, 1), (8, 9, 1))
    assert len(driver.machine.spans) == 1


@pytest.mark.parametrize(("mode", "end"), [(0, 12), (1, 10)])
def test_the_window_is_bounded(mode: int, end: int) -> None:
    driver = Driver(ShareSettings(in_flight_max=10))
    for _ in range(10):
        driver.append(4)
    while driver.fetch(max_records=3, mode=AcquireMode(mode)):
        pass
    assert driver.machine.end_offset == end
    assert driver.machine.next_fetch_offset(driver.now) is None
    driver.ack(0, 3)
    assert driver.fetch()[0].first == end


@pytest.mark.parametrize("mode", [0, 1])
def test_a_batch_larger_than_the_window_is_acquired_in_parts(mode: int) -> None:
    driver = Driver(ShareSettings(in_flight_max=10))
    driver.append(4)
    driver.append(35)
    driver.append(1)
    assert driver.fetch(mode=AcquireMode(mode)) == ((0, 9, 1),)
    assert driver.machine.next_fetch_offset(driver.now) is None
    assert driver.ack(0, 6) is ErrorCode.NONE
    assert driver.fetch(mode=AcquireMode(mode)) == ((10, 16, 1),)
    done = 7
    while ranges := (driver.ack(done, driver.machine.end_offset - 1), driver.fetch())[1]:
        done = ranges[0].first
    assert driver.machine.start_offset == 40


def test_a_released_part_of_a_large_batch_is_acquired_again() -> None:
    driver = Driver(ShareSettings(in_flight_max=10))
    driver.append(35)
    driver.fetch()
    driver.end_session()
    assert driver.fetch("ben", 3) == ((0, 9, 2),)


def test_a_large_batch_that_is_due_later_or_expires_does_not_exceed_the_window() -> None:
    driver = Driver(ShareSettings(in_flight_max=10, dead_letter_topic="dead"))
    driver.append(35, due_ms=driver.now.wall_ms + 50)
    assert driver.fetch() == ()
    assert driver.machine.end_offset == 10
    driver.wait(50)
    assert driver.fetch() == ((0, 9, 1),)
    driver.ack(0, 9)
    driver.append(35, expires_ms=driver.now.wall_ms)
    assert driver.fetch() == ((10, 19, 1),)
    driver.ack(10, 19)
    assert driver.fetch() == ((20, 29, 1),)
    driver.ack(20, 29)
    assert driver.fetch() == ((30, 34, 1),)
    driver.ack(30, 34)
    driver.fetch()
    assert driver.machine.end_offset == 45
    assert driver.machine.occupancy().archiving == 10


def test_more_acknowledgements_than_records_in_flight_are_refused() -> None:
    driver = Driver(ShareSettings(in_flight_max=500))
    driver.append(500)
    driver.fetch()
    alternating = (AckType.ACCEPT, AckType.RELEASE)
    assert driver.ack(0, 1501, *alternating * 751) is ErrorCode.INVALID_REQUEST
    assert driver.ack(0, 1499, *alternating * 750) is ErrorCode.INVALID_RECORD_STATE
    assert driver.ack(0, 499, *alternating * 250) is ErrorCode.NONE


def test_records_that_were_acquired_with_a_larger_window_can_be_acknowledged() -> None:
    driver = Driver(ShareSettings(in_flight_max=4000))
    driver.append(4000)
    driver.fetch()
    driver.handle(SettingsChanged(ShareSettings(in_flight_max=10)))
    alternating = (AckType.ACCEPT, AckType.RELEASE) * 2000
    assert driver.ack(0, 3999, *alternating) is ErrorCode.NONE


def test_a_larger_window_wakes_fetches() -> None:
    driver = Driver(ShareSettings(in_flight_max=1))
    driver.append(1)
    driver.append(1)
    driver.fetch()
    driver.handle(SettingsChanged(ShareSettings()))
    assert driver.wakes == 1
    assert driver.fetch() == ((1, 1, 1),)


def test_nothing_is_delivered_from_control_and_aborted_batches_and_holes() -> None:
    driver = Driver()
    driver.append(2, BatchKind.ABORTED)
    driver.append(1, BatchKind.CONTROL)
    driver.leave_hole(3)
    driver.append(2)
    driver.leave_hole(1)
    driver.append(1, BatchKind.CONTROL)
    driver.append(1)
    assert driver.fetch() == ((6, 7, 1), (10, 10, 1))
    assert not driver.writes
    assert driver.machine.start_offset == 6
    driver.ack(6, 7)
    assert driver.machine.start_offset == 10
    assert driver.replayed().start_offset == 10


def test_records_that_compaction_removed_are_archived_when_they_are_read_again() -> None:
    driver = Driver()
    driver.append(1)
    driver.append(1)
    driver.append(1)
    driver.fetch()
    driver.end_session()
    del driver.log[1]
    assert driver.fetch() == ((0, 0, 2), (2, 2, 2))


def test_records_below_the_log_start_are_done() -> None:
    driver = Driver()
    driver.append(10)
    driver.fetch()
    driver.move_log_start(4)
    assert driver.machine.start_offset == 4
    assert driver.ack(2, 5) is ErrorCode.NONE
    assert driver.machine.start_offset == 6
    driver.move_log_start(20)
    assert (driver.machine.start_offset, driver.machine.end_offset) == (20, 20)


def test_the_log_start_may_pass_records_whose_write_is_under_way() -> None:
    driver = Driver(holds_writes=True)
    driver.append(10)
    driver.fetch()
    token = driver.acknowledge(0, 6)
    driver.move_log_start(5)
    driver.commit()
    assert driver.answers[token] is ErrorCode.NONE
    assert driver.machine.start_offset == 7


def test_a_write_is_reported_once() -> None:
    driver = Driver()
    driver.append(1)
    driver.fetch()
    driver.ack(0, 0)
    with pytest.raises(InvariantViolated, match="not under way"):
        driver.handle(WriteCommitted(0))


def test_memory_does_not_grow_with_records() -> None:
    """Ten thousand records in a thousand batches, acknowledged in order, need one span."""
    driver = Driver(ShareSettings(in_flight_max=100_000))
    for _ in range(1000):
        driver.append(10)
    driver.fetch()
    assert len(driver.machine.spans) == 1
    for first in range(5000, 10_000, 10):
        driver.ack(first, first + 9)
        assert len(driver.machine.spans) <= 3
    assert len(driver.replayed().spans) == 1
