"""A small language for filtering records. Pure.

    error                          key, value or a header contains the word, in any case
    value.user.id = 42             a field of a JSON value; `value.items[0].sku` indexes a list
    key = "alice" and not header.trace-id
    value ~ "time out" or value.status >= 500
    offset > 1000 and partition = 2

Fields: `key`, `value` (with a path into JSON), `header.NAME`, `headers`, `partition`, `offset`,
`timestamp` (milliseconds). Operators: `=` `!=` `<` `<=` `>` `>=`; `~` (contains) and `!~` (does not
contain), which ignore case. A field alone tests whether it exists. `and`, `or`, `not`, parentheses.

There are no regular expressions and no functions. So the cost of any filter is proportional to the
size of the record, and a filter can only compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.client.model import Headers

LENGTH_MAX: Final = 2_000
_DEPTH_MAX: Final = 30
_MISSING: Final = object()
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<operator><=|>=|!=|!~|=|<|>|~|\(|\))
    | (?P<word>(?:\["[^"]*"\]|[^\s"'()=<>~!])+)
    )""",
    re.VERBOSE,
)
_STEP: Final = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\["(?P<quoted>[^"]*)"\]"""
)
_FIELDS: Final = ("key", "value", "header", "headers", "partition", "offset", "timestamp")
_COMPARING: Final = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")


class BadFilter(ValueError):
    """The message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record as a filter sees it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


Test = Callable[[Candidate], bool]
Step = str | int


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    path: tuple[Step, ...]

    def read(self, record: Candidate) -> Any:
        """Returns the field's value, or `_MISSING`."""
        if self.name in ("partition", "offset", "timestamp"):
            return getattr(record, self.name)
        if self.name == "headers":
            return " ".join(f"{name}={_text(value) or ''}" for name, value in record.headers)
        if self.name == "header":
            found = [value for name, value in record.headers if name == self.path[0]]
            return _text(found[-1]) if found else _MISSING
        data = record.key if self.name == "key" else record.value
        if data is None:
            return None if not self.path else _MISSING
        if not self.path:
            return _text(data)
        return _walk(data, self.path)


