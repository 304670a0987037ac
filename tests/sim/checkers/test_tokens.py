"""The checks of delegation tokens: each rule detects a history that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.sim.access_plan import HOLDER_GROUP, OTHERS_GROUP
from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import (
    CREATED,
    EXPIRED,
    FAIL,
    INFO,
    OK,
    REMOVED_MS,
    RENEWED,
    Entry,
    History,
    TokenChange,
    TokenLogin,
)
from penstock.sim.history_file import read_history

WALL_MS = 1_000_000
"""What clocks show when the history begins."""
MAX_MS = WALL_MS + 900


def change(
    begun_ms: float, action: str, expires_ms: int, status: str = OK, **more: Any
) -> TokenChange:
    """A change that is answered after 10 ms. `expires_ms` counts from the beginning."""
    return TokenChange(
        process="h",
        status=status,
        begun_ms=begun_ms,
        ended_ms=begun_ms + 10,
        token_id="t",
        action=action,
        expires_ms=expires_ms if expires_ms == REMOVED_MS else WALL_MS + expires_ms,
        **more,
    )


def login(begun_ms: float, status: str = OK, *served: str, skew_ms: int = 0) -> TokenLogin:
    """A login at broker 1 that takes 10 ms."""
    return TokenLogin(
        process="b",
        status=status,
        begun_ms=begun_ms,
        ended_ms=begun_ms + 10,
        token_id="t",
        broker=1,
        wall_ms=WALL_MS + int(begun_ms) + skew_ms,
        wall_until_ms=WALL_MS + int(begun_ms) + 10 + skew_ms,
        served=served,
    )


NEW = change(0, CREATED, 500, max_ms=MAX_MS)


def broken(*entries: Entry) -> set[str]:
    """Returns the rules that the history breaks, as it is read from its file."""
    history = History((NEW, *entries))
    return {each.rule for each in check_history(read_history(history.lines()), ())}


def test_a_token_that_works_breaks_no_rule() -> None:
    """Also one that ends by itself, and one that is removed."""
    assert not broken(login(100, OK, HOLDER_GROUP), login(600, FAIL))
    removed = change(200, EXPIRED, REMOVED_MS)
    assert not broken(login(100), removed, login(205), login(210, FAIL))


@pytest.mark.parametrize(("begun_ms", "rules"), [(209, set()), (210, {"E31"}), (800, {"E31"})])
def test_a_token_is_not_accepted_after_its_removal(begun_ms: float, rules: set[str]) -> None:
    """From the acknowledgement on. A renewal that is answered later does not bring it back."""
    removed = change(200, EXPIRED, REMOVED_MS)
    assert broken(removed, change(150, RENEWED, 900, INFO), login(begun_ms)) == rules


@pytest.mark.parametrize(
    ("skew_ms", "rules"), [(0, {"E31"}), (-100, {"E31"}), (-101, set()), (60_000, {"E31"})]
)
def test_a_token_is_not_accepted_after_its_end(skew_ms: int, rules: set[str]) -> None:
    """By the clock of the broker."""
    assert broken(login(600, skew_ms=skew_ms)) == rules


@pytest.mark.parametrize(("status", "rules"), [(OK, set()), (INFO, set()), (FAIL, {"E31"})])
def test_a_token_that_may_be_renewed_lasts_longer(status: str, rules: set[str]) -> None:
    """Not longer than it can be renewed."""
    renewed = change(100, RENEWED, 800, status)
    assert broken(renewed, login(600)) == rules
    assert broken(renewed, login(900)) == {"E31"}


def test_a_token_that_is_expired_ends_earlier() -> None:
    """If that was not answered, its end is not known."""
    assert broken(change(100, EXPIRED, 300), login(300)) == {"E31"}
    assert not broken(change(295, EXPIRED, 297), login(300)), "it was not answered yet"
    assert not broken(change(100, EXPIRED, 300, INFO), login(300))


def test_a_token_does_not_give_the_rights_of_others() -> None:
    assert broken(login(100, OK, HOLDER_GROUP, OTHERS_GROUP)) == {"E32"}


def test_a_broker_keeps_accepting_a_token() -> None:
    """It may refuse one that it did not know yet, and one that may have ended."""
    assert not broken(login(20, FAIL), login(100))
    assert broken(login(100), login(200, FAIL)) == {"E33"}
    assert not broken(login(100), login(200, INFO))
    assert not broken(login(100), change(150, EXPIRED, REMOVED_MS, INFO), login(200, FAIL))
    assert not broken(login(100), change(150, EXPIRED, 160, INFO), login(200, FAIL))
    assert not broken(login(100), login(495, FAIL))


def test_a_token_that_has_ended_by_another_clock_may_be_removed() -> None:
    """The controller removes it by its own clock. That of this broker was then set back."""
    refused = login(600, FAIL, skew_ms=-400)
    assert broken(login(100), refused) == {"E33"}
    assert not broken(login(100), replace(refused, any_wall_until_ms=WALL_MS + 610))
