"""The slow work of logins, off the event loop: hashing passwords, and fetching the keys of tokens.

A client that is not authenticated yet can ask for both. So at most one password is hashed at a
time, on a thread that flushes also use, and only so many logins may wait for that. The addresses
that wait take turns, and when too many logins wait, one of the address with the most is refused: a
client that sends many passwords delays its own logins, not those of others. A login whose
connection has ended waits no longer.

A token with an unknown key waits for a fetch, and `security.token_keys` limits how often there is
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.ports import Executor
from penstock.security.addresses import network_of
from penstock.security.exchange import KeyFetch, PasswordHash

WAITING_MAX: Final = 1000
"""How many logins may wait for the hash of their password. Each has a deadline of its own."""

_log = logging.getLogger(__name__)

Done = Callable[[bytes | None], None]
"""Called with the result of the work; None if it failed."""


class LoginsWaiting(Exception):
    """Too many logins wait. The client may try again soon."""

    def __init__(self) -> None:
        super().__init__(f"{WAITING_MAX} logins are waiting for a password check: try again soon")


@dataclass(slots=True, eq=False)
class WaitingLogin:
    """One login that waits for the hash of its password."""

    address: str
    work: PasswordHash = field(repr=False)
    done: Done
    refused: Callable[[LoginsWaiting], None]
    """Called if another login takes its place."""


class LoginWork:
    """Does the slow work of all logins of a broker."""

    def __init__(
        self, executor: Executor, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._executor = executor
        self._spawn = spawn
        self._by_address: dict[str, dict[WaitingLogin, None]] = {}
        """The logins that wait, oldest first. The address whose turn it is comes first."""
        self._is_running = False
        self.waiting = 0
        """How many logins wait for the hash of their password."""

    def hash_password(
        self, host: str, work: PasswordHash, done: Done, refused: Callable[[LoginsWaiting], None]
    ) -> WaitingLogin:
        """Hashes a password when it is its turn. Raises `LoginsWaiting`."""
        # A client with IPv6 usually has a whole network of addresses.
        login = WaitingLogin(network_of(host), work, done, refused)
        if self.waiting >= WAITING_MAX:
            self._make_room(login.address)
        self._by_address.setdefault(login.address, {})[login] = None
        self.waiting += 1
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())
        return login

    def forget(self, login: WaitingLogin) -> None:
        """Drops a login that needs no result any more. Its work may have begun or ended."""
        logins = self._by_address.get(login.address)
        if logins is None or login not in logins:
            return
        del logins[login]
        self.waiting -= 1
        if not logins:
            del self._by_address[login.address]

    def _make_room(self, address: str) -> None:
        """Refuses the newest login of the address with the most. Raises `LoginsWaiting` if that is
        this address."""
        most = max(self._by_address.values(), key=len)
        if len(most) <= len(self._by_address.get(address, ())) + 1:
            raise LoginsWaiting
        newest = next(reversed(most))
        self.forget(newest)
        newest.refused(LoginsWaiting())

    def _next(self) -> WaitingLogin:
        """Takes the oldest login of the address whose turn it is."""
        address = next(iter(self._by_address))
        logins = self._by_address.pop(address)
        login = next(iter(logins))
        del logins[login]
        self.waiting -= 1
        if logins:
            self._by_address[address] = logins  # now at the end
        return login

    async def _run(self) -> None:
        try:
            while self._by_address:
                login = self._next()
                try:
                    result: bytes | None = await self._executor.run(login.work.run)
                except Exception:  # noqa: BLE001 - one login fails, the others go on
                    _log.exception("could not hash a password")
                    result = None
                login.done(result)
        finally:
            self._is_running = False


Fetch = Callable[[KeyFetch, Done], None]
"""Fetches the keys of an issuer of tokens."""
