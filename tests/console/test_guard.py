"""Tests access checks: hosts, origins, sessions, CSRF tokens, login attempts.

Uses a manual clock.
"""

from __future__ import annotations

import pytest

from penstock.console.config import BadConsoleConfig, ConsoleConfig
from penstock.console.errors import NotAllowed, NotLoggedIn, TooManyAttempts
from penstock.console.guard import Guard
from penstock.runtime import SystemRandom

TOKEN = "a-token-of-some-length"


class HandClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def guard(clock: HandClock | None = None, **config: object) -> Guard:
    made = ConsoleConfig(bootstrap="h:1", **config)  # type: ignore[arg-type]
    return Guard(made, 8090, clock or HandClock(), SystemRandom())


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8090", "localhost:8090", "LOCALHOST", "[::1]:8090", "console.lan:1"]
)
def test_accepted_host_names(host: str) -> None:
    """Those of loopback, and those in the configuration."""
    guard(allowed_hosts=("Console.lan",)).check_origin({"host": host})


@pytest.mark.parametrize("host", ["evil.example:8090", "", "127.0.0.1.evil.example", "[", "a@b"])
def test_other_host_names_are_refused(host: str) -> None:
    """For example another site's name that resolves to this address."""
    with pytest.raises(NotAllowed):
        guard().check_origin({"host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_refused(headers: dict[str, str]) -> None:
    """By the headers in which the browser reports a request's origin.
    Another port is another site."""
    with pytest.raises(NotAllowed, match="another site"):
        guard().check_origin({"host": "localhost:8090", **headers})


def test_the_consoles_own_page_is_accepted() -> None:
    """And an address typed by the user."""
    own = {"host": "localhost:8090", "origin": "http://localhost:8090"}
    guard().check_origin({**own, "sec-fetch-site": "same-origin"})
    guard().check_origin({"host": "localhost:8090", "sec-fetch-site": "none"})


def test_sessions_cannot_be_forged() -> None:
    """Sessions of another console are refused as well, and so is a request without the CSRF
    token."""
    one, other = guard(), guard()
    cookie = one.open_session()
    session = one.check_session(cookie)
    for bad in (None, "", "x", f"{session}.", f"{cookie}0", other.open_session()):
        with pytest.raises(NotLoggedIn):
            one.check_session(bad)
    one.check_csrf(session, one.csrf_token(session))
    for given in (None, "", other.csrf_token(session), cookie):
        with pytest.raises(NotAllowed):
            one.check_csrf(session, given)


def test_login_attempts_are_limited() -> None:
    """After five wrong tokens, even the right one is refused for a minute."""
    clock = HandClock()
    watched = guard(clock, token=TOKEN)
    for _ in range(5):
        with pytest.raises(NotLoggedIn):
            watched.login("guess")
    with pytest.raises(TooManyAttempts):
        watched.login(TOKEN)
    clock.now += 61
    watched.check_session(watched.login(TOKEN))


def test_without_a_token_only_loopback_is_allowed() -> None:
    """A token has a minimum length."""
    for host in ("0.0.0.0", "10.0.0.1", "console.lan", "::"):
        with pytest.raises(BadConsoleConfig, match="give a token"):
            ConsoleConfig(bootstrap="h:1", host=host)
    with pytest.raises(BadConsoleConfig, match="characters"):
        ConsoleConfig(bootstrap="h:1", token="short")
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert ConsoleConfig(bootstrap="h:1", host=host).is_loopback
