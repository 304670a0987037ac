"""The PLAIN mechanism (RFC 4616): a user name and a password in one message.

`PlainScramServer` checks the password against the user's SCRAM credential, so that PLAIN and SCRAM
have the same users. The check costs as much as setting a password, and runs on a thread. An unknown
user costs as much as one of the others, by a decoy. `PlainTableServer` checks it against users in
the settings, as Kafka does; `plain_users` reads them from `sasl.jaas.config`.

The password crosses the network as it is. Offer PLAIN only on listeners with TLS.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.security.decoys import Decoys
from penstock.security.exchange import (
    NAME_BYTES_MAX,
    Accepted,
    PasswordHash,
    Rejected,
    Step,
    Wait,
)
from penstock.security.scram_credentials import (
    PASSWORD_BYTES_MAX,
    PasswordUnfit,
    ScramCredential,
    password_bytes,
)
from penstock.security.user_names import name_problem

MESSAGE_BYTES_MAX: Final = 2 * NAME_BYTES_MAX + PASSWORD_BYTES_MAX + 2
"""The longest message of a client: two names, a password and the separators."""

JAAS_CHARS_MAX: Final = 1 << 20
"""The longest `sasl.jaas.config` that is read."""

Lookup = Callable[[str], ScramCredential | None]
"""Returns a SCRAM credential of a user, or None: the first one in `decoys.PLAIN_ORDER`."""


class JaasInvalid(ValueError):
    """`sasl.jaas.config` cannot be read. The message has no value from it."""


@dataclass(frozen=True, slots=True)
class _Login:
    user: str
    password: bytes = field(repr=False)


def _login(message: bytes) -> _Login | Rejected:
    """Reads `authzid NUL user NUL password`."""
    if len(message) > MESSAGE_BYTES_MAX:
        return Rejected(f"the message has more than {MESSAGE_BYTES_MAX} bytes")
    parts = message.split(b"\0")
    if len(parts) != 3:
        return Rejected(f"the message has {len(parts)} parts, not 3")
    authzid, name, password = parts
    try:
        user = name.decode()
        password.decode()
    except UnicodeDecodeError:
        return Rejected("the name or the password is not UTF-8")
    if (problem := name_problem(user)) is not None:
        return Rejected(problem)
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        return Rejected(f"the password does not have 1 to {PASSWORD_BYTES_MAX} bytes", user)
    if authzid not in {b"", name}:
        return Rejected("the client wants to act as another user", user)
    return _Login(user, password)


_OVER: Final = Rejected("the client sent a message after the end of the exchange")
_NOT_WAITING: Final = Rejected("the exchange was resumed, but it was not waiting")
_WRONG: Final = "the user is unknown or the password is wrong"


class PlainScramServer:
    """The broker's side of one authentication, with the users of SCRAM. It is an `Exchange`.

    It waits once, for a `PasswordHash`. Users with different iterations need different times, and
    so do decoys: the session answers a failure at a time that does not show it.
    """

    def __init__(self, lookup: Lookup, decoys: Decoys) -> None:
        self._lookup = lookup
        self._decoys = decoys
        self._is_over = False
        self._user = ""
        self._is_known = False
        self._waits_for: ScramCredential | None = None

    def step(self, token: bytes, now_ms: int) -> Step:
        if self._is_over:
            self._waits_for = None
            return _OVER
        self._is_over = True
        login = _login(token)
        if isinstance(login, Rejected):
            return login
        decoy = self._decoys.plain_credential(login.user)
        found = self._lookup(login.user)
        self._user = login.user
        self._is_known = found is not None
        credential = self._waits_for = found or decoy
        hash_name = credential.mechanism.hash_name
        return Wait(PasswordHash(hash_name, login.password, credential.salt, credential.iterations))

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        credential, self._waits_for = self._waits_for, None
        if credential is None:
            self._is_over = True
            return _NOT_WAITING
        if result is None:
            return Rejected("the password could not be checked", self._user)
        fits = credential.accepts(result)
        if not self._is_known or not fits:
            return Rejected(_WRONG, self._user)
        return Accepted(self._user)


@dataclass(frozen=True, slots=True)
class PlainUsers:
    """The users in the settings, as digests of their passwords."""

    secret: bytes = field(repr=False)
    digests: Mapping[str, bytes] = field(repr=False)

    def fits(self, user: str, password: bytes) -> bool:
        """Returns whether this is the user's password. The time depends on neither."""
        given = hmac.digest(self.secret, password, "sha256")
        expected = self.digests.get(user)
        matches = hmac.compare_digest(given, self.secret if expected is None else expected)
        return matches and expected is not None


def users_table(passwords: Mapping[str, str], secret: bytes) -> PlainUsers:
    """Returns the table for `PlainTableServer`. `secret` is 32 random bytes, new at each start."""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"the secret of the users needs {_SECRET_BYTES} bytes, not {len(secret)}")
    for user in passwords:
        if (problem := name_problem(user)) is not None:
            raise JaasInvalid(f"a user of sasl.jaas.config: {problem}")
    return PlainUsers(
        secret,
        {
            user: hmac.digest(secret, password.encode(), "sha256")
            for user, password in passwords.items()
        },
    )


_SECRET_BYTES: Final = 32


