"""The sessions of users who signed in, each with a workspace of its own.

A session ends when the user signs out, when no page has used it for half an hour, after twelve
hours, or when the cluster refuses the user's login, because the password was changed or the user
deleted. Jobs that run when a session expires are completed first. Signing out stops them.

The user's password or token stays in memory as long as the session: connections to brokers come and
go, and each of them logs in. It is in no file, cookie or log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.errors import AuthenticationFailed
from penstock.console.errors import SIGN_IN, NotLoggedIn, TooManyAttempts, TooManySessions
from penstock.console.workspace import Workspace
from penstock.ports import Clock

SESSIONS_MAX: Final = 50
"""How many users can be signed in at once. Each has connections to all brokers."""
IDLE_S: Final = 30 * 60.0
LIFE_S: Final = 12 * 3600.0
ATTEMPTS_MAX: Final = 5
"""After so many wrong passwords in a minute, a user cannot sign in from the same address."""
_ATTEMPTS_WINDOW_S: Final = 60.0
ATTEMPTS_KEPT: Final = 1_000
_AT_ONCE: Final = 4
"""How many sign-ins run at the same time."""
WAITING_MAX: Final = 50
"""How many more wait for their turn."""
_SWEEP_S: Final = 5.0

Login = Mapping[str, Any]
"""The options of a client that say how it logs in."""
Open = Callable[[str | None, Login], Workspace]
"""Opens a workspace for a user."""

_audit = logging.getLogger("penstock.console.audit")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Session:
    name: str
    workspace: Workspace
    began: float


class Sessions:
    """If nobody needs to sign in, all sessions share one workspace."""

    def __init__(self, clock: Clock, open_workspace: Open, *, needs_sign_in: bool) -> None:
        self.needs_sign_in = needs_sign_in
        self._clock = clock
        self._open = open_workspace
        self._sessions: dict[str, Session] = {}
        self._failures: dict[tuple[str, str], list[float]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._signing_in = 0
        self._expired: set[Workspace] = set()
        """Workspaces of expired sessions that complete their jobs."""
        self._tasks: asyncio.TaskGroup | None = None
        self._shared: Workspace | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the workspaces. Closes them at the end."""
        async with asyncio.TaskGroup() as self._tasks:
            sweeping = self._tasks.create_task(self._sweep())
            if not self.needs_sign_in:
                self._shared = self._open(None, {})
                self._tasks.create_task(self._shared.run())
            try:
                yield
            finally:
                sweeping.cancel()
                if self._shared is not None:
                    self._shared.close()
                for name in [*self._sessions]:
                    self.end(name, "the console stops")
                for workspace in self._expired:
                    workspace.close()

    # -- signing in and out ---------------------------------------------------------------------

    async def sign_in(self, name: str, user: str, logins: Sequence[Login], address: str) -> None:
        """Begins the session `name` with the first login that the cluster accepts. Raises
        `NotLoggedIn` if it refuses all."""
        self._check_attempts(user, address)
        self._expire()
        if len(self._sessions) + self._signing_in >= SESSIONS_MAX + WAITING_MAX:
            raise TooManyAttempts("too many people are signing in at the moment: try again later")
        self._signing_in += 1
        try:
            async with self._gate:
                if len(self._sessions) >= SESSIONS_MAX:
                    raise TooManySessions(SESSIONS_MAX)
                workspace = await self._logged_in(user, logins)
        finally:
            self._signing_in -= 1
        if workspace is None:
            self._note_failure(user, address)
            _audit.info("user %r from %s could not sign in", user[:100], address)
            raise NotLoggedIn("the cluster does not accept this login: check name and password")
        self._failures.pop((user, address), None)
        self._sessions[name] = Session(name, workspace, self._clock.monotonic())
        assert self._tasks is not None, "running() must have been entered"
        self._tasks.create_task(self._run(name, workspace))
        _audit.info("user %r signed in from %s", user, address)

    async def _logged_in(self, user: str, logins: Sequence[Login]) -> Workspace | None:
        """Returns a workspace that is connected to the cluster as the user. None if the cluster
        refuses every login."""
        for login in logins:
            workspace = self._open(user, login)
            try:
                await workspace.link.reading()
            except AuthenticationFailed:
                await workspace.link.close()
            except BaseException:
                # Also if the browser has gone away: no connection must stay open.
                await workspace.link.close()
                raise
            else:
                return workspace
        return None

    def end(self, name: str, why: str) -> None:
        """Ends a session with everything that it does."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.workspace.close()
            _audit.info("the session of user %r ended: %s", session.workspace.user, why)

    def _check_attempts(self, user: str, address: str) -> None:
        since = self._clock.monotonic() - _ATTEMPTS_WINDOW_S
        self._failures = {
            key: recent
            for key, times in self._failures.items()
            if (recent := [at for at in times if at > since])
        }
        if len(self._failures.get((user, address), ())) >= ATTEMPTS_MAX:
            raise TooManyAttempts("too many wrong passwords: wait a minute, then try again")

    def _note_failure(self, user: str, address: str) -> None:
        times = self._failures.pop((user, address), [])
        self._failures[user, address] = [*times, self._clock.monotonic()]
        if len(self._failures) > ATTEMPTS_KEPT:
            # Somebody tries many names. To refuse everybody would be worse than to forget one.
            del self._failures[next(iter(self._failures))]

    # -- using ----------------------------------------------------------------------------------

    def workspace(self, name: str) -> Workspace:
        """Returns the workspace of a session. Raises `NotLoggedIn` if the session has ended."""
        if not self.needs_sign_in:
            assert self._shared is not None, "running() must have been entered"
            return self._shared
        self._expire()
        session = self._sessions.get(name)
        if session is None:
            raise NotLoggedIn(SIGN_IN)
        session.workspace.touch()
        return session.workspace

    def on_refused(self, name: str) -> NotLoggedIn:
        """Ends a session whose login the cluster refuses now. Returns what to answer."""
        self.end(name, "the cluster refuses the login")
        return NotLoggedIn("the cluster does not accept your login any more: sign in again")

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for session in [*self._sessions.values()]:
            if now - session.workspace.used > IDLE_S or now - session.began > LIFE_S:
                del self._sessions[session.name]
                self._expired.add(session.workspace)
                assert self._tasks is not None
                self._tasks.create_task(self._close_when_idle(session.workspace))
                _audit.info("the session of user %r expired", session.workspace.user)

    async def _close_when_idle(self, workspace: Workspace) -> None:
        await workspace.jobs.all_done()
        workspace.close()
        self._expired.discard(workspace)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._expire()

    async def _run(self, name: str, workspace: Workspace) -> None:
        try:
            await workspace.run()
        except Exception:  # noqa: BLE001 -- must not end the sessions of others
            _log.exception("the session of user %r failed", workspace.user)
            self.end(name, "internal error")
