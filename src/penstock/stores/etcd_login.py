"""The login of a broker at etcd, and the token that etcd returns for it.

All requests of a store share one token. etcd forgets a token after 5 minutes without a request
(`--auth-token-ttl`), when the member that got the login restarts, and when the user's password
changes. A token that names a revision of etcd's users (JWT) is also void after any change of users
or roles. The request that finds this out logs in again and is repeated. Requests that fail at the
same time share that login.

The password is read for each login, so a new one is used without a restart. etcd takes a tenth of
a second to check a password. So after a refusal, the same password is not tried again for
`REFUSED_S`. Refusals are logged, because etcd lets a broker without a login renew its lease and
keep its watch: nothing else might show until the metadata is to change.

A broker with a user also works with an etcd whose authentication is still disabled. So an operator
can configure all brokers first, and then enable it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.ports import Clock
from penstock.runtime import read_file
from penstock.stores.errors import StoreRefused
from penstock.stores.etcd_address import EtcdAddress
from penstock.stores.etcd_failures import password_place

REFUSED_S: Final = 1.0
LOG_INTERVAL_S: Final = 10.0
"""Refusals are logged at most so often."""
PASSWORD_BYTES_MAX: Final = 4096
_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]
"""The gRPC metadata of a request."""
Authenticate = Callable[[str, str], Awaitable[str | None]]
"""Sends a user and a password to etcd. Returns the token; None if etcd does not authenticate."""

METADATA: Final[Metadata] = (("hasleader", "true"),)
"""The metadata of a request without a token."""


class Login:
    def __init__(self, address: EtcdAddress, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._current: Metadata | None = None if address.user else METADATA
        self._turn = asyncio.Lock()
        self._refused: tuple[str, float, str] | None = None
        """The last password that etcd refused, until when it is not tried again, and the error."""
        self._logged_at: float | None = None
        self._is_told = False

    async def metadata(self, authenticate: Authenticate) -> Metadata:
        """Returns the metadata for the next request. Logs in if there is no token."""
        if self._current is None:
            async with self._turn:
                if self._current is None:
                    try:
                        self._current = await self._log_in(authenticate)
                    except StoreRefused as error:
                        self._log_refusal(error)
                        raise
        return self._current

    def forget(self, used: Metadata) -> bool:
        """Forgets a token that etcd does not accept, unless there is a newer one already.

        Returns whether it is worth repeating the request: False without a user."""
        if not self._address.user:
            return False
        if used is self._current:
            self._current = None
        return True

    async def _log_in(self, authenticate: Authenticate) -> Metadata:
        password = await asyncio.to_thread(read_password, self._address)
        if self._refused is not None:
            refused, until, reason = self._refused
            if password == refused and self._clock.monotonic() < until:
                raise StoreRefused(reason)
        try:
            token = await authenticate(self._address.user, password)
        except StoreRefused as error:
            self._refused = (password, self._clock.monotonic() + REFUSED_S, str(error))
            raise
        self._refused = None
        if token is not None:
            return (*METADATA, ("token", token))
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "%s does not authenticate its users, so anyone who can reach it can change the "
                "metadata of this cluster: run `etcdctl auth enable`",
                self._address,
            )
        return METADATA

    def _log_refusal(self, error: StoreRefused) -> None:
        now = self._clock.monotonic()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            _log.warning("cannot log in to etcd, so the metadata cannot change: %s", error)


def read_password(address: EtcdAddress) -> str:
    """Reads the password of the address's user. Raises `StoreRefused` if it cannot be used."""
    place = password_place(address)
    if address.password_env:
        text = os.environ.get(address.password_env)
        if text is None:
            raise StoreRefused(
                f"{place}, which should have the password for etcd, is not set: set it"
            )
    else:
        try:
            text = read_file(address.password_file, PASSWORD_BYTES_MAX + 1).decode()
        except OSError as error:
            raise StoreRefused(
                f"cannot read {place} with the password for etcd: {error.strerror}"
            ) from error
        except UnicodeDecodeError:
            raise StoreRefused(f"{place} with the password for etcd is not UTF-8 text") from None
    password = text.rstrip("\r\n")
    if not password or "\n" in password or len(text) > PASSWORD_BYTES_MAX:
        raise StoreRefused(f"{place} must have one line, with the password for etcd")
    return password
