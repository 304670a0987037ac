"""Decides which requests to the metrics endpoint carry the right token.

Metrics and health reports name topics, groups, directories and addresses. So an endpoint that other
machines can reach needs a token: `Authorization: Bearer TOKEN`. It comes from the file that
`metrics_token_file` names, or from the environment variable `PENSTOCK_METRICS_TOKEN`. If there is a
token, requests from this machine need it too. Tokens are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from penstock.broker.config import ConfigError
from penstock.runtime import read_file
from penstock.security.addresses import is_loopback

TOKEN_VARIABLE: Final = "PENSTOCK_METRICS_TOKEN"  # noqa: S105 - a name, not a token
TOKEN_LENGTH_MIN: Final = 16
TOKEN_LENGTH_MAX: Final = 1024
_SCHEME: Final = "bearer"


class Access(Enum):
    FULL = "the request has the token, or none is needed"
    ANONYMOUS = "the request has no token"
    WRONG = "the request has a wrong token"


class TokenGuard:
    """`token` is None if everyone may read everything."""

    def __init__(self, token: str | None = None) -> None:
        self._expected = None if token is None else _digest(token.encode())

    def access(self, authorization: Sequence[bytes]) -> Access:
        """Decides by the values of the Authorization headers of a request."""
        if self._expected is None:
            return Access.FULL
        if not authorization:
            return Access.ANONYMOUS
        scheme, _, token = authorization[0].partition(b" ")
        is_right = hmac.compare_digest(_digest(token.strip()), self._expected)
        is_bearer = scheme.lower() == _SCHEME.encode() and len(authorization) == 1
        return Access.FULL if is_right and is_bearer else Access.WRONG


class Exposed(Protocol):
    """The settings of a metrics endpoint, of a broker or of a pipeline worker."""

    @property
    def metrics(self) -> str: ...

    @property
    def metrics_address(self) -> tuple[str, int] | None: ...

    @property
    def metrics_token_file(self) -> str: ...

    @property
    def metrics_keystore(self) -> str: ...


def read_token(config: Exposed) -> str | None:
    """Returns the token of a metrics endpoint; None if it needs none. It reads a file.

    Raises `ConfigError` if the token cannot be used, or if there is none and other machines can
    reach the endpoint."""
    address = config.metrics_address
    if address is None:
        return None
    if config.metrics_token_file:
        return _checked(_content(config.metrics_token_file), config.metrics_token_file)
    if TOKEN_VARIABLE in os.environ:
        return _checked(os.environ[TOKEN_VARIABLE], f"the environment variable {TOKEN_VARIABLE}")
    if is_loopback(address[0]):
        return None
    raise ConfigError(
        f"metrics: other machines can reach {config.metrics}, so it needs a token: write one of "
        f"{TOKEN_LENGTH_MIN} characters or more to a file and set metrics_token_file to its path "
        f"(worker: --metrics-token-file), or set {TOKEN_VARIABLE}; or listen on 127.0.0.1"
    )


def _content(path: str) -> str:
    try:
        return read_file(path, TOKEN_LENGTH_MAX + 3).decode()
    except OSError as error:
        raise ConfigError(f"metrics_token_file: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"metrics_token_file: {path} is not text") from None


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if not TOKEN_LENGTH_MIN <= len(token) <= TOKEN_LENGTH_MAX:
        raise ConfigError(
            f"metrics: the token in {source} has {len(token)} characters: use {TOKEN_LENGTH_MIN} "
            f"to {TOKEN_LENGTH_MAX}"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"metrics: the token in {source} has characters that HTTP does not allow: use letters "
            "and digits, on one line"
        )
    return token


def _digest(token: bytes) -> bytes:
    # Digests have equal lengths, so the comparison does not reveal that of the token.
    return hashlib.sha256(token).digest()
