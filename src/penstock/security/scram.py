"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the broker's side and the client's side.

The broker's side is stricter than Kafka's: it compares `c=` with the header of the first message,
and an unknown user gets a salt and an iteration count like every other user (`decoys`). The
exchange with an unknown user fails at the same step and with the same answer as the exchange with
a wrong password.

With `tokenauth=true` in its first message a client logs in with a delegation token: the user name
is the token's id, and the principal is its owner (`delegation_tokens`). The keys of a token are
derived at its first login, which is work for a thread. An id that does not exist costs no such
work. Ids are random, so nobody finds one by the time of an answer, and failures are answered late
anyway.

Neither side supports channel binding. Names and passwords are not normalized; `scram_credentials`
says why.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.security.decoys import Decoys
from penstock.security.delegation_tokens import ITERATIONS, TokenLogins
from penstock.security.exchange import (
    Accepted,
    Challenge,
    PasswordHash,
    Rejected,
    Step,
    Wait,
)
from penstock.security.scram_credentials import (
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
    client_key,
    password_bytes,
    server_key,
    stored_key,
)
from penstock.security.user_names import name_problem

MESSAGE_BYTES_MAX: Final = 4096
"""The longest message that either side reads. A real one has a few hundred bytes."""

NONCE_CHARS_MIN: Final = 20
"""The shortest nonce of our own: 15 random bytes in base64."""

NONCE_CHARS_MAX: Final = 256
"""The longest nonce of the other side. Kafka's clients send up to 36 characters."""

CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""The most iterations that a client does for a broker: about a second on a thread."""

Lookup = Callable[[str], ScramCredential | None]
"""Returns the credential of a user for the mechanism of the exchange, or None."""


class ScramFailed(Exception):
    """The broker did not authenticate the client, or the client must not trust the broker."""


class _MessageInvalid(Exception):
    """A message breaks RFC 5802. The text is for the audit log."""


def nonce_text(random_bytes: bytes) -> bytes:
    """Returns a nonce for an exchange. Pass 24 random bytes, new for each exchange."""
    return base64.urlsafe_b64encode(random_bytes).rstrip(b"=")


class _ClientFirst(NamedTuple):
    header: bytes
    """The GS2 header, which the client repeats in its last message."""

    bare: bytes
    user: str
    """Or the id of a delegation token."""

    nonce: bytes
    is_token: bool = False


class _ClientFinal(NamedTuple):
    without_proof: bytes
    binding: bytes
    nonce: bytes
    proof: bytes = b""


class _Next(Enum):
    FIRST = auto()
    FINAL = auto()
    HASH = auto()
    """The keys of a delegation token."""

    NOTHING = auto()


class ScramServer:
    """The broker's side of one authentication. It is an `Exchange`, and it waits only for the keys
    of a delegation token."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Lookup,
        decoys: Decoys,
        nonce: bytes,
        tokens: TokenLogins | None = None,
    ) -> None:
        """`nonce` comes from `nonce_text`, and is new for each exchange. Without `tokens` there are
        no delegation tokens."""
        self._mechanism = mechanism
        self._lookup = lookup
        self._decoys = decoys
        self._nonce = _own_nonce(nonce)
        self._tokens = tokens
        self._next = _Next.FIRST
        self._first = _ClientFirst(b"", b"", "", b"")
        self._final = _ClientFinal(b"", b"", b"")
        self._server_first = b""
        self._credential: ScramCredential | None = None
        self._is_known = False

    def step(self, token: bytes, now_ms: int) -> Step:
        expected, self._next = self._next, _Next.NOTHING
        try:
            if expected is _Next.FIRST:
                return self._on_first(_client_first(token))
            if expected is _Next.FINAL:
                return self._on_final(_client_final(token), now_ms)
        except _MessageInvalid as invalid:
            return self._rejected(str(invalid))
        return Rejected("the client sent a message after the end of the exchange")

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        expected, self._next = self._next, _Next.NOTHING
        if expected is not _Next.HASH or self._tokens is None:
            return Rejected("the exchange was resumed, but it was not waiting")
        if result is None:
            return self._rejected("the keys of the delegation token could not be derived")
        # Keys are kept until the token is removed, which may have happened while they were derived.
        if self._tokens.valid(self._first.user, now_ms) is None:
            return self._rejected(_NO_TOKEN)
        credential = self._tokens.keep(self._mechanism, self._first.user, result)
        return self._check_proof(credential, now_ms)

    def _rejected(self, reason: str) -> Rejected:
        first = self._first
        if first.is_token:
            return Rejected(reason, token_id=first.user)
        return Rejected(reason, first.user or None)

    def _on_first(self, first: _ClientFirst) -> Step:
        self._first = first
        if first.is_token:
            if self._tokens is None:
                return self._rejected(
                    "delegation tokens are disabled: set delegation.token.secret.key"
                )
            return self._challenge(self._tokens.salt(self._mechanism, first.user), ITERATIONS)
        # The decoy is made for every user, so that an unknown one does not take longer.
        decoy = self._decoys.credential(self._mechanism, first.user)
        found = self._lookup(first.user)
        self._is_known = found is not None and found.mechanism is self._mechanism
        credential = found if found is not None and self._is_known else decoy
        self._credential = credential
        return self._challenge(credential.salt, credential.iterations)

    def _challenge(self, salt: bytes, iterations: int) -> Challenge:
        nonce = self._first.nonce + self._nonce
        self._server_first = b"r=%b,s=%b,i=%d" % (nonce, base64.b64encode(salt), iterations)
        self._next = _Next.FINAL
        return Challenge(self._server_first)

    def _on_final(self, final: _ClientFinal, now_ms: int) -> Step:
        first = self._first
        if not hmac.compare_digest(final.nonce, first.nonce + self._nonce):
            return self._rejected("the nonce is not the one of this exchange")
        if final.binding != base64.b64encode(first.header):
            return self._rejected("c= does not repeat the header of the first message")
        self._final = final
        if first.is_token and self._tokens is not None:
            if self._tokens.valid(first.user, now_ms) is None:
                return self._rejected(_NO_TOKEN)
            self._is_known = True
            self._credential = self._tokens.credential(self._mechanism, first.user)
            if self._credential is None:
                self._next = _Next.HASH
                return Wait(self._tokens.password_hash(self._mechanism, first.user))
        assert self._credential is not None
        return self._check_proof(self._credential, now_ms)

    def _check_proof(self, credential: ScramCredential, now_ms: int) -> Step:
        first, final, mechanism = self._first, self._final, self._mechanism
        message = b",".join((first.bare, self._server_first, final.without_proof))
        signature = mechanism.hmac(credential.stored_key, message)
        if len(final.proof) != len(signature):
            return self._rejected("the proof has the wrong length")
        key = stored_key(mechanism, _xor(final.proof, signature))
        fits = hmac.compare_digest(key, credential.stored_key)
        verifier = base64.b64encode(mechanism.hmac(credential.server_key, message))
        self._credential = None
        if not self._is_known:
            return self._rejected(f"the user has no password for {mechanism.sasl_name}")
        if not fits:
            return self._rejected("the password is wrong")
        if not first.is_token:
            return Accepted(first.user, b"v=" + verifier)
        token = None if self._tokens is None else self._tokens.valid(first.user, now_ms)
        if token is None:
            return self._rejected(_NO_TOKEN)
        return Accepted(token.owner, b"v=" + verifier, token.expires_ms, token.token_id)


_NO_TOKEN: Final = "the delegation token does not exist or has expired"  # noqa: S105 - a text


