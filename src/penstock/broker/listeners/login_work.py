"""The slow work of logins, off the event loop: hashing passwords, and fetching the keys of tokens.

A client that is not authenticated yet can ask for both. So at most one password is hashed at a
time, on a thread that flushes also use, and only so many logins may wait for that. A token with an
unknown key waits for a fetch, and `security.token_keys` limits how often there is one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.ports import Executor
from penstock.security.exchange import KeyFetch, PasswordHash

WAITING_MAX: Final = 1000
"""How many logins may wait for the hash of their password. Each has a deadline of its own."""

_log = logging.getLogger(__name__)

Done = Callable[[bytes | None], None]
"""Called with the result of the work; None if it failed."""


class LoginsWaiting(Exception):
    """Too many logins wait. The client may try again soon."""


class LoginWork:
    """Does the slow work of all logins of a broker."""

    def __init__(
        self, executor: Executor, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._executor = executor
        self._spawn = spawn
        self._waiting: deque[tuple[PasswordHash, Done]] = deque()
        self._is_running = False

    @property
    def waiting(self) -> int:
        """How many logins wait for the hash of their password."""
        return len(self._waiting)

    def hash_password(self, work: PasswordHash, done: Done) -> None:
        """Hashes a password, after those that wait already. Raises `LoginsWaiting`."""
        if len(self._waiting) >= WAITING_MAX:
            raise LoginsWaiting(
                f"{WAITING_MAX} logins wait for a check of their password: try again soon"
            )
        self._waiting.append((work, done))
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                work, done = self._waiting.popleft()
                try:
                    result: bytes | None = await self._executor.run(work.run)
                except Exception:  # noqa: BLE001 - one login fails, the others go on
                    _log.exception("the hash of a password failed")
                    result = None
                done(result)
        finally:
            self._is_running = False


Fetch = Callable[[KeyFetch, Done], None]
"""Fetches the keys of an issuer of tokens."""
