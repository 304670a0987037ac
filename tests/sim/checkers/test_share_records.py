"""The checks of records with times and of dead letters when they are committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.shares.dead_letters import letter_headers
from penstock.records.job_headers import DELIVER_AT, EXPIRES_AT
from penstock.records.record import Record
from penstock.shares.events import DeadLetter
from penstock.shares.states import GiveUpReason, RecordState
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.sim.checkers.share_records import (
    ShareRecords,
    StoredRecord,
    TopicLetters,
    TopicRecords,
    logs_to_follow,
)

GIVEN_UP = StoredRecord(RecordState.ARCHIVING, 2, GiveUpReason.REJECTED)
RIGHT = DeadLetter(7, 0, 2, GiveUpReason.REJECTED)


def letters(stored: StoredRecord = GIVEN_UP, *, copies: bool = False) -> TopicLetters:
    records = ShareRecords(has_letters=True, copies_records=copies)
    records.on_written("orders-1", Record(7, 0, None, b"p0.1"))
    return TopicLetters("dlq.jobs", "jobs", records, lambda group, name, offset: stored)


def letter(said: DeadLetter = RIGHT, *, value: bytes | None = None, offset: int = 0) -> Record:
    return Record(offset, 0, None, value, letter_headers("orders", 1, "jobs", said))


def test_a_letter_for_a_record_that_is_given_up_is_right() -> None:
    """Its copy is the record, if the group copies records."""
    log = letters()
    log.on_committed("dlq.jobs-0", 0, [letter()])
    assert log._records.letters == {("jobs", "orders-1", 7): 0}
    letters(copies=True).on_committed("dlq.jobs-0", 0, [letter(value=b"p0.1")])


def test_a_record_has_one_letter() -> None:
    log = letters()
    with pytest.raises(InvariantBroken, match=r"I24.*offsets 0, 1"):
        log.on_committed("dlq.jobs-0", 0, [letter(), letter(offset=1)])


@pytest.mark.parametrize(
    "stored",
    [
        StoredRecord(),
        StoredRecord(RecordState.ACKNOWLEDGED, 2),
        StoredRecord(RecordState.ARCHIVED, 2),
        GIVEN_UP._replace(deliveries=3),
        GIVEN_UP._replace(reason=GiveUpReason.EXPIRED),
    ],
)
def test_a_letter_is_for_a_record_that_is_given_up_and_says_why(stored: StoredRecord) -> None:
    with pytest.raises(InvariantBroken, match="I24"):
        letters(stored).on_committed("dlq.jobs-0", 0, [letter()])


def test_a_letter_has_a_copy_exactly_if_the_group_wants_one() -> None:
    with pytest.raises(InvariantBroken, match=r"I24.*has a copy"):
        letters().on_committed("dlq.jobs-0", 0, [letter(value=b"p0.1")])
    for value in (None, b"p0.2"):
        with pytest.raises(InvariantBroken, match=r"I24.*has the value"):
            letters(copies=True).on_committed("dlq.jobs-0", 0, [letter(value=value)])


def test_the_times_of_records_are_those_in_their_headers() -> None:
    records = ShareRecords()
    log = TopicRecords("orders", records)
    plain = Record(0, 0, None, b"a")
    timed = ((DELIVER_AT, b"500"), (EXPIRES_AT, b"900"))
    log.on_committed("orders-0", 0, [plain, Record(1, 0, None, b"b", timed)])
    assert records.last_due_ms == 500
    assert [records.is_due("orders-0", 1, at_ms) for at_ms in (499, 500)] == [False, True]
    assert [records.is_expired("orders-0", 1, at_ms) for at_ms in (899, 900)] == [False, True]
    assert records.is_due("orders-0", 0, 0)
    assert not records.is_expired("orders-0", 0, 1 << 60)
    assert records.may_be_dropped("orders-0", 1, 900.0)
    with_letters = replace(records, has_letters=True)
    assert not with_letters.may_be_dropped("orders-0", 1, 900.0), "it needs a dead letter"


def test_topics_and_dead_letters_are_followed_by_their_names() -> None:
    logs = logs_to_follow(ShareRecords(), ["orders"], {"jobs": "dlq.jobs"}, lambda *_: GIVEN_UP)
    assert [log.topic for log in logs] == ["orders", "dlq.jobs"]