class ScramClient:
    """The client's side of one authentication.

    Send `first()`. Pass the answer to `on_server_first`, which returns work for a thread. Pass its
    result to `final` and send the message that `final` returns. Pass the last answer to
    `on_server_final`. It returns if the broker knows the password, too, and raises otherwise.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        nonce: bytes,
        *,
        tokenauth: bool = False,
    ) -> None:
        """`nonce` comes from `nonce_text`, and is new for each exchange. With `tokenauth` the user
        is the id of a delegation token, and the password its HMAC in base64."""
        if (problem := name_problem(user)) is not None:
            raise ScramFailed(problem)
        self._mechanism = mechanism
        self._password = password_bytes(password)
        self._nonce = _own_nonce(nonce)
        extension = b",tokenauth=true" if tokenauth else b""
        self._bare = b"n=%b,r=%b%b" % (escape_name(user).encode(), self._nonce, extension)
        self._server_first = b""
        self._combined_nonce = b""
        self._verifier: bytes | None = None

    def first(self) -> bytes:
        return _CLIENT_HEADER + self._bare

    def on_server_first(self, message: bytes) -> PasswordHash:
        """Returns the PBKDF2 work to run on a thread. Raises `ScramFailed` if it must not be done.

        A broker chooses the number of iterations. Too few would make the password easy to guess
        from the proof, and too many would keep the client busy.
        """
        try:
            fields = _fields(message)
            nonce, salt, iterations = _server_first(fields)
        except _MessageInvalid as invalid:
            raise ScramFailed(f"the broker's first SCRAM message is not valid: {invalid}") from None
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):
            raise ScramFailed(
                "the broker's nonce does not extend the client's: another party may have "
                "answered; check the address and use TLS"
            )
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramFailed(
                f"the broker asks for {iterations} iterations: set the user's password again, with "
                f"{ITERATIONS_MIN} or more, or check that this is your broker"
            )
        self._server_first = message
        self._combined_nonce = nonce
        return PasswordHash(self._mechanism.hash_name, self._password, salt, iterations)

    def final(self, salted_password: bytes) -> bytes:
        """Returns the message with the proof. Call it once, after `on_server_first`."""
        if not self._server_first:
            raise ScramFailed("the broker's first SCRAM message must be read before the last")
        mechanism = self._mechanism
        binding = base64.b64encode(_CLIENT_HEADER)
        without_proof = b"c=%b,r=%b" % (binding, self._combined_nonce)
        message = b",".join((self._bare, self._server_first, without_proof))
        key = client_key(mechanism, salted_password)
        proof = _xor(key, mechanism.hmac(stored_key(mechanism, key), message))
        self._verifier = mechanism.hmac(server_key(mechanism, salted_password), message)
        return b"%b,p=%b" % (without_proof, base64.b64encode(proof))

    def on_server_final(self, message: bytes) -> None:
        """Raises `ScramFailed` unless the broker has proved that it knows the user's password."""
        try:
            name, value = _fields(message)[0]
            signature = _base64(value) if name == b"v" else b""
        except _MessageInvalid as invalid:
            raise ScramFailed(f"the broker's last SCRAM message is not valid: {invalid}") from None
        if name == b"e":
            raise ScramFailed("the broker refused the user name or the password")
        verifier, self._verifier = self._verifier, None
        if verifier is None or not hmac.compare_digest(signature, verifier):
            raise ScramFailed(
                "the broker has not proved that it knows the user: check the address and use TLS"
            )


_CLIENT_HEADER: Final = b"n,,"


