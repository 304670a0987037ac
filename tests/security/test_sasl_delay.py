"""When a failed authentication is answered: the time must not show how long the check took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.exchange import Accepted, KeyFetch, Rejected, Step, Wait
from penstock.security.sasl_session import (
    DelayThenClose,
    OfferedMechanism,
    SaslSession,
    SaslSettings,
)

WALL = 1_000_000_000
DELAY = 100


class _Waits:
    """A mechanism that waits once, and then rejects the client, or accepts the name it is given."""

    def step(self, token: bytes, now_ms: int) -> Step:
        return Wait(KeyFetch("key"))

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        return Accepted(result.decode(), expires_at_ms=now_ms + 60_000) if result else Rejected("")


def _session(delay_ms: int = DELAY, start_ms: int = 0) -> SaslSession:
    offered = OfferedMechanism("WAITS", _Waits)
    session = SaslSession([offered], SaslSettings(delay_ms, deadline_ms=10_000), start_ms)
    session.on_handshake(1, "WAITS", start_ms)
    return session


def _answered_after(work_ms: int, delay_ms: int = DELAY, start_ms: int = 0) -> int:
    """Returns the time from the token to its answer, if the work fails after `work_ms`."""
    session = _session(delay_ms, start_ms)
    session.on_token(b"x", start_ms, WALL)
    (failure,) = session.on_work_done(None, start_ms + work_ms, WALL)
    assert isinstance(failure, DelayThenClose)
    assert failure.delay_ms >= 0
    assert failure.due_ms == start_ms + work_ms + failure.delay_ms
    return work_ms + failure.delay_ms


@pytest.mark.parametrize(
    ("work_ms", "answered_ms"),
    [(0, 100), (1, 100), (60, 100), (100, 100), (101, 200), (200, 200), (201, 300)],
)
def test_a_failure_is_answered_at_a_multiple_of_the_delay_after_the_token(
    work_ms: int, answered_ms: int
) -> None:
    assert _answered_after(work_ms) == answered_ms
    assert _answered_after(work_ms, start_ms=77) == answered_ms


@given(st.integers(0, 9_999), st.integers(1, 20_000), st.integers(0, 1 << 40))
def test_the_time_of_the_answer_is_the_first_multiple_that_is_not_past(
    work_ms: int, delay_ms: int, start_ms: int
) -> None:
    answered = _answered_after(work_ms, delay_ms, start_ms)
    assert answered == next(at for at in range(delay_ms, 40_000, delay_ms) if at >= work_ms)


def test_without_a_delay_a_failure_is_answered_at_once() -> None:
    assert _answered_after(7, delay_ms=0) == 7


def test_the_delay_begins_at_the_last_token_and_not_at_an_earlier_one() -> None:
    session = _session()
    session.on_token(b"x", 0, WALL)
    session.on_work_done(b"alice", 950, WALL)
    session.on_handshake(1, "WAITS", 5_000)
    session.on_token(b"x", 5_030, WALL)
    (failure,) = session.on_work_done(None, 5_070, WALL)
    assert isinstance(failure, DelayThenClose)
    assert failure.delay_ms == 60


def test_a_failure_that_is_no_answer_to_a_token_has_the_whole_delay() -> None:
    session = _session()
    session.on_token(b"x", 0, WALL)
    (failure,) = session.on_other_request(0, 30)
    assert isinstance(failure, DelayThenClose)
    assert failure.delay_ms == DELAY


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", " alice", "a\nb", "\x1b[2J"])
def test_a_mechanism_cannot_accept_a_name_that_no_user_may_have(name: str) -> None:
    session = _session()
    session.on_token(b"x", 0, WALL)
    (failure,) = session.on_work_done(name.encode(), 0, WALL)
    assert isinstance(failure, DelayThenClose)
    assert (session.principal, failure.claimed) == (None, None)
    assert failure.reason.isprintable()


def test_the_reason_of_a_failure_quotes_names() -> None:
    session = _session()
    session.on_token(b"x", 0, WALL)
    session.on_work_done(b"alice as bob' ok", 0, WALL)
    session.on_handshake(1, "WAITS", 5_000)
    session.on_token(b"x", 5_000, WALL)
    (failure,) = session.on_work_done(b"eve", 5_000, WALL)
    assert isinstance(failure, DelayThenClose)
    assert repr("alice as bob' ok") in failure.reason
