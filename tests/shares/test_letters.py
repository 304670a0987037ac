"""Dead letters are numbered durably, written in order, and written exactly once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.shares.events import (
    DeadLettersWritten,
    ProducerIdTaken,
    SettingsChanged,
    TakeProducerId,
    WriteDeadLetters,
)
from penstock.shares.image import LetterNumbers
from penstock.shares.letters import LETTERS_AT_A_TIME, LetterBook, NumberAgain
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import Span
from penstock.shares.states import AckType, RecordState

from .driver import Driver
from .letter_topic import LetterTopic

LETTERS = ShareSettings(dead_letter_topic="dlq.jobs", delivery_limit=2)


class World:
    """A share partition and the topic of its dead letters."""

    def __init__(self, *, holds_writes: bool = False) -> None:
        self.driver = Driver(LETTERS, holds_writes=holds_writes)
        self.topic = LetterTopic()
        self.log_start = 0

    @property
    def order(self) -> WriteDeadLetters:
        return self.driver.letters[-1]

    def reject(self, records: int) -> None:
        """Appends records, and rejects them."""
        first = self.driver.append(records).first
        self.driver.fetch()
        self.driver.acknowledge(first, first + records - 1, AckType.REJECT)

    def settle(self) -> None:
        """Writes and stores everything that is left."""
        driver = self.driver
        while driver.writes or driver.letters:
            if driver.writes:
                driver.commit()
            else:
                self.deliver()

    def deliver(self) -> None:
        """Writes the dead letters that were asked for last, up to a record that is deleted."""
        order = self.order
        self.driver.letters.clear()
        kept = [letter.offset >= self.log_start for letter in order.letters]
        count = kept.index(False) if False in kept else len(kept)
        report = self.topic.write(order, count)
        if count < len(kept) and not report.is_refused:
            report = replace(report, missing=(order.letters[count].offset,))
        self.driver.handle(report)

    def delete_below(self, offset: int) -> None:
        self.log_start = offset
        self.driver.move_log_start(offset)

    def lose_answer(self, count: int | None = None) -> None:
        """Some letters are written, and the leader is lost before it hears of them."""
        self.topic.write(self.order, count)
        self.driver.fail_over()


def test_letters_are_written_in_rounds_as_large_as_a_partition_recognizes() -> None:
    world = World()
    world.reject(12)
    assert [letter.offset for letter in world.order.letters] == [0, 1, 2, 3, 4]
    assert [letter.sequence for letter in world.order.letters] == [0, 1, 2, 3, 4]
    world.settle()
    assert world.topic.offsets == [*range(12)]
    assert world.driver.machine.start_offset == 12


def test_the_next_round_waits_until_the_last_one_is_archived() -> None:
    world = World(holds_writes=True)
    world.reject(7)
    while world.driver.writes:
        world.driver.commit()
    world.deliver()
    assert not world.driver.letters
    world.driver.commit()
    assert [letter.offset for letter in world.order.letters] == [5, 6]


@pytest.mark.parametrize("written", range(LETTERS_AT_A_TIME + 1))
def test_a_new_leader_writes_what_is_left_under_the_same_numbers(written: int) -> None:
    world = World()
    world.reject(8)
    before = world.order
    world.lose_answer(written)
    assert world.order == before
    world.settle()
    assert world.topic.offsets == [*range(8)]
    assert world.topic.refused == 0


def test_letters_are_recognized_over_several_failovers() -> None:
    world = World()
    for number in range(1, 5):
        world.reject(3)
        world.lose_answer(number % 4)
    world.settle()
    assert world.topic.offsets == [*range(12)]


def test_a_producer_id_is_taken_once_and_stored_before_it_is_used() -> None:
    world = World(holds_writes=True)
    driver = world.driver
    world.reject(1)
    driver.commit()
    assert driver.machine.spans[0].state is RecordState.ARCHIVING
    assert not driver.letters
    assert driver.writes[0].delta.letters.producer_id == driver.producer_ids
    world.settle()
    world.reject(1)
    world.settle()
    assert driver.producer_ids == 1
    assert world.topic.offsets == [0, 1]


def test_a_late_answer_about_a_producer_id_changes_nothing() -> None:
    world = World()
    world.reject(1)
    numbers = world.driver.replayed().letters
    world.driver.handle(ProducerIdTaken(99))
    world.settle()
    assert world.driver.replayed().letters == numbers
    assert world.topic.offsets == [0]


def test_records_that_retention_has_deleted_leave_no_gap() -> None:
    world = World()
    world.reject(4)
    world.delete_below(2)
    world.settle()
    assert world.topic.offsets == [2, 3]
    assert world.topic.refused == 0
    assert world.driver.machine.start_offset == 4


def test_a_gap_that_a_new_leader_does_not_know_of_is_found_by_the_refusal() -> None:
    world = World()
    world.reject(8)
    world.deliver()
    world.delete_below(7)
    world.driver.fail_over()
    world.settle()
    assert world.topic.refused == 1
    assert world.topic.offsets == [0, 1, 2, 3, 4, 7]


def test_an_offset_without_a_record_has_no_letter() -> None:
    world = World()
    world.reject(3)
    order = world.order
    world.driver.letters.clear()
    world.topic.write(order, 1)
    world.driver.handle(DeadLettersWritten((0,), missing=(1,)))
    assert [letter[:2] for letter in world.order.letters] == [(2, 0)]
    assert world.order.producer_epoch == order.producer_epoch + 1
    world.settle()
    assert world.topic.offsets == [0, 2]
    assert world.driver.machine.start_offset == 3


def test_a_number_whose_delta_failed_is_not_waited_for() -> None:
    world = World(holds_writes=True)
    driver = world.driver
    driver.append(2)
    driver.fetch()
    driver.acknowledge(0, 0, AckType.REJECT)
    driver.acknowledge(1, 1, AckType.REJECT)
    failed = driver.writes.pop(0)
    driver.commit()
    assert not driver.letters
    driver.writes.insert(0, failed)
    driver.fail()
    driver.wait(2000)
    world.settle()
    assert world.topic.offsets == [1]
    assert driver.machine.start_offset == 0


def test_letters_wait_for_a_lower_number_that_is_being_stored() -> None:
    world = World(holds_writes=True)
    world.reject(1)
    world.settle()
    world.reject(1)
    world.reject(1)
    driver = world.driver
    first = driver.writes.pop(0)
    driver.commit()
    assert not driver.letters
    driver.writes.insert(0, first)
    driver.commit()
    assert [letter.offset for letter in world.order.letters] == [1, 2]


def test_the_largest_producer_epoch_is_followed_by_another_producer() -> None:
    book = LetterBook(LetterNumbers(0, 3, 32767, 7))
    span = Span(10, 12, RecordState.ARCHIVING, 1, letter_shift=-10)
    book.next_step([span])
    book.on_written(DeadLettersWritten((), is_refused=True), [span])
    assert book.next_step([span]) is not None
    assert book.numbers == (3, 3, 0, -1)
    book.on_producer_id(8)
    step = book.next_step([span])
    assert step == NumberAgain((span,))
    assert book.numbers == (3, 3, 0, 8)


def test_another_topic_gets_the_letters_that_are_left() -> None:
    world = World()
    world.reject(7)
    world.deliver()
    world.topic = LetterTopic()
    world.driver.handle(SettingsChanged(replace(LETTERS, dead_letter_topic="dlq.other")))
    world.settle()
    assert world.topic.offsets == [5, 6]


def test_a_producer_id_is_asked_for_again_if_the_topic_is_removed_and_set_again() -> None:
    """The shell forgets what it was asked for when the group has no topic for letters."""
    book = LetterBook(LetterNumbers())
    span = Span(0, 0, RecordState.ARCHIVING, 1)
    assert book.next_step([span]) == TakeProducerId()
    assert book.next_step([span]) is None
    book.skip([])
    assert book.next_step([span]) == TakeProducerId()