def escape_name(user: str) -> str:
    """Returns a user name as SCRAM messages contain it."""
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape_name(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise _MessageInvalid("a name is not UTF-8") from None
    parts = text.split("=")
    if any(part[:2] not in {"2C", "3D"} for part in parts[1:]):
        raise _MessageInvalid("a name has an = that is not followed by 2C or 3D")
    user = parts[0] + "".join(("," if part[:2] == "2C" else "=") + part[2:] for part in parts[1:])
    if (problem := name_problem(user)) is not None:
        raise _MessageInvalid(problem)
    return user


def _client_first(message: bytes) -> _ClientFirst:
    _check_size(message)
    binding, _, rest = message.partition(b",")
    authzid, separator, bare = rest.partition(b",")
    if binding not in {b"n", b"y"}:
        raise _MessageInvalid("the client asks for channel binding, which is not supported")
    if not separator or (authzid and not authzid.startswith(b"a=")):
        raise _MessageInvalid("the header of the first message is wrong")
    fields = _fields(bare)
    if len(fields) < 2 or fields[0][0] != b"n" or fields[1][0] != b"r":
        raise _MessageInvalid("the first message does not begin with n= and r=")
    user = _unescape_name(fields[0][1])
    if authzid and _unescape_name(authzid[2:]) != user:
        raise _MessageInvalid("the client wants to act as another user")
    is_token = any(name == b"tokenauth" and value.lower() == b"true" for name, value in fields[2:])
    header = message[: len(message) - len(bare)]
    return _ClientFirst(header, bare, user, _check_nonce(fields[1][1]), is_token)


def _client_final(message: bytes) -> _ClientFinal:
    fields = _fields(message)
    if len(fields) < 3 or [fields[0][0], fields[1][0], fields[-1][0]] != [b"c", b"r", b"p"]:
        raise _MessageInvalid("the last message does not consist of c=, r= and p=")
    without_proof = message[: message.rindex(b",p=")]
    return _ClientFinal(without_proof, fields[0][1], fields[1][1], _base64(fields[-1][1]))


def _server_first(fields: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes, int]:
    """Returns nonce, salt and iterations."""
    if [name for name, _ in fields[:3]] != [b"r", b"s", b"i"]:
        raise _MessageInvalid("it does not begin with r=, s= and i=")
    salt, digits = _base64(fields[1][1]), fields[2][1]
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise _MessageInvalid(f"the salt does not have 1 to {SALT_BYTES_MAX} bytes")
    if not digits.isdigit() or len(digits) > _ITERATION_DIGITS_MAX:
        raise _MessageInvalid("the iterations are not a number, or far too many")
    return _check_nonce(fields[0][1]), salt, int(digits)


_ITERATION_DIGITS_MAX: Final = 10


def _fields(message: bytes) -> list[tuple[bytes, bytes]]:
    """Splits `a=x,b=y` into pairs of attribute and value. Refuses mandatory extensions."""
    _check_size(message)
    fields = []
    for part in message.split(b","):
        name, separator, value = part.partition(b"=")
        if not name.isalpha() or not separator or b"\0" in value:
            raise _MessageInvalid("a part of the message is not an attribute with a value")
        if name == b"m":
            raise _MessageInvalid("the message has a mandatory extension, and none is supported")
        fields.append((name, value))
    return fields


def _check_size(message: bytes) -> None:
    if len(message) > MESSAGE_BYTES_MAX:
        raise _MessageInvalid(f"the message has more than {MESSAGE_BYTES_MAX} bytes")


def _check_nonce(nonce: bytes) -> bytes:
    if not 1 <= len(nonce) <= NONCE_CHARS_MAX or not _is_printable(nonce):
        raise _MessageInvalid(f"the nonce is not 1 to {NONCE_CHARS_MAX} printable ASCII characters")
    return nonce


def _own_nonce(nonce: bytes) -> bytes:
    if len(nonce) < NONCE_CHARS_MIN or not _is_printable(nonce):
        raise ValueError(
            f"a nonce needs {NONCE_CHARS_MIN} or more printable characters, or it can be guessed: "
            "use nonce_text"
        )
    return nonce


def _is_printable(nonce: bytes) -> bool:
    return all(0x21 <= each <= 0x7E and each != 0x2C for each in nonce)


def _base64(text: bytes) -> bytes:
    """Decodes base64. Each value has one encoding: other ways to write the same are refused."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = b""
    if not data or base64.b64encode(data) != text:
        raise _MessageInvalid("a value is empty or not base64")
    return data


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
