"""Which names a user may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.exchange import NAME_BYTES_MAX
from penstock.security.user_names import name_problem


@pytest.mark.parametrize(
    "name",
    [
        *("alice", "zoë", "王", "a b", "a,b=c", "CN=broker 1,O=Example", "User:alice"),
        *("anonymous", "**", "a*", "ANONYMOUS1", "x" * NAME_BYTES_MAX),
    ],
)
def test_these_names_are_allowed(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        ("*", "every user"),
        ("ANONYMOUS", "not authenticated"),
        (" alice", "white space"),
        ("alice ", "white space"),
        (" ", "white space"),
        ("a\nb", "printed"),
        ("alice\n", "printed"),
        ("alice\u00a0", "printed"),
        ("a\0b", "printed"),
        ("\x1b[2Jalice", "printed"),
        ("alice\u202egro", "printed"),
        ("ali\u200bce", "printed"),
        ("\ud800", "printed"),
        ("x" * (NAME_BYTES_MAX + 1), "256 bytes"),
        ("é" * 128, "256 bytes"),
    ],
)
def test_these_names_are_refused(name: str, problem: str) -> None:
    assert problem in (name_problem(name) or "")


@given(st.text())
def test_an_allowed_name_can_be_logged_and_stored(name: str) -> None:
    problem = name_problem(name)
    if problem is None:
        assert name.isprintable()
        assert name == name.strip() != ""
        assert 1 <= len(name.encode()) <= NAME_BYTES_MAX
    else:
        assert problem.isprintable(), "it has nothing of the name"
