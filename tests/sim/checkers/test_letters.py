"""The checks of dead letters that readers got: each rule finds what breaks it."""

from __future__ import annotations

import pytest

from penstock.sim.checkers.letters import check_letters
from penstock.sim.history import INFO, OK, Entry, GivenUp, LetterRow, LettersRead

REJECTED = "A member of the group rejected the record."
FIRST: LetterRow = (0, "jobs", "orders-1", 7, 2, REJECTED)


def read(*letters: LetterRow, is_all: bool = False, status: str = OK) -> LettersRead:
    return LettersRead(
        process="rl",
        status=status,
        begun_ms=1,
        ended_ms=2,
        partition_name="dlq.jobs-0",
        letters=letters,
        is_all=is_all,
    )


def given_up(offset: int = 7, deliveries: int = 2, reason: str = "REJECTED") -> GivenUp:
    return GivenUp(
        process="log",
        status=OK,
        begun_ms=0,
        ended_ms=0,
        group="jobs",
        partition_name="orders-1",
        offset=offset,
        deliveries=deliveries,
        reason=reason,
    )


def rules(*entries: Entry) -> list[str]:
    return [violation.rule for violation in check_letters(entries)]


def test_one_letter_for_each_record_that_was_given_up_is_right() -> None:
    """It may be read more than once. Without dead letters there is nothing to check."""
    assert rules(given_up(), read(FIRST), read(FIRST), read(FIRST, is_all=True)) == []
    assert rules() == []


def test_a_record_has_one_letter_that_stays_as_it_is() -> None:
    twice = (1, *FIRST[1:])
    assert rules(given_up(), read(FIRST, twice), read(FIRST, is_all=True)) == ["E44"]
    changed = (*FIRST[:4], 3, REJECTED)
    assert rules(given_up(), read(changed), read(FIRST, is_all=True)) == ["E44"]


@pytest.mark.parametrize(
    "letter",
    [
        (0, "", "orders-1", 7, 2, REJECTED),
        (0, "jobs", "orders-1", -1, 2, REJECTED),
        (0, "jobs", "orders-1", 7, -1, REJECTED),
    ],
)
def test_a_letter_says_what_it_is_for(letter: LetterRow) -> None:
    """Without the group, the offset or the delivery count it is of no use."""
    assert rules(read(letter)) == ["E44"]


def test_every_record_that_was_given_up_has_a_letter_in_the_end() -> None:
    assert rules(given_up(), read(is_all=True)) == ["E45"]
    assert rules(given_up(), read(FIRST), read(is_all=True)) == ["E45"]
    assert rules(given_up(deliveries=3), read(FIRST, is_all=True)) == ["E45"]
    assert rules(given_up(reason="EXPIRED"), read(FIRST, is_all=True)) == ["E45"]


def test_a_record_that_was_not_given_up_has_no_letter() -> None:
    assert rules(read(FIRST, is_all=True)) == ["E45"]
    assert rules(given_up(8), read(FIRST, is_all=True)) == ["E45", "E45"]


def test_letters_that_cannot_be_read_in_the_end_are_a_failure() -> None:
    """Then nothing is known about what is missing."""
    assert rules(given_up(), read(is_all=True, status=INFO)) == ["E14"]
