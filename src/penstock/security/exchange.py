"""The exchange of one SASL mechanism, on the side of the broker.

An exchange gets the client's tokens one by one and answers each with a value: a `Challenge` for
the client, `Accepted`, `Rejected`, or `Wait`. `Wait` names work that is too slow for the event
loop. The caller does that work and then calls `resume`, which answers as `step` does. An exchange
serves one authentication, and `Accepted` and `Rejected` are its end: afterwards it only answers
`Rejected`.

The caller decides what a client learns. A client gets the bytes of `Challenge` and `Accepted`, and
never the reason of `Rejected`, which is for the audit log.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

NAME_BYTES_MAX: Final = 255
"""The longest name of a user, in UTF-8. RFC 4616 requires that servers accept this much."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange continues: the client answers these bytes with its next token."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client has proved who it is."""

    principal: str
    """The name of the user, without `User:`."""

    token: bytes = field(default=b"", repr=False)
    """The last bytes for the client. They may be empty, but the client expects an answer."""

    expires_at_ms: int | None = None
    """When the credential expires, in wall-clock time; None if it does not."""

    token_id: str | None = None
    """The id of the delegation token that the client has; None if it has logged in itself."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The client has not proved who it is."""

    reason: str
    """For the audit log. It contains no password, token or key, and no client may see it."""

    claimed: str | None = None
    """The user that the client said it was, if the message could be read."""

    token_id: str | None = None
    """The id of the delegation token that the client said it had."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """Work for a thread: PBKDF2, as SCRAM derives its keys from a password.

    It takes several milliseconds. Pass the result of `run` to `resume`.
    """

    hash_name: str
    password: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int

    def run(self) -> bytes:
        """Returns the salted password. Run this on a thread, not in the event loop."""
        return hashlib.pbkdf2_hmac(self.hash_name, self.password, self.salt, self.iterations)


@dataclass(frozen=True, slots=True)
class KeyFetch:
    """Work for a connection: a token is signed with a key that the broker does not know yet.

    The caller fetches the keys of the issuer, not more often than its limits allow, and stores them
    where the exchange finds them. It then passes `b""` to `resume`, and the exchange looks again.
    The caller passes None if it did not fetch.
    """

    key_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The exchange needs the result of slow work: do it, then call `resume`."""

    work: PasswordHash | KeyFetch


Step: TypeAlias = Challenge | Accepted | Rejected | Wait


class Exchange(Protocol):
    """One authentication of one client by one mechanism."""

    def step(self, token: bytes, now_ms: int) -> Step:
        """Answers a token of the client. `now_ms` is wall-clock time."""

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        """Continues after `Wait` with the result of the work; None means that the work failed.

        An exchange that is not waiting answers `Rejected`.
        """