class PlainTableServer:
    """The broker's side of one authentication, with users from the settings. It is an `Exchange`,
    and it never waits."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self._is_over = False

    def step(self, token: bytes, now_ms: int) -> Step:
        if self._is_over:
            return _OVER
        self._is_over = True
        login = _login(token)
        if isinstance(login, Rejected):
            return login
        if not self._users.fits(login.user, login.password):
            return Rejected(_WRONG, login.user)
        return Accepted(login.user)

    def resume(self, result: bytes | None, now_ms: int) -> Step:
        self._is_over = True
        return _NOT_WAITING


def client_message(user: str, password: str) -> bytes:
    """Returns the only message of a client. The broker answers it with no bytes.

    Raises `ValueError` for a name or password that PLAIN cannot send.
    """
    if (problem := name_problem(user)) is not None:
        raise ValueError(problem)
    return b"\0%b\0%b" % (user.encode(), _check_password(password))


def _check_password(password: str) -> bytes:
    if "\0" in password:
        raise PasswordUnfit("the password contains a NUL character, and PLAIN cannot send it")
    return password_bytes(password)


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """The login module of a `sasl.jaas.config`, and its options."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def jaas_entry(jaas: str) -> JaasEntry:
    """Reads Kafka's `sasl.jaas.config`: `module required name="value" ...;`.

    Raises `JaasInvalid` if it cannot be read, has several entries, or has an option twice.
    """
    if len(jaas) > JAAS_CHARS_MAX:
        raise JaasInvalid(f"sasl.jaas.config has more than {JAAS_CHARS_MAX} characters: shorten it")
    tokens = [*_jaas_tokens(jaas)]
    if len(tokens) < 3 or not (tokens[0].is_text and tokens[1].is_text):
        raise JaasInvalid("sasl.jaas.config must be: login module, flag, options, semicolon")
    if tokens[1].text.lower() not in _FLAGS:
        raise JaasInvalid(f"sasl.jaas.config must have a flag of {sorted(_FLAGS)} as second word")
    end = tokens.pop()
    if end.is_text or end.text != ";":
        raise JaasInvalid("sasl.jaas.config must end with a semicolon: add it")
    options: dict[str, str] = {}
    rest = tokens[2:]
    for start in range(0, len(rest), 3):
        words = rest[start : start + 3]
        if [word.is_text for word in words] != [True, False, True] or words[1].text != "=":
            raise JaasInvalid(
                f"option {start // 3 + 1} of sasl.jaas.config is not name=value: check the quotes, "
                "and that there is one login module"
            )
        if words[0].text in options:
            raise JaasInvalid(
                f"option {start // 3 + 1} of sasl.jaas.config repeats an earlier one: keep one"
            )
        options[words[0].text] = words[2].text
    return JaasEntry(tokens[0].text, options)


def plain_users(jaas: str) -> Mapping[str, str]:
    """Returns user -> password from options such as `user_alice="..."`.

    Raises `JaasInvalid` if the text cannot be read or a password is empty. Do not log the result:
    pass it to `users_table`.
    """
    users = {
        name.removeprefix(_USER_OPTION): password
        for name, password in jaas_entry(jaas).options.items()
        if name.startswith(_USER_OPTION)
    }
    for user, password in users.items():
        try:
            _check_password(password)
        except PasswordUnfit as unfit:
            raise JaasInvalid(f"{_USER_OPTION + user!r} in sasl.jaas.config: {unfit}") from None
    return users


_USER_OPTION: Final = "user_"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class _Word:
    is_text: bool
    """False for `=` and `;`."""

    text: str = field(repr=False)


def _jaas_tokens(jaas: str) -> Iterator[_Word]:
    """Splits the text as Java does: quoted strings, words, comments, and the signs = and ;."""
    position = 0
    while position < len(jaas):
        char = jaas[position]
        if char <= " ":
            position += 1
        elif char in "=;":
            yield _Word(False, char)
            position += 1
        elif char in "\"'":
            text, position = _quoted(jaas, position)
            yield _Word(True, text)
        elif jaas.startswith("/*", position):
            end = jaas.find("*/", position + 2)
            if end < 0:
                raise JaasInvalid("a comment in sasl.jaas.config has no end: add */")
            position = end + 2
        elif char == "/":
            end = jaas.find("\n", position)
            position = len(jaas) if end < 0 else end
        else:
            end = position
            while end < len(jaas) and jaas[end] > " " and jaas[end] not in "=;\"'/":
                end += 1
            yield _Word(True, jaas[position:end])
            position = end


_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _octal_digits(jaas: str, start: int) -> str:
    """Returns up to three octal digits, as in Java: a number of three begins with 0 to 3."""
    end = start + 1
    most = start + (3 if jaas[start] <= "3" else 2)
    while end < min(most, len(jaas)) and jaas[end] in "01234567":
        end += 1
    return jaas[start:end]


def _quoted(jaas: str, start: int) -> tuple[str, int]:
    """Returns the string that begins at `start`, and the position after its closing quote."""
    quote, position = jaas[start], start + 1
    chars: list[str] = []
    while position < len(jaas) and jaas[position] not in {quote, "\n", "\r"}:
        char = jaas[position]
        position += 1
        if char == "\\" and position < len(jaas):
            char = jaas[position]
            position += 1
            if char in "01234567":
                digits = _octal_digits(jaas, position - 1)
                position += len(digits) - 1
                char = chr(int(digits, 8))
            else:
                char = _ESCAPES.get(char, char)
        chars.append(char)
    if position >= len(jaas) or jaas[position] != quote:
        raise JaasInvalid("a quoted value in sasl.jaas.config has no closing quote: add it")
    return "".join(chars), position + 1
