"""Regular expressions whose matching time grows only linearly with the text.

The pattern comes from an operator, but the text comes from a client. Python's `re` tries the ways
to match one after the other, so a client could choose a text that takes exponential time. This
matcher follows all ways at once: one search takes at most (size of the pattern) x (length of the
text) steps. It prefers the same way that Java's and Python's matchers find first, so its groups are
the same. `Work` limits the steps of all searches for one client together.

Supported is this subset of Java's syntax:

- characters, `\\` before a character that is neither letter nor digit, `\\t` `\\n` `\\r` `\\f`;
- `.`, which does not match the end of a line;
- `\\d` `\\D` `\\s` `\\S` `\\w` `\\W`, for ASCII only, as in Java;
- classes such as `[a-z.]` and `[^,]`;
- groups `(...)` and `(?:...)`, alternatives `a|b`;
- `*` `+` `?` `{2}` `{2,}` `{2,5}`, each also lazy, such as `*?`;
- `^` and `$` for the begin and the end of the text.

All else is refused with `PatternRefused`: references to groups, lookahead, flags, possessive
quantifiers, and the repetition of something that can match nothing, such as `(a*)*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

PROGRAM_SIZE_MAX: Final = 2_000
"""The largest size of a compiled pattern, in steps. `x{50}` counts as 50 `x`."""
PATTERN_CHARS_MAX: Final = 2_000
GROUP_DEPTH_MAX: Final = 20
"""How deep groups may be nested."""
WORK_MAX: Final = 50_000
"""How many steps all searches for one client may take together: a few hundredths of a second."""
_RANGES_PER_STEP: Final = 8
"""How many ranges of a class are compared in the time of one step."""

Spans = tuple[int, ...]
"""Where the groups are: begin and end of group 0 (the whole match), of group 1, and so on. -1 for a
group that did not take part."""

_LINE_ENDS: Final = frozenset("\n\r\x85\u2028\u2029")
_LAST_LINE_ENDS: Final = frozenset([*_LINE_ENDS, "\r\n"])


class PatternRefused(ValueError):
    """The pattern is invalid or uses what this matcher does not support."""


class TooMuchWork(ValueError):
    """The text is too long for these patterns."""


class Work:
    """Counts the steps of all searches that share it."""

    def __init__(self, steps: int = WORK_MAX) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raises `TooMuchWork` if fewer steps are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork("the text takes too long to match: use fewer or simpler patterns")


@dataclass(frozen=True, slots=True)
class _Chars:
    """A set of characters, as ranges."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, char: str) -> bool:
        for low, high in self.ranges:
            if low <= char <= high:
                return not self.negated
        return self.negated