def compile_filter(text: str) -> Test:
    """Compiles a filter to a test. An empty filter accepts everything. Raises `BadFilter`."""
    if len(text) > LENGTH_MAX:
        raise BadFilter(f"the filter is longer than {LENGTH_MAX:,} characters: shorten it")
    tokens = _tokens(text)
    if not tokens:
        return lambda record: True
    parser = _Parser(tokens)
    test = parser.any_of(0)
    if parser.rest:
        raise BadFilter(
            f"unexpected {parser.rest.text!r} at character {parser.rest.at + 1}: join conditions "
            "with and, or"
        )
    return test


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadFilter(f"{text[at : at + 12]!r} cannot be parsed: put text in quotes")
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def rest(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def any_of(self, depth: int) -> Test:
        tests = [self._all_of(depth)]
        while self._takes("or"):
            tests.append(self._all_of(depth))
        return tests[0] if len(tests) == 1 else lambda record: any(each(record) for each in tests)

    def _all_of(self, depth: int) -> Test:
        tests = [self._one(depth)]
        while self._takes("and"):
            tests.append(self._one(depth))
        return tests[0] if len(tests) == 1 else lambda record: all(each(record) for each in tests)

    def _one(self, depth: int) -> Test:
        if depth > _DEPTH_MAX:
            raise BadFilter(f"more than {_DEPTH_MAX} levels of parentheses and not: simplify it")
        token = self._next("a field or text")
        if token.kind == "word" and token.text.lower() == "not":
            inner = self._one(depth + 1)
            return lambda record: not inner(record)
        if token.text == "(" and token.kind == "operator":
            inner = self.any_of(depth + 1)
            if self._next("a closing parenthesis").text != ")":
                raise BadFilter("a closing parenthesis is missing: add )")
            return inner
        if token.kind == "operator":
            raise BadFilter(f"{token.text!r} at character {token.at + 1} has no field before it")
        field = None if token.kind == "text" else _field(token)
        if field is None:
            return _occurs(_unquoted(token))
        if self.rest is None or self.rest.kind != "operator" or self.rest.text not in _COMPARING:
            return lambda record: field.read(record) not in (_MISSING, None)
        operator = self._next("an operator").text
        return _comparison(field, operator, self._next(f"a value after {operator}"))

    def _takes(self, word: str) -> bool:
        token = self.rest
        if token is None or token.kind != "word" or token.text.lower() != word:
            return False
        self._at += 1
        return True

    def _next(self, wanted: str) -> _Token:
        token = self.rest
        if token is None:
            raise BadFilter(f"the filter is incomplete: {wanted} is missing at its end")
        self._at += 1
        return token


def _field(token: _Token) -> _Field | None:
    """Returns the field that the word names; None if the word is a text to search for."""
    name = re.split(r"[.\[]", token.text, maxsplit=1)[0]
    if name not in _FIELDS:
        return None
    rest = token.text[len(name) :]
    if name == "header":
        header = rest[1:] if rest.startswith(".") else rest.removeprefix('["').removesuffix('"]')
        if not header:
            raise BadFilter("header needs a name, for example header.trace-id")
        return _Field(name, (header,))
    path: list[Step] = []
    at = 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None:
            raise BadFilter(f"the path {token.text!r} cannot be parsed at {rest[at:]!r}")
        index = step["index"]
        path.append(int(index) if index is not None else step["name"] or step["quoted"])
        at = step.end()
    if path and name not in ("key", "value"):
        raise BadFilter(f"{name} has no fields: only key and value can be JSON")
    return _Field(name, tuple(path))


def _comparison(field: _Field, operator: str, token: _Token) -> Test:
    if token.kind == "operator":
        raise BadFilter(
            f"{token.text!r} at character {token.at + 1} is not a value: put text in quotes"
        )
    wanted = _unquoted(token) if token.kind == "text" else _literal(token.text)
    if operator in ("~", "!~"):
        part = str(_unquoted(token)).casefold()

        def contains(record: Candidate) -> bool:
            found = field.read(record)
            return found not in (_MISSING, None) and part in _as_text(found).casefold()

        return contains if operator == "~" else lambda record: not contains(record)
    if operator in ("=", "!="):

        def equals(record: Candidate) -> bool:
            return _equal(field.read(record), wanted)

        return equals if operator == "=" else lambda record: not equals(record)
    return lambda record: _ordered(field.read(record), operator, wanted)


def _equal(found: Any, wanted: Any) -> bool:
    if found is _MISSING:
        return wanted is None
    if isinstance(found, bool) or isinstance(wanted, bool) or wanted is None or found is None:
        return found is wanted or (isinstance(found, str) and found == _as_text(wanted))
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted
    return _as_text(found) == _as_text(wanted)


def _ordered(found: Any, operator: str, wanted: Any) -> bool:
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        number = _number(found)
        return number is not None and _ORDERS[operator](number, wanted)
    if not isinstance(found, str) or not isinstance(wanted, str):
        return False
    return _ORDERS[operator](found, wanted)


_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}


def _number(found: Any) -> int | float | None:
    if isinstance(found, bool) or found in (_MISSING, None):
        return None
    if isinstance(found, int | float):
        return found
    literal = _literal(found) if isinstance(found, str) and len(found) < 40 else None
    return literal if isinstance(literal, int | float) and not isinstance(literal, bool) else None


def _literal(word: str) -> Any:
    if word in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word]
    if re.fullmatch(r"-?\d{1,30}", word, re.ASCII):
        return int(word)
    if re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?([eE][+-]?\d{1,3})?", word, re.ASCII):
        return float(word)
    return word


def _unquoted(token: _Token) -> str:
    if token.kind != "text":
        return token.text
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)


def _occurs(text: str) -> Test:
    part = text.casefold()

    def test(record: Candidate) -> bool:
        texts = [_text(record.key), _text(record.value)]
        for name, value in record.headers:
            texts += [name, _text(value)]
        return any(each is not None and part in each.casefold() for each in texts)

    return test


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _as_text(found: Any) -> str:
    if isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False)


def _walk(data: bytes, path: tuple[Step, ...]) -> Any:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        return _MISSING
    for step in path:
        in_object = isinstance(step, str) and isinstance(found, dict) and step in found
        in_list = isinstance(step, int) and isinstance(found, list) and step < len(found)
        if not in_object and not in_list:
            return _MISSING
        found = found[step]
    return found
