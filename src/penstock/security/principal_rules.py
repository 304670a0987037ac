"""Turns the subject of a client's certificate into a user name: `ssl.principal.mapping.rules`.

The rules are a comma-separated list of `RULE:pattern/replacement/`, optionally followed by `L` or
`U` for lower or upper case, and `DEFAULT`, which takes the whole distinguished name. The first rule
whose pattern matches the whole name is applied. If none does, the client is refused.
`linear_matcher` lists what a pattern may contain.

`distinguished_name` prints a subject as Java's `X500Principal.getName` does, because rules and ACLs
that were written for Kafka contain names in that form. It differs where Java prints two different
names alike: text in old character sets is printed as `#` and its bytes in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.security.linear_matcher import Matcher, PatternRefused, Spans, TooMuchWork, Work

NAME_CHARS_MAX: Final = 1_024
"""The longest distinguished name, and the longest user name, that is accepted."""
SUBJECT_BYTES_MAX: Final = 8_192
"""The largest subject of a certificate that is read. No name that is accepted takes more."""
OID_BYTES_MAX: Final = 64
"""The longest type of an attribute."""
RULES_MAX: Final = 100
_KEY: Final = "ssl.principal.mapping.rules"

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \r"

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_VERSION: Final = 0xA0
_ENCODINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii"}
"""The types that are printed as text, and their encodings: UTF8String, PrintableString and
IA5String. Java also prints T61String, GeneralString and BMPString, all as if they were UTF-8: then
a client could choose Chinese characters whose bytes spell the name of another user."""


class RulesInvalid(ValueError):
    """The rules cannot be read. The message says what to write."""


class PrincipalRefused(ValueError):
    """The client's certificate yields no user name, so its connection must be closed."""


class CertificateInvalid(ValueError):
    """The bytes are not a certificate."""


