"""Regular expressions in linear time: the same answers as `re` on the supported subset."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.linear_matcher import (
    GROUP_DEPTH_MAX,
    PATTERN_CHARS_MAX,
    WORK_MAX,
    Matcher,
    PatternRefused,
    TooMuchWork,
    Work,
)

ATOM_LIST = r"a b c . \. \d \D \w \W \s \S [ab] [^a] [a-c] [\d.] [^\Wb] [-a] [a-] [\]a] = , ^ $ } ]"
ATOMS = st.sampled_from(ATOM_LIST.split())
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "*?", "+?", "??"])
TEXTS = st.text("abc1.,= -]}é", max_size=12)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        inner.map("(?:{})".format),
        st.tuples(inner, QUANTIFIERS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(ATOMS, QUANTIFIERS).map("".join),
    )


PATTERNS = st.recursive(ATOMS, _compound, max_leaves=8)


def _compiled(pattern: str) -> Matcher | None:
    try:
        return Matcher(pattern)
    except PatternRefused as error:
        assert "can match nothing" in str(error) or "larger than" in str(error)
        return None


def _spans(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(end for group in range(found.re.groups + 1) for end in found.span(group))


@settings(max_examples=400, deadline=None)
@given(PATTERNS, TEXTS)
def test_whole_matches_are_those_of_re(pattern: str, text: str) -> None:
    matcher = _compiled(pattern)
    if matcher is None:
        return
    expected = re.compile(pattern, re.ASCII).fullmatch(text)
    assert matcher.full_match(text) == (expected and _spans(expected))


@settings(max_examples=400, deadline=None)
@given(PATTERNS, TEXTS)
def test_the_matches_found_are_those_of_re(pattern: str, text: str) -> None:
    """`re` may find an empty match and then a longer one at the same place. Java does not, so only
    the first match is compared if any match is empty."""
    matcher = _compiled(pattern)
    if matcher is None:
        return
    expected = [_spans(each) for each in re.compile(pattern, re.ASCII).finditer(text)]
    found = matcher.find_all(text)
    if any(begin == end for begin, end, *_ in expected):
        expected, found = expected[:1], found[:1]
    assert found == expected


@pytest.mark.parametrize(
    ("pattern", "text", "spans"),
    [
        ("CN=(.*?),OU=(.*?),.*", "CN=a,OU=b,OU=c,C=d", (0, 18, 3, 4, 8, 9)),
        ("(a|ab)(c|bcd)(d*)", "abcd", (0, 4, 0, 1, 1, 4, 4, 4)),
        ("(a)|(b)", "b", (0, 1, -1, -1, 0, 1)),
        ("(?:(a)|b)*", "ab", (0, 2, 0, 1)),
        ("a{2,3}", "aaaa", None),
        ("", "", (0, 0)),
        ("", "a", None),
        (r"\w+", "é", None),
        ("日.", "日本", (0, 2)),
    ],
)
def test_groups_are_where_java_finds_them(
    pattern: str, text: str, spans: tuple[int, ...] | None
) -> None:
    assert Matcher(pattern).full_match(text) == spans


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_a_dot_does_not_match_the_end_of_a_line(end: str) -> None:
    """A client cannot hide part of its name behind a line end."""
    assert Matcher("CN=.*").full_match(f"CN=a{end}b") is None
    assert Matcher("CN=[^,]*").full_match(f"CN=a{end}b") is not None


@pytest.mark.parametrize(
    ("text", "ends"), [("a\n", 2), ("a\r\n", 2), ("a\n\n", 2), ("a", 1), ("a\r\nb", 1)]
)
def test_the_dollar_matches_where_java_matches_it(text: str, ends: int) -> None:
    """At the end, and before the last line end, but not between its two characters."""
    assert len(Matcher("$").find_all(text)) == ends


def test_a_match_after_an_empty_one_begins_one_character_later() -> None:
    """As in Java, where replacing all `.*` replaces twice: the text, and the nothing after it."""
    assert Matcher(".*").find_all("ab") == [(0, 2), (2, 2)]
    assert Matcher("b*?").find_all("ab") == [(0, 0), (1, 1), (2, 2)]


REFUSED = (
    r"(a a) [a [] [a&&b] [[a]] [b-a] [a-\d] * a** a*+ a{ a{,2} a{3,2} a{999999} (?=a) (?i)a "
    r"(?<n>a) (a)\1 \p{L} \b \Qa\E \\\ (a*)* (a|b*)+ (?:a?){2} ^* $? (a{99}){99}"
)


@pytest.mark.parametrize(
    "pattern",
    [
        *REFUSED.split(),
        "a" * (PATTERN_CHARS_MAX + 1),
        "(" * (GROUP_DEPTH_MAX + 1) + ")" * (GROUP_DEPTH_MAX + 1),
    ],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        Matcher(pattern)


class _Counting(str):
    """A text that counts how often a character is read."""

    reads = 0

    def __getitem__(self, index: Any) -> str:
        if isinstance(index, int):
            _Counting.reads += 1
        return super().__getitem__(index)


def test_patterns_that_backtrack_badly_elsewhere_read_each_character_once() -> None:
    """`re` takes 2^500 steps here."""
    text = _Counting("a" * 500 + "!")
    assert Matcher("(a|a|aa)+b").full_match(text) is None
    assert _Counting.reads <= len(text)


def test_too_much_work_is_an_error_and_not_a_long_wait() -> None:
    matcher = Matcher("(?:a|b|c|d|e|f){100}")
    with pytest.raises(TooMuchWork, match="simpler patterns"):
        matcher.find_all("a" * WORK_MAX)


def _steps(pattern: str, text: str) -> int:
    work = Work()
    Matcher(pattern).full_match(text, work)
    return WORK_MAX - work.left


def test_searches_that_share_their_work_stop_together() -> None:
    matcher, text = Matcher("(.*?),(.*?),x"), "a,b," * 100
    steps = _steps("(.*?),(.*?),x", text)
    work = Work(2 * steps)
    assert matcher.full_match(text, work) is None
    assert matcher.full_match(text, work) is None
    assert work.left == 0
    with pytest.raises(TooMuchWork):
        matcher.find_all(text, work)


def test_groups_that_the_text_does_not_reach_cost_nothing() -> None:
    """To store a position takes one step, however many groups the pattern has."""
    unused = "".join(f"|b{number}(c)" for number in range(100))
    text = "a" * 500
    assert _steps(f"(?:(a))*x{unused}", text) <= _steps("(?:(a))*x", text) + 2 * 100


def test_a_match_costs_as_much_as_it_has_groups() -> None:
    """So many short matches of a pattern with many groups are limited, too."""
    work = Work()
    Matcher("a(?:x" + "(b)" * 100 + ")?").find_all("a" * 100, work)
    assert WORK_MAX - work.left >= 100 * 2 * 101


def test_a_class_with_many_ranges_costs_more() -> None:
    wide = "".join(f"{chr(code)}" for code in range(0x100, 0x100 + 2 * 80, 2))
    assert _steps(f"[{wide}a]*", "a" * 100) >= _steps("[a]*", "a" * 100) + 10 * 100
