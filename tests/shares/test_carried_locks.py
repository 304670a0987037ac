"""Members keep their records when the leader loads the state again, unless it has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.schedule.cursor import ScheduleCursor
from penstock.shares.events import Acquire, AcquiredRange, BatchKind, Promote, SwitchSchedule
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import AckType

from .driver import Driver

LOCK_MS = 1_000
SETTINGS = ShareSettings(record_lock_ms=LOCK_MS, in_flight_max=100)


def held(driver: Driver) -> list[tuple[int, int, str, int]]:
    return [
        (each.first, each.last, each.owner, each.delivery_count)
        for each in (*driver.machine.promoted, *driver.machine.spans)
        if each.owner is not None
    ]


def fetch_promoted(driver: Driver, member: str) -> tuple[AcquiredRange, ...]:
    offset = driver.machine.next_promoted(driver.now)
    if offset is None:
        return ()
    batches = tuple(each._replace(kind=BatchKind.DATA) for each in driver.read(offset))
    driver.handle(Acquire("promoted", member, offset, batches, 10, is_promoted=True))
    return driver.ranges.pop("promoted")


def test_a_record_beyond_what_is_stored_stays_locked_for_the_same_time() -> None:
    driver = Driver(SETTINGS)
    driver.append(1, BatchKind.CONTROL)
    driver.append(3, epoch=4)
    driver.fetch("anna", 1)
    driver.append(2, epoch=5)
    driver.fetch("ben")
    driver.wait(LOCK_MS - 100)
    driver.load_again()
    assert held(driver) == [(1, 3, "anna", 1), (4, 5, "ben", 1)]
    assert driver.machine.end_offset == 6
    assert driver.ack(1, 3) == 0
    assert driver.replayed().end_leader_epoch == 5
    assert driver.fetch("cleo") == ()
    driver.wait(1_000)
    assert driver.fetch("cleo") == ((4, 5, 2),)


@pytest.mark.parametrize("kind", [AckType.ACCEPT, AckType.RELEASE, AckType.REJECT])
def test_the_stored_state_decides_about_a_record_whose_decision_was_under_way(
    kind: AckType,
) -> None:
    for written in (0, 1):
        driver = Driver(SETTINGS, holds_writes=True)
        driver.append(2)
        driver.fetch("anna", 2)
        driver.acknowledge(1, 1, kind)
        driver.load_again(written=written)
        expected = [(0, 0, "anna", 1)] if written else [(0, 1, "anna", 1)]
        assert held(driver) == expected
        again = driver.fetch("ben")
        assert again == (((1, 1, 2),) if written and kind is AckType.RELEASE else ())


def test_a_lock_that_has_ended_is_released_with_its_count_after_a_second() -> None:
    driver = Driver(SETTINGS)
    driver.append(2)
    driver.fetch("anna")
    driver.load_again(ends="anna")
    assert driver.fetch("ben") == ()
    driver.wait(999)
    assert driver.fetch("ben") == ()
    driver.wait(1)
    assert [each.delivery_count for each in driver.replayed().spans] == [1]
    assert driver.fetch("ben") == ((0, 1, 2),)


def test_locks_of_another_state_are_over() -> None:
    driver = Driver(SETTINGS)
    driver.append(2)
    driver.fetch("anna")
    locks = driver.machine.locks
    image = replace(driver.replayed(), state_epoch=9)
    machine = SharePartition(SETTINGS, image, driver.now)
    machine.put_back(locks)
    assert not machine.spans


def test_a_promoted_record_stays_locked() -> None:
    driver = Driver(SETTINGS)
    driver.handle(SwitchSchedule(is_timed=True))
    driver.append(1)
    driver.append(1, BatchKind.FAR)
    driver.fetch("ben")
    assert driver.ack(0, 0, member="ben") == 0
    driver.handle(Promote((1,), ScheduleCursor(0, 2, driver.now.wall_ms), is_last=False))
    assert fetch_promoted(driver, "anna") == ((1, 1, 1),)
    driver.load_again()
    assert held(driver) == [(1, 1, "anna", 1)]
    assert fetch_promoted(driver, "ben") == ()
    assert driver.ack(1, 1) == 0
    assert not driver.replayed().promoted


def test_a_schedule_that_is_not_stored_as_closed_is_carried_over() -> None:
    """The far records above its end were delivered from the window. The schedule that is stored
    would promote them."""
    driver = Driver(SETTINGS)
    driver.handle(SwitchSchedule(is_timed=True))
    driver.append(1)
    driver.fetch("ben")
    assert driver.ack(0, 0, member="ben") == 0
    driver.handle(SwitchSchedule(is_timed=False))
    driver.append(1)
    driver.fetch("anna")
    driver.load_again()
    assert held(driver) == [(1, 1, "anna", 1)]
    assert driver.replayed().schedule.ceiling == -1
    assert driver.machine.schedule.ceiling == 1


def test_a_schedule_that_is_not_stored_looks_at_all_its_records_again() -> None:
    """It has promoted nothing, unless the state is another one by now."""
    driver = Driver(SETTINGS)
    driver.handle(SwitchSchedule(is_timed=True))
    driver.append(1)
    driver.append(1, BatchKind.FAR)
    driver.fetch("anna")
    driver.handle(Promote((), ScheduleCursor(0, 2, driver.now.wall_ms)))
    driver.load_again()
    assert held(driver) == [(0, 0, "anna", 1)]
    assert driver.machine.schedule == (1, -1, ScheduleCursor(0, 0))
