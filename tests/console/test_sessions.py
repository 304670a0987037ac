"""Tests the sessions of users with a manual clock: how they begin, expire and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest

from console.test_guard import HandClock
from penstock.client.errors import AuthenticationFailed, ConnectFailed
from penstock.console import sessions as module
from penstock.console.errors import NotLoggedIn, TooManyAttempts, TooManySessions
from penstock.console.sessions import Sessions


class FakeLink:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.is_closed = False

    async def reading(self) -> None:
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.is_closed = True


class FakeJobs:
    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.done.set()

    async def all_done(self) -> None:
        await self.done.wait()


class FakeWorkspace:
    """Has the attributes of a workspace that sessions use."""

    def __init__(self, clock: HandClock, user: str | None, error: Exception | None) -> None:
        self.user = user
        self.link = FakeLink(error)
        self.jobs = FakeJobs()
        self.used = clock.now
        self._clock = clock
        self._closed = asyncio.Event()

    def touch(self) -> None:
        self.used = self._clock.now

    async def run(self) -> None:
        await self._closed.wait()

    def close(self) -> None:
        self._closed.set()
        self.jobs.done.set()  # closing a workspace stops its jobs

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()


class StillClock(HandClock):
    """Time passes only when a test says so."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class Fixture:
    """Sessions of a cluster with the user ann, whose password is "tea"."""

    def __init__(self, *mechanisms: str) -> None:
        self.mechanisms = mechanisms or ("SCRAM-SHA-512",)
        self.clock = StillClock()
        self.opened: list[FakeWorkspace] = []
        self.error: Exception | None = None
        self.accepted = "SCRAM-SHA-512"
        self.sessions = self.made(needs_sign_in=True)

    def made(self, *, needs_sign_in: bool) -> Sessions:
        opened: Any = self._open
        return Sessions(self.clock, opened, needs_sign_in=needs_sign_in)

    def _open(self, user: str | None, login: Mapping[str, Any]) -> FakeWorkspace:
        right = ("ann", "tea", self.accepted)
        given = (user, login.get("sasl_password"), login.get("sasl_mechanism"))
        error = self.error or (None if given == right else AuthenticationFailed("b:1", "no"))
        self.opened.append(FakeWorkspace(self.clock, user, error))
        return self.opened[-1]

    def workspace(self, name: str) -> FakeWorkspace:
        found: Any = self.sessions.workspace(name)
        assert isinstance(found, FakeWorkspace)
        return found

    async def enter(
        self, name: str, password: str = "tea", address: str = "10.0.0.1"
    ) -> FakeWorkspace:
        logins = [
            {"sasl_mechanism": each, "sasl_username": "ann", "sasl_password": password}
            for each in self.mechanisms
        ]
        await self.sessions.sign_in(name, "ann", logins, address)
        return self.opened[-1]


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@in_a_loop
async def test_each_session_has_its_own_workspace() -> None:
    """Even two of the same user. At the end all are closed."""
    made = Fixture()
    async with made.sessions.running():
        one, other = await made.enter("one"), await made.enter("other")
        assert made.workspace("one") is one
        assert made.workspace("other") is other
        with pytest.raises(NotLoggedIn):
            made.workspace("forged")
    assert one.is_closed and other.is_closed


@in_a_loop
async def test_a_session_ends_when_nobody_uses_it() -> None:
    """A page that is open counts as use."""
    made = Fixture()
    async with made.sessions.running():
        used, idle = await made.enter("used"), await made.enter("idle")
        made.clock.now += module.IDLE_S - 1
        used.touch()
        made.clock.now += 2
        assert made.workspace("used") is used
        with pytest.raises(NotLoggedIn):
            made.workspace("idle")
        await settle()
        assert idle.is_closed and not used.is_closed


@in_a_loop
async def test_a_session_ends_after_its_life_although_it_is_used() -> None:
    made = Fixture()
    async with made.sessions.running():
        space = await made.enter("long")
        while made.clock.now < 100 + module.LIFE_S:
            assert made.workspace("long") is space
            made.clock.now += module.IDLE_S / 2
        made.clock.now += 1
        with pytest.raises(NotLoggedIn):
            made.workspace("long")


@in_a_loop
async def test_a_job_is_completed_when_its_session_expires() -> None:
    """Signing out stops it."""
    made = Fixture()
    async with made.sessions.running():
        expired, left = await made.enter("expired"), await made.enter("left")
        expired.jobs.done.clear()
        left.jobs.done.clear()
        made.sessions.end("left", "signed out")
        assert left.is_closed
        made.clock.now += module.IDLE_S + 1
        with pytest.raises(NotLoggedIn):
            made.workspace("expired")
        await settle()
        assert not expired.is_closed
        expired.jobs.done.set()
        await settle()
        assert expired.is_closed


