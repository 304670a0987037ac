"""The mechanism OAUTHBEARER (RFC 7628, KIP-255): a client authenticates with a bearer token.

The client sends one message: `n,[a=name],` and then pairs `key=value`, of which `auth` has the
token. All end in the byte 0x01, and one more ends the message. The pairs of Kafka's extensions are
read, but have no effect.

A valid token is answered with no bytes. A token that is not valid is answered with a challenge that
has an error as JSON. The client answers with the byte 0x01, and only then the exchange is over. If
the message itself cannot be read, it is over at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from penstock.security.exchange import (
    Accepted,
    Challenge,
    KeyFetch,
    Rejected,
    Step,
    Wait,
)
from penstock.security.mechanism_names import OAUTHBEARER
from penstock.security.token_verdict import (
    TOKEN_BYTES_MAX,
    KeyUnknown,
    TokenAccepted,
    TokenRejected,
    TokenVerdict,
)
from penstock.security.user_names import name_problem

MECHANISM: Final = OAUTHBEARER
MESSAGE_BYTES_MAX: Final = TOKEN_BYTES_MAX + 16 * 1024
"""The longest message of a client: a token, and some extensions."""
EXTENSIONS_MAX: Final = 64
"""How many pairs a message may have besides `auth`."""
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""The challenge that answers a token that is not valid."""
ACKNOWLEDGEMENT: Final = b"\x01"
"""What a client answers to `INVALID_TOKEN`."""

_SEPARATOR: Final = b"\x01"
_NAME: Final = re.compile(rb"(?:[^=,]|=2C|=3D)+")
_KEY: Final = re.compile(rb"[A-Za-z]+")
_VALUE: Final = re.compile(rb"[\x21-\x7e \t\r\n]+")
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([-_.A-Za-z0-9]+)")

TokenCheck: TypeAlias = Callable[[bytes, int], TokenVerdict]
"""Checks a token at a time, with the keys that are in use then. Never raises."""


class OAuthBearerExchange:
    """One authentication of one client, on the side of the broker."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._name: str | None = None
        """The user that the client asked to be; None to be the one of the token."""
        self._token: bytes | None = None
        """The token whose key is being fetched."""
        self._refused: str | None = None
        """Why the token is not valid, while the client has to acknowledge it."""
        self._ended = False

    def step(self, token: bytes, now_ms: int) -> Step:
        """Answers a message of the client."""
        if self._refused is not None:
            return self._reject(self._refused)
        if self._ended or self._token is not None:
            return self._reject("the client sent a message out of turn")
        try:
            self._name, bearer = _read_message(token)
        except _Malformed as error:
            return self._reject(str(error))
        return self._decide(bearer, now_ms, may_wait=True)

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        """Checks the token again after the keys were fetched, or refuses it if they were not."""
        token, self._token = self._token, None
        if token is None:
            return self._reject("the exchange was not waiting")
        if result is None:
            return self._refuse("the key of the token is unknown")
        return self._decide(token, now_ms, may_wait=False)

    def _decide(self, token: bytes, now_ms: int, *, may_wait: bool) -> Step:
        match self._check(token, now_ms):
            case TokenAccepted(principal, expires_at_ms):
                if self._name is not None and self._name != principal:
                    return self._reject("the client asked to be another user than its token's")
                self._ended = True
                return Accepted(principal, expires_at_ms=expires_at_ms)
            case TokenRejected(reason):
                return self._refuse(reason)
            case KeyUnknown(kid):
                if not may_wait:
                    return self._refuse("the issuer has no key with the kid of the token")
                self._token = token
                return Wait(KeyFetch(kid))

    def _refuse(self, reason: str) -> Step:
        self._refused = reason
        return Challenge(INVALID_TOKEN)

    def _reject(self, reason: str) -> Step:
        self._ended = True
        self._token = self._refused = None
        return Rejected(reason, self._name)


class OAuthBearerClient:
    """One authentication, on the side of the client."""

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self._message = client_message(token, extensions)

    def first(self) -> bytes:
        """Returns the message to send first."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """Returns what to send next, or None if the broker has accepted the token.

        Any challenge is the broker's error. The acknowledgement lets the broker end the exchange.
        """
        return ACKNOWLEDGEMENT if challenge else None


def client_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """Returns the message of a client. Raises `ValueError` if a part cannot be sent.

    The errors do not show the token or the values of extensions.
    """
    message = b"n,,\x01auth=Bearer " + _encode(token) + _SEPARATOR
    for key, value in (extensions or {}).items():
        if key.lower() == "auth":
            raise ValueError(
                "an extension cannot be named auth: that name is reserved for the token"
            )
        message += _encode(key) + b"=" + _encode(value) + _SEPARATOR
    message += _SEPARATOR
    try:
        _read_message(message)
    except _Malformed as error:
        raise ValueError(f"the token or its extensions cannot be sent: {error}") from None
    return message


def _encode(text: str) -> bytes:
    """Encodes any text, so that `_read_message` refuses what is not ASCII without showing it."""
    return text.encode("utf-8", "surrogatepass")


class _Malformed(Exception):
    """A message that cannot be read. The text contains nothing of it."""


def _read_message(message: bytes) -> tuple[str | None, bytes]:
    """Returns the name that the client asked for, if any, and its token."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise _Malformed(f"the message has {len(message)} bytes, the limit is {MESSAGE_BYTES_MAX}")
    header, *pairs = message.split(_SEPARATOR, EXTENSIONS_MAX + 3)
    name = _read_header(header)
    if len(pairs) < 2 or pairs[-2:] != [b"", b""]:
        raise _Malformed("the message does not end in two bytes 0x01, or has too many extensions")
    values: dict[bytes, bytes] = {}
    for pair in pairs[:-2]:
        key, equals, value = pair.partition(b"=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _Malformed("the message has a pair that is not key=value")
        if key in values:
            raise _Malformed("the message has two values for one key")
        values[key] = value
    bearer = _BEARER.fullmatch(values.get(b"auth", b""))
    if bearer is None:
        raise _Malformed("the message has no bearer token: it needs auth=Bearer and a token")
    return name, bearer[1]


def _read_header(header: bytes) -> str | None:
    """Reads `n,,` or `n,a=name,`. Channel binding does not exist for this mechanism."""
    flag, comma, rest = header.partition(b",")
    if flag != b"n" or not comma or not rest.endswith(b","):
        raise _Malformed("the message does not begin with n,, or n,a=name,")
    asked = rest[:-1]
    if not asked:
        return None
    name = asked.removeprefix(b"a=")
    if name == asked or not _NAME.fullmatch(name):
        raise _Malformed("the message does not begin with n,, or n,a=name,")
    try:
        text = name.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        text = ""
    if (problem := name_problem(text)) is not None:
        raise _Malformed(f"the message cannot be used: {problem}")
    return text
