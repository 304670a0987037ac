"""The client's side of SASL: who logs in, and what it sends. `net.client_login` runs it.

A login is a value that lasts as long as a client: a user with a password, or a source of tokens. An
exchange serves one authentication. Every mechanism has the same shape here: `first` returns the
first token, and `on_reply` says how to continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.security import oauthbearer, plain
from penstock.security.exchange import PasswordHash
from penstock.security.scram import ScramClient, ScramFailed
from penstock.security.scram_credentials import SCRAM_MECHANISMS


class ReplyRefused(Exception):
    """The broker did not accept the client, or the client must not trust the broker."""


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A user with a password, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    tokenauth: bool = False
    """Whether they are the id and the HMAC of a delegation token."""


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A source of bearer tokens, for OAUTHBEARER. It is asked for a token before each login."""

    token: Callable[[], Awaitable[str]] = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    mechanism: str = field(default=oauthbearer.MECHANISM, init=False)


Login: TypeAlias = PasswordLogin | TokenLogin


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The broker has accepted the client, and the client the broker."""


class ClientExchange(Protocol):
    """One authentication by one mechanism."""

    def first(self) -> bytes:
        """Returns the first token."""

    def on_reply(self, token: bytes) -> bytes | PasswordHash | LoggedIn:
        """Returns the next token; or work for a thread, whose result `on_hash` gets; or the end.

        Raises `ReplyRefused`.
        """

    def on_hash(self, result: bytes) -> bytes:
        """Returns the next token."""


def password_exchange(login: PasswordLogin, nonce: bytes) -> ClientExchange:
    """Begins a login with a password. `nonce` comes from `scram.nonce_text`.

    Raises `ValueError` or `ReplyRefused` if the mechanism cannot send this user or password.
    """
    if (mechanism := SCRAM_MECHANISMS.get(login.mechanism)) is not None:
        try:
            who, tokenauth = (login.user, login.password), login.tokenauth
            return _Scram(ScramClient(mechanism, *who, nonce, tokenauth=tokenauth))
        except ScramFailed as error:
            raise ReplyRefused(str(error)) from None
    return _Plain(plain.client_message(login.user, login.password))


def token_exchange(token: str, extensions: Mapping[str, str]) -> ClientExchange:
    """Begins a login with a bearer token. Raises `ValueError` if it cannot be sent."""
    return _Bearer(oauthbearer.OAuthBearerClient(token, extensions))


class _Plain:
    def __init__(self, message: bytes) -> None:
        self._message = message

    def first(self) -> bytes:
        return self._message

    def on_reply(self, token: bytes) -> LoggedIn:
        return LoggedIn()

    def on_hash(self, result: bytes) -> bytes:
        raise AssertionError("PLAIN has no work for a thread")


class _Scram:
    def __init__(self, client: ScramClient) -> None:
        self._client = client
        self._is_final_sent = False

    def first(self) -> bytes:
        return self._client.first()

    def on_reply(self, token: bytes) -> PasswordHash | LoggedIn:
        try:
            if not self._is_final_sent:
                return self._client.on_server_first(token)
            self._client.on_server_final(token)
        except ScramFailed as error:
            raise ReplyRefused(str(error)) from None
        return LoggedIn()

    def on_hash(self, result: bytes) -> bytes:
        self._is_final_sent = True
        return self._client.final(result)


class _Bearer:
    def __init__(self, client: oauthbearer.OAuthBearerClient) -> None:
        self._client = client
        self._is_refused = False

    def first(self) -> bytes:
        return self._client.first()

    def on_reply(self, token: bytes) -> bytes | LoggedIn:
        if self._is_refused:
            raise ReplyRefused("the broker refused the token")
        answer = self._client.answer(token)
        if answer is None:
            return LoggedIn()
        self._is_refused = True
        return answer

    def on_hash(self, result: bytes) -> bytes:
        raise AssertionError("OAUTHBEARER has no work for a thread")