@in_a_loop
async def test_a_console_that_stops_does_not_wait_for_jobs_of_expired_sessions() -> None:
    made = Fixture()
    async with made.sessions.running():
        expired = await made.enter("expired")
        expired.jobs.done.clear()
        made.clock.now += module.IDLE_S + 1
        with pytest.raises(NotLoggedIn):
            made.workspace("expired")
        await settle()
    assert expired.is_closed


@in_a_loop
async def test_a_refused_login_ends_the_session() -> None:
    """The cluster refuses the user of a session after the password was changed."""
    made = Fixture()
    async with made.sessions.running():
        space = await made.enter("mine")
        assert "sign in again" in str(made.sessions.on_refused("mine"))
        assert space.is_closed
        with pytest.raises(NotLoggedIn):
            made.workspace("mine")


@in_a_loop
async def test_the_number_of_sessions_is_limited() -> None:
    """Expired ones do not count."""
    made = Fixture()
    async with made.sessions.running():
        for number in range(module.SESSIONS_MAX):
            await made.enter(str(number))
        with pytest.raises(TooManySessions, match="try again later"):
            await made.enter("one more")
        made.clock.now += module.IDLE_S + 1
        await made.enter("one more")


@in_a_loop
async def test_wrong_passwords_are_limited_per_user_and_address() -> None:
    made = Fixture()
    async with made.sessions.running():
        for _ in range(module.ATTEMPTS_MAX):
            with pytest.raises(NotLoggedIn):
                await made.enter("x", "coffee")
            assert made.opened[-1].link.is_closed
        with pytest.raises(TooManyAttempts):
            await made.enter("x")
        await made.enter("y", address="10.0.0.2")
        made.clock.now += 61
        await made.enter("x")


@in_a_loop
async def test_many_names_with_wrong_passwords_lock_nobody_out() -> None:
    """The oldest failures are forgotten, so their number is limited."""
    made = Fixture()
    async with made.sessions.running():
        for number in range(module.ATTEMPTS_KEPT + 10):
            with pytest.raises(NotLoggedIn):
                await made.sessions.sign_in("x", f"user-{number}", [{}], "10.0.0.1")
        assert len(made.sessions._failures) == module.ATTEMPTS_KEPT
        await made.enter("mine")


@in_a_loop
async def test_the_number_of_people_who_are_signing_in_is_limited() -> None:
    made = Fixture()
    async with made.sessions.running():
        slow = asyncio.Event()

        async def wait(self: FakeLink) -> None:
            await slow.wait()

        with patch.object(FakeLink, "reading", wait):
            most = module.SESSIONS_MAX + module.WAITING_MAX
            waiting = [asyncio.ensure_future(made.enter(str(number))) for number in range(most)]
            await settle()
            with pytest.raises(TooManyAttempts, match="try again later"):
                await made.enter("one more")
            slow.set()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        refused = [each for each in ended if isinstance(each, TooManySessions)]
        assert len(refused) <= module.WAITING_MAX
        assert module.SESSIONS_MAX <= len(made.sessions._sessions) < module.SESSIONS_MAX + 4


@in_a_loop
async def test_all_mechanisms_are_tried() -> None:
    made = Fixture("SCRAM-SHA-512", "SCRAM-SHA-256")
    made.accepted = "SCRAM-SHA-256"
    async with made.sessions.running():
        space = await made.enter("one")
        assert made.workspace("one") is space
        assert [each.link.is_closed for each in made.opened] == [True, False]


@in_a_loop
async def test_a_cluster_that_cannot_be_reached_is_no_wrong_password() -> None:
    made = Fixture()
    made.error = ConnectFailed("b:1", "refused")
    async with made.sessions.running():
        for _ in range(module.ATTEMPTS_MAX + 1):
            with pytest.raises(ConnectFailed):
                await made.enter("x")
            assert made.opened[-1].link.is_closed


@in_a_loop
async def test_without_mechanisms_all_sessions_share_a_workspace() -> None:
    made = Fixture()
    made.sessions = made.made(needs_sign_in=False)
    async with made.sessions.running():
        assert not made.sessions.needs_sign_in
        shared = made.workspace("any")
        assert made.workspace("other") is shared
    assert made.opened[0].is_closed
