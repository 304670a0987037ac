"""Logs a client's connection in, and again before its session ends (KIP-368).

While a session is renewed, the broker accepts no other request on the connection. So the connection
holds new requests back, waits until the earlier ones are answered, logs in, and sends what it has
held, in order. No request is lost. A token is fetched before any request is held.

If no new token is to be had, the session is used to its end. Then the broker closes the connection,
and the login of the next one says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from penstock.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
)
from penstock.net.client_login import LoginChannel, LoginFailed, Session, log_in, new_exchange
from penstock.net.client_tls import ConnectionSecurity
from penstock.security.client_login import ClientExchange, Login

_RETRY_MIN_S: Final = 0.05
"""A renewal that failed for want of a token is tried again, unless less time than this is left."""

_log: Final = logging.getLogger(__name__)


class Line(LoginChannel, Protocol):
    """What a login needs of its connection."""

    def hold(self) -> None:
        """Sends no more requests, other than those of the login."""

    async def drained(self) -> None:
        """Returns when no request waits for its response."""

    def release(self) -> None:
        """Sends the requests that were held, in order."""

    def give_up(self, error: ClientError) -> None:
        """Closes the connection. All its requests fail with this error."""


class ConnectionLogin:
    """The login of one connection, from its start to its end."""

    def __init__(
        self,
        line: Line,
        address: str,
        login: Login,
        security: ConnectionSecurity,
        timeout_s: float,
    ) -> None:
        self._line = line
        self._address = address
        self._login = login
        self._security = security
        self._timeout_s = timeout_s
        self._ends_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Logs in. Raises a `ClientError`."""
        exchange = await self._exchange()
        try:
            self._schedule(await self._log_in(exchange))
        except LoginFailed as error:
            raise AuthenticationFailed(self._address, str(error)) from None

    def stop(self) -> None:
        """Ends everything: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()

    async def _exchange(self) -> ClientExchange:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await new_exchange(self._login, self._security.random)
        except TimeoutError:
            raise ConnectFailed(
                self._address, f"no token was received within {self._timeout_s:g} s"
            ) from None
        except LoginFailed as error:
            raise AuthenticationFailed(self._address, str(error)) from None
        except ClientError:
            raise
        except Exception as error:
            # The message of a foreign error may contain a secret. The cause has it.
            raise AuthenticationFailed(
                self._address,
                f"sasl_oauth_token raised {type(error).__name__}: it must return a token",
            ) from error

    async def _log_in(self, exchange: ClientExchange) -> Session:
        executor = self._security.executor
        return await log_in(self._line, self._login.mechanism, exchange, executor)

    def _schedule(self, session: Session) -> None:
        delay_s = session.renewal_s(self._security.random)
        if session.lifetime_s is None or delay_s is None:
            return
        loop = asyncio.get_running_loop()
        self._ends_at = loop.time() + session.lifetime_s
        self._timer = loop.call_later(delay_s, self._begin_renewal)

    def _begin_renewal(self) -> None:
        self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        try:
            exchange = await self._exchange()
        except ClientError as error:
            self._renew_later(error)
            return
        self._line.hold()
        try:
            await self._line.drained()
            session = await self._log_in(exchange)
        except LoginFailed as error:
            self._line.give_up(AuthenticationFailed(self._address, str(error)))
        except ClientError as error:
            self._line.give_up(
                ConnectionLost(f"the login at {self._address} could not be renewed: {error}")
            )
        else:
            self._line.release()
            self._schedule(session)

    def _renew_later(self, error: ClientError) -> None:
        loop = asyncio.get_running_loop()
        left_s = (self._ends_at or 0.0) - loop.time()
        again = left_s > _RETRY_MIN_S
        _log.warning(
            "could not renew the login at %s: %s; the session ends in %.1f s%s",
            self._address,
            error,
            max(left_s, 0.0),
            "; retrying" if again else "",
        )
        if again:
            self._timer = loop.call_later(left_s / 2, self._begin_renewal)
