"""Tests the lines of what a driver prints: no secrets, and not too long."""

from __future__ import annotations

import pytest

from penstock.spark.deployments.driver_output import (
    LINE_CHARACTERS_MAX,
    HiddenValues,
    OutputLines,
)

PEM = """-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkq
hkiG9w0BAQEFAASC
BKcw
-----END PRIVATE KEY-----"""


def told_by(values: tuple[str, ...], *parts: bytes) -> list[str]:
    """Returns the lines of what a driver with these secrets has printed, in these parts."""
    told: list[str] = []
    lines = OutputLines(HiddenValues(values), told.extend)
    for part in parts:
        lines.add(part)
    lines.end()
    return told


def test_each_line_of_a_secret_is_hidden() -> None:
    """Lines of less than eight characters are shown: they could be a part of any text."""
    told = told_by((PEM,), f"the key is\n{PEM}\n{PEM!r}\n".encode())
    assert told == ["the key is", "***", "***", "***", "BKcw", "***", "'***'"]
    assert HiddenValues((PEM,)).hide("x MIIEvQIBADANBgkq y") == "x *** y"


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(shift: int) -> None:
    secret = "q1w2e3r4" * 4
    before = "." * (LINE_CHARACTERS_MAX - shift)
    for data in (f"{before}{secret}\n", f"{before}{secret}" + "." * 100_000):
        for size in (len(data), 1000, LINE_CHARACTERS_MAX + 40):
            parts = [data[at : at + size].encode() for at in range(0, len(data), size)]
            assert not [line for line in told_by((secret,), *parts) if set(line) - {".", "*"}]


def test_a_secret_with_other_letters_is_hidden_wherever_it_was_divided() -> None:
    """The bytes of a letter may arrive one after the other."""
    data = "it is größer-als\n".encode()
    told = told_by(("größer-als",), *(data[at : at + 1] for at in range(len(data))))
    assert told == ["it is ***"]


def test_lines_are_cut_and_text_without_an_end_is_shown() -> None:
    assert told_by((), b"x" * 20_000 + b"\ny") == ["x" * LINE_CHARACTERS_MAX, "y"]
    assert told_by((), b"x" * 9_000, b"y\n") == ["x" * LINE_CHARACTERS_MAX, "y"]
