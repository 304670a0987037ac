"""Logs a connection in at a broker with SASL, for clients and for brokers that connect to others.

`security.client_login` decides what to send. The connection sends it: a `LoginChannel` is a
connection on which no other request is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from penstock.ports import Executor, Random
from penstock.security.client_login import (
    ClientExchange,
    LoggedIn,
    Login,
    PasswordLogin,
    ReplyRefused,
    password_exchange,
    token_exchange,
)
from penstock.security.exchange import PasswordHash
from penstock.security.scram import nonce_text
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

STEPS_MAX: Final = 8
"""How many tokens one login may take. SCRAM needs two."""
RENEWAL_FIRST: Final = 0.85
RENEWAL_LAST: Final = 0.95
"""A session is renewed at a random point between these parts of its lifetime, so that the
connections of many clients do not renew theirs at the same time. Java's client does the same."""
_NONCE_BYTES: Final = 24
_TEXT_MAX: Final = 300
"""How much of a broker's error message is shown."""


class LoginFailed(Exception):
    """The broker refused the login. The message says what to do, and contains no secret."""


class LoginChannel(Protocol):
    """Sends the two requests of SASL and returns their responses."""

    async def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse: ...

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse: ...


@dataclass(frozen=True, slots=True)
class Session:
    """An authenticated connection."""

    lifetime_s: float | None
    """After this time the broker closes the connection unless it logs in again. None: never."""

    def renewal_s(self, random: Random) -> float | None:
        """Returns after how long to log in again; None if that is not needed."""
        if self.lifetime_s is None:
            return None
        part = RENEWAL_FIRST + (RENEWAL_LAST - RENEWAL_FIRST) * random.uniform()
        return self.lifetime_s * part


async def new_exchange(login: Login, random: Random) -> ClientExchange:
    """Prepares one login; asks for a token if it needs one. Raises `LoginFailed`.

    It sends nothing, so a connection can still be used while a token is fetched. Errors of the
    source of tokens are not caught.
    """
    try:
        if isinstance(login, PasswordLogin):
            return password_exchange(login, nonce_text(random.bytes(_NONCE_BYTES)))
        return token_exchange(await login.token(), login.extensions)
    except (ValueError, ReplyRefused) as error:
        raise LoginFailed(str(error)) from None


async def log_in(
    channel: LoginChannel, mechanism: str, exchange: ClientExchange, executor: Executor
) -> Session:
    """Runs one login. Raises `LoginFailed`, or whatever the channel raises."""
    answer = await channel.handshake(SaslHandshakeRequest(mechanism))
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise LoginFailed(
            f"the broker does not offer {mechanism} on this port: use one of those that it offers "
            f"({offered}), or enable {mechanism} in sasl.enabled.mechanisms of the listener"
        )
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginFailed(
            "the broker asks for no login on this port: use a port with SASL, or log in without "
            "a password and set security_protocol to PLAINTEXT or SSL"
        )
    _check(answer.error_code, None)
    token = exchange.first()
    for _ in range(STEPS_MAX):
        reply = await channel.authenticate(token)
        _check(reply.error_code, reply.error_message)
        try:
            following = exchange.on_reply(bytes(reply.auth_bytes))
        except ReplyRefused as error:
            raise LoginFailed(str(error)) from None
        match following:
            case LoggedIn():
                lifetime_ms = reply.session_lifetime_ms
                return Session(lifetime_ms / 1000 if lifetime_ms > 0 else None)
            case PasswordHash():
                token = exchange.on_hash(await executor.run(following.run))
            case _:
                token = following
    raise LoginFailed(f"the broker did not complete the login within {STEPS_MAX} messages")


def _check(code: int, message: str | None) -> None:
    if code == ErrorCode.NONE:
        return
    if message:
        shown = message if message.isprintable() else repr(message)
        raise LoginFailed(shown[:_TEXT_MAX])
    try:
        text = ErrorCode(code).message
    except ValueError:
        text = f"error code {code}"
    raise LoginFailed(f"{text}: check the user name, and the password or token")
