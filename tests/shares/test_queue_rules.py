"""What share partitions do beyond Kafka: back-off, dead letters, due times, expiry."""

from __future__ import annotations

import pytest

from penstock.shares.events import DeadLettersWritten, SettingsChanged
from penstock.shares.settings import ShareSettings
from penstock.shares.states import AckType, GiveUpReason, RecordState
from penstock.wire.errors import ErrorCode

from .driver import Driver

LOCK_MS = 30_000
BACKOFF = ShareSettings(backoff_ms=1000, backoff_max_ms=3000, delivery_limit=10)
LETTERS = ShareSettings(dead_letter_topic="dlq.jobs", delivery_limit=2)


@pytest.mark.parametrize(("delivery", "wait_ms"), [(1, 1000), (2, 2000), (3, 3000), (9, 3000)])
def test_the_back_off_doubles_up_to_its_maximum(delivery: int, wait_ms: int) -> None:
    assert BACKOFF.backoff_after(delivery) == wait_ms


def test_a_released_record_waits_for_its_back_off() -> None:
    driver = Driver(BACKOFF)
    driver.append(2)
    driver.fetch()
    driver.ack(0, 0, AckType.RELEASE)
    assert driver.fetch() == ()
    driver.wait(999)
    assert driver.fetch() == ()
    wakes = driver.wakes
    driver.wait(1)
    assert driver.wakes == wakes + 1
    assert driver.fetch() == ((0, 0, 2),)


def test_a_record_whose_lock_has_ended_waits_for_its_back_off() -> None:
    driver = Driver(BACKOFF)
    driver.append(1)
    driver.fetch()
    driver.wait(LOCK_MS)
    assert driver.fetch() == ()
    driver.wait(1000)
    assert driver.fetch() == ((0, 0, 2),)


@pytest.mark.parametrize(("with_backoff", "again"), [(False, ((0, 0, 2),)), (True, ())])
def test_a_lost_connection_backs_off_and_a_clean_end_does_not(
    with_backoff: bool, again: tuple[object, ...]
) -> None:
    driver = Driver(BACKOFF)
    driver.append(1)
    driver.fetch()
    driver.end_session(with_backoff=with_backoff)
    assert driver.fetch("ben") == again


def test_the_back_off_goes_on_after_a_failover() -> None:
    driver = Driver(BACKOFF)
    driver.append(1)
    driver.fetch()
    driver.ack(0, 0, AckType.RELEASE)
    driver.wait(400)
    driver.fail_over()
    driver.wait(599)
    assert driver.fetch() == ()
    driver.wait(1)
    assert driver.fetch() == ((0, 0, 2),)


def test_a_record_in_back_off_does_not_stop_others() -> None:
    driver = Driver(BACKOFF)
    driver.append(1)
    driver.append(1)
    driver.fetch(max_records=1)
    driver.ack(0, 0, AckType.RELEASE)
    assert driver.fetch() == ((1, 1, 1),)


def test_a_rejected_record_is_archived_after_its_dead_letter() -> None:
    driver = Driver(LETTERS)
    driver.append(2)
    driver.fetch()
    assert driver.ack(0, 0, AckType.REJECT) is ErrorCode.NONE
    ((letter,),) = [order.letters for order in driver.letters]
    assert letter.reason is GiveUpReason.REJECTED
    assert driver.machine.spans[0].state is RecordState.ARCHIVING
    driver.ack(1, 1)
    assert driver.machine.start_offset == 0
    driver.handle(DeadLettersWritten((0,)))
    assert driver.machine.start_offset == 2


def test_a_record_at_the_delivery_limit_becomes_a_dead_letter() -> None:
    driver = Driver(LETTERS)
    driver.append(1)
    for _ in range(2):
        driver.fetch()
        driver.wait(LOCK_MS)
    ((letter,),) = [order.letters for order in driver.letters]
    assert (letter.delivery_count, letter.reason) == (2, GiveUpReason.DELIVERY_LIMIT)
    assert driver.fetch() == ()


def test_a_new_leader_asks_for_the_dead_letters_that_are_left() -> None:
    driver = Driver(LETTERS)
    driver.append(2)
    driver.fetch()
    driver.ack(0, 1, AckType.REJECT)
    before = driver.letters[:]
    driver.handle(DeadLettersWritten((0,)))
    driver.fail_over()
    assert [[letter.offset for letter in order.letters] for order in before] == [[0, 1]]
    ((letter,),) = [order.letters for order in driver.letters]
    assert (letter.offset, letter.reason) == (1, GiveUpReason.REJECTED)


def test_archiving_is_durable_before_its_dead_letter_is_asked_for() -> None:
    driver = Driver(LETTERS, holds_writes=True)
    driver.append(1)
    driver.fetch()
    driver.acknowledge(0, 0, AckType.REJECT)
    assert not driver.letters
    driver.commit()
    assert not driver.letters, "the producer id is not stored yet"
    driver.commit()
    assert driver.letters


def test_archived_is_stored_again_if_its_write_fails() -> None:
    driver = Driver(LETTERS, holds_writes=True)
    driver.append(1)
    driver.fetch()
    driver.acknowledge(0, 0, AckType.REJECT)
    driver.commit()
    driver.commit()
    driver.handle(DeadLettersWritten((0,)))
    driver.fail()
    driver.wait(2000)
    driver.commit()
    assert driver.machine.start_offset == 1
    assert len(driver.letters) == 1


def test_without_the_setting_records_in_archiving_are_archived() -> None:
    driver = Driver(LETTERS)
    driver.append(1)
    driver.fetch()
    driver.ack(0, 0, AckType.REJECT)
    driver.handle(SettingsChanged(ShareSettings()))
    assert driver.machine.start_offset == 1


def test_a_gap_has_no_dead_letter() -> None:
    driver = Driver(LETTERS)
    driver.append(1)
    driver.fetch()
    driver.ack(0, 0, AckType.GAP)
    assert driver.machine.start_offset == 1
    assert not driver.letters


def test_a_record_is_not_delivered_before_its_due_time() -> None:
    driver = Driver()
    driver.append(1, due_ms=driver.now.wall_ms + 5000)
    driver.append(1)
    assert driver.fetch("anna") == ((1, 1, 1),)
    driver.wait(4999)
    assert driver.fetch("anna") == ()
    driver.wait(1)
    assert driver.fetch("anna") == ((0, 0, 1),)


def test_a_due_time_holds_after_a_failover() -> None:
    driver = Driver()
    driver.append(1, due_ms=driver.now.wall_ms + 5000)
    driver.append(1)
    driver.fetch()
    driver.ack(1, 1)
    driver.fail_over()
    assert driver.fetch() == ()
    driver.wait(5000)
    assert driver.fetch() == ((0, 0, 1),)


def test_an_expired_record_is_not_delivered() -> None:
    driver = Driver()
    driver.append(1, expires_ms=driver.now.wall_ms)
    driver.append(1, expires_ms=driver.now.wall_ms + 1)
    assert driver.fetch() == ((1, 1, 1),)
    assert driver.machine.start_offset == 1


def test_a_record_that_expires_while_it_is_acquired_is_not_delivered_again() -> None:
    driver = Driver(LETTERS)
    driver.append(1, expires_ms=driver.now.wall_ms + 10)
    driver.fetch()
    driver.wait(20)
    driver.end_session()
    assert driver.fetch() == ()
    ((letter,),) = [order.letters for order in driver.letters]
    assert (letter.delivery_count, letter.reason) == (1, GiveUpReason.EXPIRED)