@dataclass(frozen=True, slots=True)
class _Edge:
    """The begin or the end of the text."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    low: int
    high: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class _Group:
    body: _Node
    number: int


_Node = _Chars | _Edge | _Sequence | _Choice | _Repeat | _Group

_RANGES: Final = {
    "d": (("0", "9"),),
    "s": (("\t", "\r"), (" ", " ")),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
}
_CLASSES: Final = {name: _Chars(ranges) for name, ranges in _RANGES.items()} | {
    name.upper(): _Chars(ranges, negated=True) for name, ranges in _RANGES.items()
}
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ANY: Final = _Chars(tuple((end, end) for end in sorted(_LINE_ENDS)), negated=True)


def _can_be_empty(node: _Node) -> bool:
    match node:
        case _Sequence(parts):
            return all(map(_can_be_empty, parts))
        case _Choice(options):
            return any(map(_can_be_empty, options))
        case _Repeat(body, low, _, _):
            return low == 0 or _can_be_empty(body)
        case _Group(body, _):
            return _can_be_empty(body)
    return isinstance(node, _Edge)


class _Parser:
    """Reads a pattern once, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self.groups = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._pattern):
            raise self._refused("a ')' has no '('")
        return node

    def _refused(self, problem: str) -> PatternRefused:
        return PatternRefused(
            f"the pattern {self._pattern!r} is not supported: {problem} (at character {self._at}); "
            "use characters, classes, groups, '|', '*', '+', '?', '{2,5}', '^' and '$'"
        )

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, expected: str) -> bool:
        if self._pattern.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._refused("it ends too early")
        self._at += 1
        return char

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._quantified(self._atom()))
        return _Sequence(tuple(parts))

    def _atom(self) -> _Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _ANY
            case "^" | "$":
                return _Edge(char == "$")
            case "\\":
                found = self._escape()
                return found if isinstance(found, _Chars) else _Chars(((found, found),))
            case "*" | "+" | "?" | "{":
                raise self._refused(f"{char!r} has nothing before it to repeat")
        return _Chars(((char, char),))

    def _group(self) -> _Node:
        number = 0
        if not self._take("?:"):
            if self._peek() == "?":
                raise self._refused("of the groups that begin with '(?', only '(?:' is supported")
            self.groups = number = self.groups + 1
        self._depth += 1
        if self._depth > GROUP_DEPTH_MAX:
            raise self._refused(f"groups are nested more than {GROUP_DEPTH_MAX} deep")
        body = self._choice()
        self._depth -= 1
        if not self._take(")"):
            raise self._refused("a '(' has no ')'")
        return _Group(body, number) if number else body

    def _escape(self) -> _Chars | str:
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char not in _CONTROLS and char.isascii() and char.isalnum():
            raise self._refused(f"'\\{char}'")
        return _CONTROLS.get(char, char)

    def _class(self) -> _Chars:
        negated = self._take("^")
        if self._peek() == "]":
            raise self._refused("a class is empty: write '\\]' for the character")
        ranges: list[tuple[str, str]] = []
        while not self._take("]"):
            low = self._class_char()
            if isinstance(low, _Chars):
                ranges += _positive(low)
            elif self._peek() == "-" and not self._pattern.startswith("-]", self._at):
                self._at += 1
                high = self._class_char()
                if isinstance(high, _Chars) or high < low:
                    raise self._refused("a range in a class has no valid end")
                ranges.append((low, high))
            else:
                ranges.append((low, low))
        return _Chars(tuple(ranges), negated)

    def _class_char(self) -> _Chars | str:
        char = self._next()
        if char == "\\":
            return self._escape()
        if char == "[":
            raise self._refused("'[' in a class: write '\\[' for the character")
        if char == "&" and self._peek() == "&":
            raise self._refused("'&&' in a class")
        return char

    def _quantified(self, body: _Node) -> _Node:
        char = self._peek()
        if char != "{" and char not in _QUANTIFIERS:
            return body
        self._at += 1
        low, high = self._counts() if char == "{" else _QUANTIFIERS[char]
        lazy = self._take("?")
        if self._peek() == "{" or self._peek() in _QUANTIFIERS:
            raise self._refused("two quantifiers in a row")
        if isinstance(body, _Edge) or (high != 1 and _can_be_empty(body)):
            raise self._refused("it repeats something that can match nothing")
        return _Repeat(body, low, high, lazy)

    def _counts(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number()
        if not self._take("}") or (high is not None and high < low):
            raise self._refused("the counts between '{' and '}' are not valid")
        return low, high

    def _number(self) -> int:
        begin = self._at
        while (char := self._peek()) and char in "0123456789":
            self._at += 1
        if not 1 <= self._at - begin <= 5:
            raise self._refused("the counts between '{' and '}' are not valid")
        return int(self._pattern[begin : self._at])


def _positive(chars: _Chars) -> Iterator[tuple[str, str]]:
    """Returns the ranges of a set that may be negated, without negation."""
    if not chars.negated:
        yield from chars.ranges
        return
    code = 0
    for low, high in chars.ranges:
        yield chr(code), chr(ord(low) - 1)
        code = ord(high) + 1
    yield chr(code), chr(0x10FFFF)


class _Kind(Enum):
    CHARS = auto()
    SPLIT = auto()
    SAVE = auto()
    EDGE = auto()
    MATCH = auto()


@dataclass(slots=True)
class _Step:
    """One step of a compiled pattern. `first` is the next step that is preferred, and `second` the
    other one, for SPLIT. `slot` is where SAVE stores the position."""

    kind: _Kind
    chars: _Chars | None = None
    first: int = 0
    second: int = 0
    slot: int = 0
    at_end: bool = False
    cost: int = 1


class _Compiler:
    def __init__(self) -> None:
        self.steps: list[_Step] = []

    def _add(self, step: _Step) -> _Step:
        if len(self.steps) >= PROGRAM_SIZE_MAX:
            raise PatternRefused(
                f"the pattern is larger than {PROGRAM_SIZE_MAX} steps: use smaller counts in "
                "'{' and '}'"
            )
        self.steps.append(step)
        step.first = len(self.steps)
        return step

    def emit(self, node: _Node) -> None:
        match node:
            case _Chars():
                cost = 1 + len(node.ranges) // _RANGES_PER_STEP
                self._add(_Step(_Kind.CHARS, node, cost=cost))
            case _Edge(at_end):
                self._add(_Step(_Kind.EDGE, at_end=at_end))
            case _Sequence(parts):
                for part in parts:
                    self.emit(part)
            case _Group(body, number):
                self._add(_Step(_Kind.SAVE, slot=2 * number))
                self.emit(body)
                self._add(_Step(_Kind.SAVE, slot=2 * number + 1))
            case _Choice(options):
                self._emit_choice(options)
            case _Repeat(body, low, high, lazy):
                for _ in range(low):
                    self.emit(body)
                self._emit_optional(body, None if high is None else high - low, lazy)

    def _emit_choice(self, options: tuple[_Node, ...]) -> None:
        ends: list[_Step] = []
        for option in options[:-1]:
            split = self._add(_Step(_Kind.SPLIT))
            self.emit(option)
            ends.append(self._add(_Step(_Kind.SPLIT)))
            split.second = len(self.steps)
        self.emit(options[-1])
        for end in ends:
            end.first = end.second = len(self.steps)

    def _emit_optional(self, body: _Node, count: int | None, lazy: bool) -> None:
        """Emits `count` optional copies of the body, or for None a loop."""
        splits: list[_Step] = []
        for _ in range(1 if count is None else count):
            begin = len(self.steps)
            splits.append(self._add(_Step(_Kind.SPLIT)))
            self.emit(body)
            if count is None:
                again = self._add(_Step(_Kind.SPLIT))
                again.first = again.second = begin
        for split in splits:
            split.second = len(self.steps)
            if lazy:
                split.first, split.second = split.second, split.first


class Matcher:
    """A compiled pattern.

    Example:
        >>> Matcher("CN=(.*?),.*").full_match("CN=alice,O=Acme")
        (0, 15, 3, 8)
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_CHARS_MAX:
            raise PatternRefused(f"the pattern has more than {PATTERN_CHARS_MAX} characters")
        parser = _Parser(pattern)
        compiler = _Compiler()
        compiler.emit(_Group(parser.parse(), 0))
        self.groups: Final = parser.groups
        """How many groups the pattern has, not counting the whole match."""
        self._steps = (*compiler.steps, _Step(_Kind.MATCH))

    def full_match(self, text: str, work: Work | None = None) -> Spans | None:
        """Returns where the groups are if the whole text matches, otherwise None. Raises
        `TooMuchWork` if that takes more steps than are left in `work`."""
        return _Search(self._steps, self.groups, text, work or Work()).run(0, whole=True)

    def find_all(self, text: str, work: Work | None = None) -> list[Spans]:
        """Returns all matches from left to right that do not overlap, as Java's `find` does. Raises
        `TooMuchWork` if that takes more steps than are left in `work`."""
        search = _Search(self._steps, self.groups, text, work or Work())
        found: list[Spans] = []
        begin = 0
        while begin <= len(text) and (spans := search.run(begin, whole=False)) is not None:
            found.append(spans)
            begin = spans[1] + (spans[0] == spans[1])
        return found


_Saved = tuple[int, int, "_Saved"] | None
"""A slot, the position stored in it, and what was stored before. So SAVE copies nothing."""


class _Search:
    """Searches one text."""

    def __init__(self, steps: tuple[_Step, ...], groups: int, text: str, work: Work) -> None:
        self._steps = steps
        self._slots = 2 * groups + 2
        self._text = text
        self._work = work

    def run(self, begin: int, whole: bool) -> Spans | None:
        """Returns the leftmost match from `begin` on, or only a match up to the end (`whole`)."""
        text, steps = self._text, self._steps
        best: _Saved = None
        threads: dict[int, _Saved] = {}
        seen: set[int] = set()
        for at in range(begin, len(text) + 1):
            if best is None and (at == begin or not whole):
                self._follow(threads, seen, 0, None, at)
            if not threads and (whole or best is not None):
                break
            char = text[at] if at < len(text) else None
            following: dict[int, _Saved] = {}
            seen = set()
            for number, saved in threads.items():
                step = steps[number]
                if step.chars is None:  # a match
                    if char is None or not whole:
                        best = saved
                        break  # the other threads are less preferred
                elif char is not None and char in step.chars:
                    self._follow(following, seen, step.first, saved, at + 1)
            threads = following
        return None if best is None else self._spans(best)

    def _spans(self, saved: _Saved) -> Spans:
        self._work.spend(self._slots)
        spans = [-1] * self._slots
        while saved is not None:
            slot, at, saved = saved
            if spans[slot] < 0:  # the newest position of a slot comes first
                spans[slot] = at
        return tuple(spans)

    def _follow(
        self, threads: dict[int, _Saved], seen: set[int], number: int, saved: _Saved, at: int
    ) -> None:
        """Adds all steps that wait for a character and can be reached from `number`, in the order
        of preference. The dictionary keeps the order. No step is followed twice at one position."""
        stack = [(number, saved)]
        while stack:
            number, saved = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number]
            self._work.spend(step.cost)
            match step.kind:
                case _Kind.CHARS | _Kind.MATCH:
                    threads[number] = saved
                case _Kind.SPLIT:
                    stack.append((step.second, saved))
                    stack.append((step.first, saved))
                case _Kind.SAVE:
                    stack.append((step.first, (step.slot, at, saved)))
                case _Kind.EDGE:
                    if self._is_end(at) if step.at_end else at == 0:
                        stack.append((step.first, saved))

    def _is_end(self, at: int) -> bool:
        """Whether `$` matches here: at the end, or before the last end of a line, as in Java."""
        rest = self._text[at : at + 3]
        if not rest:
            return True
        return rest in _LAST_LINE_ENDS and not (rest == "\n" and self._text[at - 1 : at] == "\r")
