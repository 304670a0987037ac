"""Patterns for transactional ids: a subset of regular expressions that is safe to match."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.txns.patterns import LENGTH_MAX, IdPattern
from penstock.wire.errors import ErrorCode, KafkaError

ATOMS = st.sampled_from(["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c.]", "[b-]", r"[\]x]"])
PIECES = st.tuples(ATOMS, st.sampled_from(["", "", "*", "+", "?"])).map("".join)
BRANCHES = st.lists(PIECES, max_size=5).map("".join)
PATTERNS = st.lists(BRANCHES, min_size=1, max_size=3).map("|".join)


@settings(deadline=None, max_examples=300)
@given(PATTERNS, st.text("abc.-]x", max_size=8))
def test_a_pattern_matches_like_pythons_re(pattern: str, text: str) -> None:
    """The whole text must match."""
    assert IdPattern(pattern).matches(text) == (re.fullmatch(pattern, text) is not None)


def test_matching_time_is_bounded() -> None:
    """This pattern would keep a backtracking engine busy forever."""
    pattern = IdPattern(".*" * 100 + "b")
    assert not pattern.matches("a" * 200)
    assert pattern.matches("a" * 200 + "b")


@pytest.mark.parametrize(
    "pattern", ["(a)", "a{2}", "^a", "a$", "*", "a**", "[", "[a", "[]", "a\\", r"\d", "[a-", "x]"]
)
def test_unsupported_patterns_are_refused(pattern: str) -> None:
    """With INVALID_REGULAR_EXPRESSION and the reason."""
    with pytest.raises(KafkaError, match="cannot be read") as refused:
        IdPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_the_length_of_a_pattern_is_limited() -> None:
    """The time to match grows with every character of it."""
    IdPattern("a" * LENGTH_MAX)
    with pytest.raises(KafkaError):
        IdPattern("a" * (LENGTH_MAX + 1))
