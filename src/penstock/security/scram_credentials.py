"""SCRAM credentials: what a broker stores of a password, and how requests change it.

A broker stores two keys that are derived from the password, never the password. With these keys it
can check a client's proof. It cannot log in elsewhere as that user.

`alter` and `describe` are the rules of AlterUserScramCredentials and DescribeUserScramCredentials
(KIP-554). A client derives the salted password itself, so a broker never sees a password there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stringprep
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeAlias

from penstock.security.exchange import PasswordHash
from penstock.security.user_names import name_problem
from penstock.wire.errors import ErrorCode

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""The range of iterations that Kafka's brokers store."""

SALT_BYTES: Final = 32
"""The size of the salts that we make."""

SALT_BYTES_MAX: Final = 256
"""The longest salt that a request may set. Kafka's tools use 26 bytes, librdkafka uses 64."""

PASSWORD_BYTES_MAX: Final = 1024
"""The longest password, in UTF-8."""

_VERSION: Final = 1
_FIELDS: Final = frozenset({"mechanism", "iterations", "salt", "stored_key", "server_key"})


class ScramMechanism(IntEnum):
    """Kafka's numbers of the SCRAM mechanisms."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{self.digest_size * 8}"

    @property
    def hash_name(self) -> str:
        """Returns the name of the hash for `hashlib`."""
        return f"sha{self.digest_size * 8}"

    @property
    def digest_size(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.hash_name)

    def hash(self, message: bytes) -> bytes:
        return hashlib.new(self.hash_name, message).digest()


SCRAM_MECHANISMS: Final[Mapping[str, ScramMechanism]] = {
    mechanism.sasl_name: mechanism for mechanism in ScramMechanism
}
"""SASL name -> mechanism."""


class CredentialInvalid(ValueError):
    """A stored credential cannot be read, or a value is not fit for one.

    The message has no part of the credential.
    """


class PasswordUnfit(ValueError):
    """A new password must not be used, because clients would not agree on its bytes."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker stores of one user's password for one mechanism."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise CredentialInvalid(
                f"a credential has {self.iterations} iterations: set the password again, with "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        if not 1 <= len(self.salt) <= SALT_BYTES_MAX:
            raise CredentialInvalid(
                f"a credential has a salt of {len(self.salt)} bytes: set the password again, with "
                f"a salt of 1 to {SALT_BYTES_MAX} bytes"
            )
        size = self.mechanism.digest_size
        if len(self.stored_key) != size or len(self.server_key) != size:
            raise CredentialInvalid(
                f"a credential for {self.mechanism.sasl_name} needs keys of {size} bytes: set the "
                "password again"
            )

    def accepts(self, salted_password: bytes) -> bool:
        """Returns whether the salted password belongs to this credential, in constant time."""
        key = stored_key(self.mechanism, client_key(self.mechanism, salted_password))
        return hmac.compare_digest(key, self.stored_key)


def client_key(mechanism: ScramMechanism, salted_password: bytes) -> bytes:
    return mechanism.hmac(salted_password, b"Client Key")


def stored_key(mechanism: ScramMechanism, key: bytes) -> bytes:
    """Returns the key that brokers store, from the client key."""
    return mechanism.hash(key)


def server_key(mechanism: ScramMechanism, salted_password: bytes) -> bytes:
    return mechanism.hmac(salted_password, b"Server Key")


def from_salted_password(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Derives a credential. Raises `CredentialInvalid` if a value is not fit for one."""
    if len(salted_password) != mechanism.digest_size:
        raise CredentialInvalid(
            f"a salted password for {mechanism.sasl_name} has {mechanism.digest_size} bytes, not "
            f"{len(salted_password)}: derive it with PBKDF2 and the hash of the mechanism"
        )
    key = stored_key(mechanism, client_key(mechanism, salted_password))
    return ScramCredential(mechanism, iterations, salt, key, server_key(mechanism, salted_password))


def password_hash(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> PasswordHash:
    """Returns the work that turns a password into a salted password. Run it on a thread.

    The bytes of a password are its UTF-8, unchanged. RFC 5802 requires SASLprep, but Kafka's
    brokers, tools and clients do not normalize passwords at all. A client that did could not log in
    with a password that Kafka's tools have set.
    """
    return PasswordHash(mechanism.hash_name, password_bytes(password), salt, iterations)


def password_bytes(password: str) -> bytes:
    """Returns the UTF-8 of a password. Raises `PasswordUnfit` if it has none."""
    try:
        encoded = password.encode()
    except UnicodeEncodeError:
        raise PasswordUnfit("the password is not valid Unicode: choose another") from None
    if not 1 <= len(encoded) <= PASSWORD_BYTES_MAX:
        raise PasswordUnfit(
            f"the password has {len(encoded)} bytes: choose one with 1 to {PASSWORD_BYTES_MAX}"
        )
    return encoded


def check_new_password(password: str) -> None:
    """Raises `PasswordUnfit` if SASLprep would refuse or change a password that someone sets.

    Clients that follow RFC 5802 prepare a password, and Kafka's clients do not. Both can log in
    only if preparation changes nothing.
    """
    password_bytes(password)
    if saslprep(password) != password:
        raise PasswordUnfit(
            "the password has characters that some clients replace or remove, such as a special "
            "space or a combined letter: choose a password without them"
        )


def saslprep(text: str) -> str:
    """Prepares a user name or password as RFC 4013 says. Raises `PasswordUnfit` if it must not.

    Code points that Unicode 3.2 does not assign are allowed, as RFC 4013 has it for queries.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(_is_prohibited(char) for char in prepared):
        raise PasswordUnfit(
            "the text has control characters or others that SASLprep prohibits: remove them"
        )
    if any(map(stringprep.in_table_d1, prepared)) and not _has_one_direction(prepared):
        raise PasswordUnfit(
            "the text mixes writing from right to left and from left to right: use one direction"
        )
    return prepared


def _is_prohibited(char: str) -> bool:
    return (
        stringprep.in_table_c12(char)
        or stringprep.in_table_c21_c22(char)
        or stringprep.in_table_c3(char)
        or stringprep.in_table_c4(char)
        or stringprep.in_table_c5(char)
        or stringprep.in_table_c6(char)
        or stringprep.in_table_c7(char)
        or stringprep.in_table_c8(char)
        or stringprep.in_table_c9(char)
    )


def _has_one_direction(text: str) -> bool:
    """Returns whether a text with letters from right to left meets RFC 3454, section 6."""
    return (
        stringprep.in_table_d1(text[0])
        and stringprep.in_table_d1(text[-1])
        and not any(map(stringprep.in_table_d2, text))
    )


def encode(credential: ScramCredential) -> bytes:
    """Returns the value for the metadata store."""
    fields = {
        "v": _VERSION,
        "mechanism": credential.mechanism.sasl_name,
        "iterations": credential.iterations,
        "salt": base64.b64encode(credential.salt).decode(),
        "stored_key": base64.b64encode(credential.stored_key).decode(),
        "server_key": base64.b64encode(credential.server_key).decode(),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> ScramCredential:
    """Reads what `encode` wrote. Raises `CredentialInvalid` for anything else."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        raise CredentialInvalid(_unreadable("is not JSON")) from None
    if not isinstance(fields, dict) or fields.pop("v", None) != _VERSION:
        raise CredentialInvalid(_unreadable(f"is not of format version {_VERSION}"))
    if fields.keys() != _FIELDS:
        raise CredentialInvalid(_unreadable(f"does not have exactly the fields {sorted(_FIELDS)}"))
    name, iterations = fields["mechanism"], fields["iterations"]
    mechanism = SCRAM_MECHANISMS.get(name) if isinstance(name, str) else None
    if mechanism is None or type(iterations) is not int:
        raise CredentialInvalid(_unreadable("has an unknown mechanism or no iterations"))
    salt, stored, server = (
        _decode_bytes(fields, each) for each in ("salt", "stored_key", "server_key")
    )
    return ScramCredential(mechanism, iterations, salt, stored, server)


def _decode_bytes(fields: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (TypeError, ValueError):
        raise CredentialInvalid(_unreadable(f"has no base64 in {name}")) from None


def _unreadable(problem: str) -> str:
    return (
        f"a stored SCRAM credential {problem}. If a newer version wrote it, run that version; "
        "otherwise set the password again"
    )


CredentialKey: TypeAlias = tuple[str, ScramMechanism]
"""A user's name and a mechanism: each pair has at most one credential."""

Credentials: TypeAlias = Mapping[CredentialKey, ScramCredential]


@dataclass(frozen=True, slots=True)
class Deletion:
    user: str
    mechanism: int
    """As in the request: it may be unknown."""


@dataclass(frozen=True, slots=True)
class Upsertion:
    user: str
    mechanism: int
    """As in the request: it may be unknown."""

    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserResult:
    """The result of one user. There is one of each user in the request."""

    user: str
    code: ErrorCode = ErrorCode.NONE
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Alteration:
    """The outcome of AlterUserScramCredentials: the answers, and what to change in the store.

    The caller changes the store in one transaction, and answers afterwards.
    """

    results: tuple[UserResult, ...]
    deleted: tuple[CredentialKey, ...]
    upserted: Mapping[CredentialKey, ScramCredential]


def alter(
    existing: Credentials, deletions: Iterable[Deletion], upsertions: Iterable[Upsertion]
) -> Alteration:
    """Decides on AlterUserScramCredentials as Kafka does.

    Each user may occur once, even with different mechanisms. None of the changes of a user with an
    error is made, and the other users are not affected.
    """
    deleted: dict[str, CredentialKey] = {}
    upserted: dict[str, ScramCredential] = {}
    results: dict[str, UserResult] = {}
    changes: tuple[Deletion | Upsertion, ...] = (*deletions, *upsertions)
    for change in changes:
        user = change.user
        if (before := results.get(user)) is not None:
            if before.code is ErrorCode.NONE:
                deleted.pop(user, None)
                upserted.pop(user, None)
                results[user] = UserResult(
                    user,
                    ErrorCode.DUPLICATE_RESOURCE,
                    "the request alters this user twice: send one change for each user",
                )
            continue
        error = _check_change(existing, change)
        if error is None and isinstance(change, Deletion):
            key = user, ScramMechanism(change.mechanism)
            if key in existing:
                deleted[user] = key
            else:
                error = ErrorCode.RESOURCE_NOT_FOUND, "there is no such credential to delete"
        elif error is None and isinstance(change, Upsertion):
            try:
                upserted[user] = from_salted_password(
                    ScramMechanism(change.mechanism),
                    change.salted_password,
                    change.salt,
                    change.iterations,
                )
            except CredentialInvalid as invalid:
                error = ErrorCode.UNACCEPTABLE_CREDENTIAL, str(invalid)
        results[user] = UserResult(user, *error) if error else UserResult(user)
    return Alteration(
        tuple(results.values()),
        tuple(deleted.values()),
        {(user, each.mechanism): each for user, each in upserted.items()},
    )


def _check_change(
    existing: Credentials, change: Deletion | Upsertion
) -> tuple[ErrorCode, str] | None:
    # A credential whose name is not allowed may come from a Kafka cluster: it can be deleted.
    is_stored = (change.user, change.mechanism) in existing
    problem = name_problem(change.user)
    if problem is not None and not (isinstance(change, Deletion) and is_stored):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, problem
    if change.mechanism not in ScramMechanism.__members__.values():
        return (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "the SCRAM mechanism is unknown: use 1 for SCRAM-SHA-256 or 2 for SCRAM-SHA-512",
        )
    return None


@dataclass(frozen=True, slots=True)
class UserDescription:
    """What DescribeUserScramCredentials tells of one user: no salts and no keys."""

    user: str
    code: ErrorCode = ErrorCode.NONE
    text: str | None = None
    credentials: tuple[tuple[ScramMechanism, int], ...] = ()
    """Mechanism and iterations."""


def describe(existing: Credentials, users: Sequence[str] | None) -> Iterator[UserDescription]:
    """Decides on DescribeUserScramCredentials. None or no users means all users."""
    counts = Counter(users) if users else dict.fromkeys(sorted({user for user, _ in existing}), 1)
    return (_describe_user(existing, user, count) for user, count in counts.items())


def _describe_user(existing: Credentials, user: str, count: int) -> UserDescription:
    credentials = [
        (mechanism, credential.iterations)
        for mechanism in ScramMechanism
        if (credential := existing.get((user, mechanism))) is not None
    ]
    if count > 1:
        text = "the request names this user twice: name each user once"
        return UserDescription(user, ErrorCode.DUPLICATE_RESOURCE, text)
    if not credentials:
        text = "this user has no SCRAM credential"
        return UserDescription(user, ErrorCode.RESOURCE_NOT_FOUND, text)
    return UserDescription(user, credentials=tuple(credentials))
