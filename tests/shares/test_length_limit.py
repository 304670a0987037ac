"""A share partition gives up the oldest records of a queue that is too long."""

from __future__ import annotations

from dataclasses import replace

from penstock.shares.events import Acquire, BatchKind, DropOldest
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AckType, GiveUpReason, RecordState

from .driver import Driver

WITH_LETTERS = ShareSettings(dead_letter_topic="dlq.jobs")


def test_available_records_are_dropped_and_acquired_ones_stay() -> None:
    driver = Driver()
    for _ in range(6):
        driver.append(1)
    driver.fetch(max_records=1)
    assert driver.machine.first_open(4) == 1
    driver.handle(DropOldest(4, 0))
    assert driver.machine.first_open(4) is None
    assert driver.machine.start_offset == 0
    assert driver.fetch("ben") == ((4, 5, 1),)
    driver.ack(0, 0)
    assert driver.machine.start_offset == 4


def test_what_is_dropped_is_durable_before_the_start_moves() -> None:
    driver = Driver(holds_writes=True)
    driver.append(5)
    driver.handle(DropOldest(3, 0))
    assert driver.machine.start_offset == 0
    assert driver.machine.next_fetch_offset(driver.now) == 3
    driver.fail_over(written=1)
    assert driver.machine.start_offset == 3


def test_a_drop_that_is_not_stored_has_no_effect() -> None:
    driver = Driver(holds_writes=True)
    driver.append(5)
    driver.handle(DropOldest(3, 0))
    driver.fail()
    assert driver.machine.next_fetch_offset(driver.now) == 0
    assert driver.machine.first_open(3) == 0


def drop_with_letters(driver: Driver, below: int) -> None:
    """Does what a share fetch does before it delivers anything."""
    offset = driver.machine.first_open(below)
    assert offset is not None
    driver.handle(Acquire("drop", "anna", offset, driver.read(offset), 1, drop_below=below))


def dead_letters(driver: Driver) -> list[tuple[int, GiveUpReason]]:
    (order,) = driver.letters
    return [(each.offset, each.reason) for each in order.letters]


def test_dropped_records_become_dead_letters() -> None:
    driver = Driver(WITH_LETTERS)
    driver.append(3)
    drop_with_letters(driver, 2)
    assert dead_letters(driver) == [(0, GiveUpReason.LENGTH_LIMIT), (1, GiveUpReason.LENGTH_LIMIT)]
    assert driver.machine.spans[0].state is RecordState.ARCHIVING
    assert driver.ranges.pop("drop") == ((2, 2, 1),)


def test_only_what_would_be_delivered_becomes_a_dead_letter() -> None:
    driver = Driver(WITH_LETTERS)
    for kind in (BatchKind.ABORTED, BatchKind.CONTROL, BatchKind.DUPLICATE):
        driver.append(1, kind)
    driver.leave_hole(2)
    driver.append(1, expires_ms=1)
    driver.append(2)
    drop_with_letters(driver, 7)
    assert driver.machine.start_offset == 5
    given_up = [(each.first, each.last, each.reason) for each in driver.machine.spans[:2]]
    assert given_up == [(5, 5, GiveUpReason.EXPIRED), (6, 6, GiveUpReason.LENGTH_LIMIT)]


def test_records_that_wait_for_their_back_off_are_dropped() -> None:
    driver = Driver(replace(WITH_LETTERS, backoff_ms=5000, backoff_max_ms=5000))
    driver.append(2)
    driver.fetch()
    driver.ack(0, 1, AckType.RELEASE)
    assert driver.machine.first_open(1) == 0
    drop_with_letters(driver, 1)
    assert dead_letters(driver) == [(0, GiveUpReason.LENGTH_LIMIT)]


def test_a_drop_with_dead_letters_is_limited_by_the_window() -> None:
    driver = Driver(replace(WITH_LETTERS, in_flight_max=10))
    for _ in range(50):
        driver.append(1)
    drop_with_letters(driver, 40)
    assert driver.machine.end_offset == 10
    assert driver.machine.room == 0


def test_a_held_record_does_not_keep_others_from_what_follows_a_drop() -> None:
    driver = Driver(ShareSettings(in_flight_max=4), holds_writes=True)
    for _ in range(60):
        driver.append(1)
    assert driver.fetch(max_records=1) == ((0, 0, 1),)
    driver.handle(DropOldest(50, 0))
    assert driver.machine.room == 2
    assert driver.fetch("ben", max_records=1) == ((50, 50, 1),)
    driver.commit()
    driver.fail_over()
    driver.fetch(max_records=1)
    assert driver.machine.room == 2
    assert driver.fetch("ben", max_records=1) == ((50, 50, 1),)


def test_a_drop_that_frees_the_window_wakes_fetches() -> None:
    driver = Driver(ShareSettings(in_flight_max=4), holds_writes=True)
    for _ in range(9):
        driver.append(1)
    driver.fetch(max_records=1)
    driver.handle(DropOldest(4, 0))
    wakes = driver.wakes
    driver.commit()
    assert driver.wakes == wakes + 1


def test_the_state_of_a_window_with_a_held_record_is_bounded() -> None:
    """Records that are taken and acknowledged use up the window, and ranges between them do not
    grow in number without them."""
    driver = Driver(ShareSettings(in_flight_max=20, delivery_limit=100))
    driver.append(1)
    driver.fetch()
    for _ in range(100):
        driver.append(5)
        driver.handle(DropOldest(driver.log_end - 1, 0))
        for first, last, _ in driver.fetch("ben", max_records=1):
            driver.ack(first, last, member="ben")
    spans = driver.machine.spans
    assert len(spans) <= 40
    assert len(driver.replayed().spans) <= 40
    driver.ack(0, 0)
    assert driver.machine.start_offset >= 100
