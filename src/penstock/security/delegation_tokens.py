"""Delegation tokens (KIP-48): who has one, how long it lasts, and what proves that one has it.

A user asks for a token and gives it to programs that act for it: they log in with SCRAM, the id of
the token is the user name and the HMAC of the token in base64 is the password. The principal is
then the owner of the token. Such a session cannot ask for tokens itself.

The HMAC is derived from the id with the secret key of the cluster (`TokenKeys`), so nobody stores
it: who reads the metadata store without that key cannot log in with a token. The salt of SCRAM is
derived too, for any id, so an id that does not exist gets the same kind of challenge as others.

All brokers need the same secret key. So that they notice if one has another, the metadata store has
a check of it (`SecretCheck`): a salt and what scrypt derives from the key. Each guess of the key
from the check costs memory and time, and the check helps to guess nothing else.

A token lasts until `expires_ms`. Its owner and its renewers can renew it, up to `max_ms`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.security.exchange import PasswordHash
from penstock.security.scram_credentials import (
    ScramCredential,
    ScramMechanism,
    from_salted_password,
)
from penstock.security.user_names import name_problem
from penstock.wire.errors import ErrorCode, KafkaError

TOKEN_ID_BYTES: Final = 16
HMAC_BYTES: Final = 64
ITERATIONS: Final = 4096
"""The fewest that SCRAM clients accept. An HMAC cannot be guessed, so more would not help."""
TOKENS_MAX: Final = 20_000
"""How many tokens a cluster has at most: every broker keeps all of them in memory."""
TOKENS_PER_OWNER_MAX: Final = 1_000
RENEWERS_MAX: Final = 100
SECRET_CHARS_MIN: Final = 16
"""The shortest secret key. With a short one, HMACs could be guessed from one token."""
_TIME_MAX: Final = 2**63 - 1
_SALT_BYTES: Final = 16
CHECK_SALT_BYTES: Final = 16
CHECK_BYTES: Final = 32
_SCRYPT_COST: Final = 2**14
_SCRYPT_BLOCKS: Final = 8
"""With this cost, scrypt takes 16 MiB of memory and about 50 ms."""


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Shows whether brokers have the same secret key, without the key."""

    salt: bytes
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token without its HMAC. Users are names without `User:`, times are in ms since 1970."""

    token_id: str
    owner: str
    requester: str
    """Who has created it, perhaps for another user."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    """From this time on it is not accepted."""
    max_ms: int
    """Up to when it can be renewed."""

    def is_valid(self, now_ms: int) -> bool:
        return now_ms < self.expires_ms and now_ms < self.max_ms

    def may_be_renewed_by(self, user: str) -> bool:
        return user == self.owner or user in self.renewers

    def concerns(self, user: str) -> bool:
        """Returns whether the user is its owner, its requester or one of its renewers."""
        return user == self.requester or self.may_be_renewed_by(user)


@dataclass(frozen=True, slots=True)
class TokenLifetimes:
    """How long tokens last."""

    max_ms: int
    """`delegation.token.max.lifetime.ms`."""
    renewal_ms: int
    """`delegation.token.expiry.time.ms`: how long one lasts if it is not renewed."""


class TokenKeys:
    """Derives what proves that a client has a token, from `delegation.token.secret.key`."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        if len(secret) < SECRET_CHARS_MIN:
            raise ValueError(
                f"delegation.token.secret.key has {len(secret)} characters: use "
                f"{SECRET_CHARS_MIN} or more random ones, the same on all brokers"
            )
        self._secret = secret.encode()

    def hmac(self, token_id: str) -> bytes:
        """Returns the HMAC of a token, as Kafka derives it."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def fingerprint(self, token_hmac: bytes) -> bytes:
        """Returns what to compare instead of an HMAC. The time of a comparison of these does not
        help to guess an HMAC."""
        return hmac.digest(self._secret, b"fingerprint\0" + token_hmac, "sha256")

    def salt(self, mechanism: ScramMechanism, token_id: str) -> bytes:
        message = f"salt\0{mechanism.sasl_name}\0{token_id}".encode()
        return hmac.digest(self._secret, message, "sha512")[:_SALT_BYTES]

    def make_check(self, salt: bytes) -> SecretCheck:
        """Returns a check of the secret key. It is slow on purpose: run it on a thread."""
        digest = hashlib.scrypt(
            self._secret, salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCKS, p=1, dklen=CHECK_BYTES
        )
        return SecretCheck(salt, digest)

    def fits(self, check: SecretCheck) -> bool:
        """Returns whether the check was made with this secret key. Slow, as `make_check` is."""
        return hmac.compare_digest(self.make_check(check.salt).digest, check.digest)

    def password_hash(self, mechanism: ScramMechanism, token_id: str) -> PasswordHash:
        """Returns the work that derives the SCRAM keys of a token. Run it on a thread."""
        password = base64.b64encode(self.hmac(token_id))
        salt = self.salt(mechanism, token_id)
        return PasswordHash(mechanism.hash_name, password, salt, ITERATIONS)


class TokenLogins:
    """What SCRAM needs to know of tokens. It keeps the keys that were derived for a login."""

    def __init__(self, keys: TokenKeys, find: Callable[[str], DelegationToken | None]) -> None:
        """`find` returns a token by its id. It raises if the broker may not know them all."""
        self._keys = keys
        self._find = find
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def salt(self, mechanism: ScramMechanism, token_id: str) -> bytes:
        """Returns the salt of any id, also of one that does not exist."""
        return self._keys.salt(mechanism, token_id)

    def valid(self, token_id: str, now_ms: int) -> DelegationToken | None:
        """Returns the token if it exists and has not expired."""
        token = self._find(token_id)
        return token if token is not None and token.is_valid(now_ms) else None

    def credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential | None:
        """Returns the keys of a token; None if they must be derived first."""
        return self._credentials.get((token_id, mechanism))

    def password_hash(self, mechanism: ScramMechanism, token_id: str) -> PasswordHash:
        return self._keys.password_hash(mechanism, token_id)

    def keep(self, mechanism: ScramMechanism, token_id: str, salted: bytes) -> ScramCredential:
        """Returns the keys of a valid token, from the result of `password_hash`, and keeps them."""
        made = from_salted_password(mechanism, salted, self.salt(mechanism, token_id), ITERATIONS)
        self._credentials[token_id, mechanism] = made
        return made

    def forget(self, token_id: str) -> None:
        """Forgets the keys of a token that was removed."""
        for mechanism in ScramMechanism:
            self._credentials.pop((token_id, mechanism), None)


def token_id_of(random_bytes: bytes) -> str | None:
    """Returns the id made of 16 random bytes; None if it would look like an option of a command."""
    text = base64.urlsafe_b64encode(random_bytes).rstrip(b"=").decode()
    return None if text.startswith("-") else text


def new_token(
    token_id: str,
    owner: str,
    requester: str,
    renewers: Sequence[str],
    max_lifetime_ms: int,
    lifetimes: TokenLifetimes,
    now_ms: int,
) -> DelegationToken:
    """Returns a new token. A `max_lifetime_ms` of 0 or less means the broker's setting.

    Raises `KafkaError` with INVALID_REQUEST if a name is not allowed or there are too many.
    """
    kept = tuple(dict.fromkeys(renewers))
    if len(kept) > RENEWERS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a token can have {RENEWERS_MAX} renewers, not {len(kept)}"
        )
    for name in (owner, *kept):
        if (problem := name_problem(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    max_ms = _later(now_ms, _period(max_lifetime_ms, lifetimes.max_ms))
    expires_ms = min(max_ms, _later(now_ms, lifetimes.renewal_ms))
    return DelegationToken(token_id, owner, requester, kept, now_ms, expires_ms, max_ms)


def renewed(
    token: DelegationToken, user: str, period_ms: int, lifetimes: TokenLifetimes, now_ms: int
) -> DelegationToken:
    """Returns the token with a later end. A `period_ms` of 0 or less means the broker's setting.

    As in Kafka, a short period can also bring the end forward.
    """
    _check_change(token, user, now_ms)
    end_ms = _later(now_ms, _period(period_ms, lifetimes.renewal_ms))
    return replace(token, expires_ms=min(token.max_ms, end_ms))


def expired(
    token: DelegationToken, user: str, period_ms: int, now_ms: int
) -> DelegationToken | None:
    """Returns the token that ends after `period_ms`; None if it is to be removed at once."""
    _check_change(token, user, now_ms)
    if period_ms < 0:
        return None
    return replace(token, expires_ms=min(token.max_ms, _later(now_ms, period_ms)))


def _check_change(token: DelegationToken, user: str, now_ms: int) -> None:
    if not token.is_valid(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not token.may_be_renewed_by(user):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _period(wanted_ms: int, longest_ms: int) -> int:
    return min(wanted_ms, longest_ms) if wanted_ms > 0 else longest_ms


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, _TIME_MAX)
