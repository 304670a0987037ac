"""What a check of a bearer token may answer.

These values are apart from `tokens`, which makes them: `tokens` imports a library for keys and
signatures, and only a broker that takes tokens should load it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

TOKEN_BYTES_MAX: Final = 32 * 1024
"""A longer token is refused before it is read."""


@dataclass(frozen=True, slots=True)
class TokenAccepted:
    """The token is valid."""

    principal: str
    expires_at_ms: int
    """The token's `exp`. It may be up to the skew before `now`."""


@dataclass(frozen=True, slots=True)
class TokenRejected:
    """The token is not valid. Send the client no reason."""

    reason: str
    """For the log of the broker. It contains nothing of the token."""


@dataclass(frozen=True, slots=True)
class KeyUnknown:
    """The token may be valid, but the key set has no such key. Perhaps a newer key set has it."""

    kid: str


TokenVerdict: TypeAlias = TokenAccepted | TokenRejected | KeyUnknown
