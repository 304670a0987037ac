"""The checks of rights and passwords: each rule detects a history that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sim.access_plan import GROUP, GUEST_TOPIC, READ, WRITE
from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import (
    FAIL,
    INFO,
    OK,
    Attempt,
    Entry,
    History,
    LoginAttempt,
    PasswordChange,
    Poll,
    RightChange,
    Send,
)
from penstock.sim.history_file import read_history

PARTITION_NAME = f"{GUEST_TOPIC}-0"


def times(begun_ms: float, ended_ms: float, status: str = OK) -> dict[str, Any]:
    return {"process": "c", "begun_ms": begun_ms, "ended_ms": ended_ms, "status": status}


def revoked(begun_ms: float, ended_ms: float, right: str = READ, status: str = OK) -> RightChange:
    return RightChange(**times(begun_ms, ended_ms, status), right=right, granted=False)


def granted(begun_ms: float, ended_ms: float, right: str = READ, status: str = OK) -> RightChange:
    return RightChange(**times(begun_ms, ended_ms, status), right=right, granted=True)


def used(
    begun_ms: float,
    ended_ms: float,
    right: str = READ,
    status: str = OK,
    values: tuple[str, ...] = (),
) -> Attempt:
    return Attempt(**times(begun_ms, ended_ms, status), right=right, broker=1, values=values)


def sent(value: str, begun_ms: float, ended_ms: float, status: str = OK, offset: int = 0) -> Send:
    more: dict[str, Any] = {"value": value, "number": 1, "acks": -1, "offset": offset}
    return Send(**times(begun_ms, ended_ms, status), partition_name=PARTITION_NAME, **more)


def read(value: str, ended_ms: float) -> Poll:
    reads = {PARTITION_NAME: ((0, value),)}
    return Poll(**times(ended_ms - 1, ended_ms), reads=reads, moved=(PARTITION_NAME,))


def rules(*entries: Entry) -> list[str]:
    return [each.rule for each in check_history(History([*entries]), [])]


@pytest.mark.parametrize("right", [READ, WRITE, GROUP])
def test_a_right_cannot_be_used_after_its_revocation_was_acknowledged(right: str) -> None:
    """E20: from the acknowledgement until the right is requested again."""
    change = revoked(10, 20, right)
    assert rules(change, used(20, 21, right, FAIL)) == []
    assert rules(change, used(20, 21, right)) == ["E20"]
    again = granted(30, 40, right)
    assert rules(change, again, used(29, 29.5, right)) == ["E20"]
    assert rules(change, again, used(29, 31, right)) == []
    assert rules(change, again, used(35, 36, right)) == []


def test_rights_do_not_depend_on_each_other() -> None:
    assert rules(revoked(10, 20, WRITE), used(25, 26, READ)) == []


def test_nothing_is_claimed_before_the_acknowledgement_or_without_one() -> None:
    assert rules(revoked(10, 20), used(15, 16), used(19, 25)) == []
    assert rules(revoked(10, 20, status=INFO), used(25, 26)) == []


def test_a_grant_without_an_answer_opens_and_the_next_revocation_closes() -> None:
    """A revocation that is acknowledged twice closes with the first acknowledgement."""
    unknown = granted(30, 40, status=INFO)
    assert rules(revoked(10, 20), unknown, used(41, 42)) == []
    assert rules(revoked(10, 20), unknown, revoked(50, 60), used(61, 62)) == ["E20"]
    assert rules(revoked(10, 20), revoked(30, 40), used(25, 26)) == ["E20"]


def test_a_fetch_that_began_before_returns_nothing_that_was_sent_after() -> None:
    """E20: it may return what was there when the revocation was acknowledged."""
    before, after = sent("a", 15, 25), sent("b", 21, 25)
    assert rules(revoked(10, 20), before, used(5, 30, values=("a",))) == []
    assert rules(revoked(10, 20), after, used(5, 30, values=("b",))) == ["E20"]
    assert rules(revoked(10, 20), after, granted(28, 29), used(5, 30, values=("b",))) == []


def test_a_record_sent_after_the_revocation_is_not_in_the_log() -> None:
    """E20: unless it arrived after the right was given again."""
    late = (sent("a", 21, 25, INFO, -1), used(21, 25, WRITE, INFO, ("a",)))
    assert rules(revoked(10, 20, WRITE), *late) == []
    assert rules(revoked(10, 20, WRITE), *late, read("a", 40)) == ["E20"]
    again = granted(30, 35, WRITE)
    assert rules(revoked(10, 20, WRITE), *late, again, read("a", 40)) == []
    assert rules(revoked(10, 20, WRITE), *late, again, read("a", 29)) == ["E20"]


def password(begun_ms: float, *, is_set: bool, status: str = OK, broker: int = 0) -> PasswordChange:
    return PasswordChange(**times(begun_ms, begun_ms + 5, status), broker=broker, is_set=is_set)


def login(begun_ms: float, *, broker: int = 0) -> LoginAttempt:
    return LoginAttempt(**times(begun_ms, begun_ms + 1), broker=broker)


def test_a_deleted_password_is_refused_by_the_broker_that_deleted_it() -> None:
    """E21: the other brokers may learn of it later."""
    deleted = password(10, is_set=False)
    assert rules(deleted, login(12)) == []
    assert rules(deleted, login(15)) == ["E21"]
    assert rules(deleted, login(15, broker=1)) == []
    assert rules(deleted, password(30, is_set=True), login(31)) == []
    assert rules(password(10, is_set=False, status=INFO), login(15)) == []


def test_a_password_that_may_still_be_set_ends_the_check_of_logins() -> None:
    unknown = password(2, is_set=True, status=INFO)
    assert rules(unknown, password(10, is_set=False), login(15)) == []


def test_entries_survive_a_round_trip_through_json_lines() -> None:
    entries: list[Entry] = [
        revoked(1, 2),
        used(1, 2, values=("a", "b")),
        password(1, is_set=True),
        login(1),
    ]
    assert read_history(History(entries).lines()).entries == entries