class Case(Enum):
    """What a rule does with the case of the name it made."""

    KEEP = ""
    LOWER = "L"
    UPPER = "U"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Without a matcher it is `DEFAULT`."""

    text: str
    matcher: Matcher | None = None
    replacement: tuple[str | int, ...] = ()
    """Texts, and the numbers of the groups to insert."""
    case: Case = Case.KEEP

    def apply(self, name: str, work: Work) -> str | None:
        """Returns the user name, or None if the rule does not match the whole name.

        Raises `TooMuchWork`, or `PrincipalRefused` if the name cannot be made.
        """
        if self.matcher is None:
            return name
        if self.matcher.full_match(name, work) is None:
            return None
        result = self._replaced(name, self.matcher.find_all(name, work))
        if self.case is Case.KEEP:
            return result
        if not result.isascii():
            # Unicode makes an ASCII letter of some others: K of the Kelvin sign, I of a dotless i.
            # To change only ASCII letters would give a name that a rule to deny does not expect.
            raise PrincipalRefused(
                f"the rule {self.text} of {_KEY} makes the user name {result!a}: L and U are only "
                "for ASCII names; remove the letter, or add a rule without it before this one"
            )
        return result.lower() if self.case is Case.LOWER else result.upper()

    def _replaced(self, name: str, found: list[Spans]) -> str:
        """Replaces every match that is found, as Kafka does: a rule that ends with a lazy
        quantifier matches the whole name, but replaces only the begin."""
        parts: list[str] = []
        end = size = 0
        for spans in found:
            parts.append(name[end : spans[0]])
            for piece in self.replacement:
                if isinstance(piece, str):
                    parts.append(piece)
                else:
                    begin, after = spans[2 * piece : 2 * piece + 2]
                    parts.append("" if begin < 0 else name[begin:after])
                size += len(parts[-1])
                if size > NAME_CHARS_MAX:
                    raise self._too_long()
            end = spans[1]
        result = "".join((*parts, name[end:]))
        if len(result) > NAME_CHARS_MAX:
            raise self._too_long()
        return result

    def _too_long(self) -> PrincipalRefused:
        return PrincipalRefused(
            f"the rule {self.text} of {_KEY} makes a user name of more than {NAME_CHARS_MAX} "
            "characters: make the replacement shorter"
        )


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """The rules of one listener, in order."""

    rules: tuple[Rule, ...]

    def user(self, name: str) -> str:
        """Returns the user for a distinguished name. Raises `PrincipalRefused` without one.

        Example:
            >>> rules = parse_rules("RULE:^CN=(.*?),OU=people.*$/$1/L, DEFAULT")
            >>> rules.user("CN=Alice,OU=people,O=Acme")
            'alice'
        """
        if len(name) > NAME_CHARS_MAX:
            raise PrincipalRefused(
                f"the subject of the client's certificate has {len(name)} characters; at most "
                f"{NAME_CHARS_MAX} are accepted: issue a certificate with a shorter subject"
            )
        work = Work()  # for all rules together: a client must not stop the broker for long
        for rule in self.rules:
            try:
                user = rule.apply(name, work)
            except TooMuchWork as error:
                raise PrincipalRefused(
                    f"applying the rules of {_KEY} up to {rule.text} to a subject of {len(name)} "
                    f"characters failed: {error}"
                ) from error
            if user is not None:
                return _checked_user(user, name, rule)
        raise PrincipalRefused(
            f"no rule of {_KEY} matches the subject {name!r}: add a rule, or DEFAULT at the end"
        )


def _checked_user(user: str, name: str, rule: Rule) -> str:
    if not user:
        raise PrincipalRefused(
            f"the rule {rule.text} of {_KEY} maps {name!r} to an empty user name"
        )
    return user


def parse_rules(text: str) -> PrincipalRules:
    """Reads the value of `ssl.principal.mapping.rules`. Raises `RulesInvalid`."""
    rules: list[Rule] = []
    at = 0
    while at < len(text):
        if text[at].isspace() or text[at] == ",":
            at += 1
            continue
        rule, at = _rule(text, at)
        rules.append(rule)
        if len(rules) > RULES_MAX:
            raise RulesInvalid(f"{_KEY} has more than {RULES_MAX} rules")
    if not rules:
        raise RulesInvalid(
            f"{_KEY} has no rule: write DEFAULT to use the whole subject as the user"
        )
    return PrincipalRules(tuple(rules))


def _rule(text: str, begin: int) -> tuple[Rule, int]:
    """Returns the rule that begins there, and where it ends."""
    if text.startswith("DEFAULT", begin):
        end = begin + len("DEFAULT")
        _check_end(text, end)
        return Rule("DEFAULT"), end
    if not text.startswith("RULE:", begin):
        raise RulesInvalid(
            f"{_KEY}: {text[begin : begin + 40]!r} is not a rule: write "
            "RULE:pattern/replacement/, or DEFAULT"
        )
    pattern, at = _up_to_slash(text, begin + len("RULE:"))
    replacement, at = _up_to_slash(text, at)
    case = Case.KEEP
    if text[at : at + 1] in ("L", "U"):
        case = Case(text[at])
        at += 1
    _check_end(text, at)
    shown = text[begin:at]
    try:
        matcher = Matcher(pattern)
    except PatternRefused as error:
        raise RulesInvalid(f"{_KEY}: in {shown}, {error}") from error
    return Rule(shown, matcher, _replacement(replacement, matcher.groups, shown), case), at


def _check_end(text: str, at: int) -> None:
    rest = text[at:].lstrip()
    if rest and rest[0] != ",":
        raise RulesInvalid(
            f"{_KEY}: {rest[:40]!r} follows a rule: write a comma between rules, and only L or U "
            "after the last '/'"
        )


def _up_to_slash(text: str, begin: int) -> tuple[str, int]:
    """Returns the text before the next `/` that has no backslash, and where the text after it
    begins."""
    at = begin
    while at < len(text):
        if text[at] == "/":
            return text[begin:at], at + 1
        at += 2 if text[at] == "\\" else 1
    raise RulesInvalid(
        f"{_KEY}: {text[begin : begin + 40]!r} has no '/' at its end: write "
        "RULE:pattern/replacement/"
    )


def _replacement(text: str, groups: int, rule: str) -> tuple[str | int, ...]:
    """Reads a replacement. `$1` is a group, `\\` takes the next character as it is. A number beyond
    the last group is text, as in Kafka."""
    pieces: list[str | int] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                raise RulesInvalid(f"{_KEY}: the replacement of {rule} ends with '\\'")
            pieces.append(text[at])
            at += 1
        elif char == "$":
            digit = text[at : at + 1]
            if digit not in tuple("0123456789") or (not groups and digit != "0"):
                raise RulesInvalid(
                    f"{_KEY}: the replacement of {rule} has a '$' without the number of a group: "
                    "write '\\$' for the character"
                )
            if int(digit) > groups:
                pieces.append("$")
                continue
            number, at = _group_number(text, at, groups)
            pieces.append(number)
        else:
            pieces.append(char)
    return tuple(pieces)


def _group_number(text: str, at: int, groups: int) -> tuple[int, int]:
    """Returns the number at this place, and where it ends. A digit that would make it larger than
    the last group is not part of it, as in Java."""
    number = int(text[at])
    at += 1
    while text[at : at + 1] in tuple("0123456789") and number * 10 + int(text[at]) <= groups:
        number = number * 10 + int(text[at])
        at += 1
    return number, at


def distinguished_name(certificate: bytes) -> str:
    """Returns the subject of a DER certificate as Java prints it, the most specific part first.

    Raises `CertificateInvalid` if the bytes are no certificate.
    """
    fields = _parts(_body(_body(certificate, _SEQUENCE), _SEQUENCE, rest=True))
    if fields and fields[0].tag == _VERSION:
        del fields[0]
    # Then come the serial number, the signature algorithm, the issuer, the validity, the subject.
    if len(fields) < 5 or fields[4].tag != _SEQUENCE:
        raise CertificateInvalid("the certificate has no subject")
    if len(fields[4].body) > SUBJECT_BYTES_MAX:
        raise CertificateInvalid(
            f"the subject of the certificate has more than {SUBJECT_BYTES_MAX} bytes: shorten it"
        )
    parts = [_relative_name(part) for part in _parts(fields[4].body)]
    return ",".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """One value in DER."""

    tag: int
    body: bytes
    encoded: bytes


def _parts(data: bytes) -> list[_Part]:
    return list(_each_part(data))


def _each_part(data: bytes) -> Iterator[_Part]:
    at = 0
    while at < len(data):
        part = _part(data, at)
        yield part
        at += len(part.encoded)


def _part(data: bytes, begin: int) -> _Part:
    header = data[begin : begin + 2]
    if len(header) < 2:
        raise CertificateInvalid("the certificate ends too early")
    tag, size = header
    at = begin + 2
    if size & 0x80:
        length = size & 0x7F
        if not 1 <= length <= 4:
            raise CertificateInvalid("the certificate has an invalid length")
        size = int.from_bytes(data[at : at + length], "big")
        at += length
    if at + size > len(data):
        raise CertificateInvalid("the certificate ends too early")
    return _Part(tag, data[at : at + size], data[begin : at + size])


def _body(data: bytes, tag: int, rest: bool = False) -> bytes:
    """Returns the content of the value at the start of `data`, which must fill it unless `rest`."""
    part = _part(data, 0)
    if part.tag != tag or (not rest and len(part.encoded) != len(data)):
        raise CertificateInvalid("the bytes are not a certificate in DER")
    return part.body


def _relative_name(part: _Part) -> str:
    """Prints the attributes of one level, which are a set."""
    if part.tag != _SET:
        raise CertificateInvalid("the subject of the certificate is not valid")
    return "+".join(_attribute(each) for each in _parts(part.body))


def _attribute(part: _Part) -> str:
    pieces = _parts(part.body) if part.tag == _SEQUENCE else []
    if len(pieces) != 2 or pieces[0].tag != _OID:
        raise CertificateInvalid("the subject of the certificate is not valid")
    oid, value = _oid(pieces[0].body), pieces[1]
    keyword = _KEYWORDS.get(oid)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    try:
        return f"{keyword}={_escaped(value.body.decode(encoding))}"
    except UnicodeDecodeError:
        raise CertificateInvalid(
            f"the subject of the certificate has a {keyword} that is not valid {encoding.upper()}: "
            "issue a certificate with a valid subject"
        ) from None


def _oid(body: bytes) -> str:
    invalid = CertificateInvalid("the subject of the certificate has an invalid attribute type")
    if not 0 < len(body) <= OID_BYTES_MAX or body[-1] & 0x80:
        raise invalid
    numbers: list[int] = []
    number = 0
    is_first = True
    for byte in body:
        if is_first and byte == 0x80:
            raise invalid  # a number begins with zeros: one type must not have two encodings
        number = number << 7 | byte & 0x7F
        is_first = not byte & 0x80
        if is_first:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(value: str) -> str:
    """Escapes a value as Java does, which also escapes `=` and `#` everywhere."""
    escaped = "".join(
        f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in value
    )
    if not escaped.strip(_SPACES):
        return "".join(f"\\{char}" for char in escaped)
    begin = len(escaped) - len(escaped.lstrip(_SPACES))
    end = len(escaped.rstrip(_SPACES))
    return "".join(
        (
            *(f"\\{char}" for char in escaped[:begin]),
            escaped[begin:end],
            *(f"\\{char}" for char in escaped[end:]),
        )
    )
