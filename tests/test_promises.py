"""Every promise in docs/PROMISES.md names tests, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "PROMISES.md").read_text()
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_TARGET = re.compile(r"`make ([\w-]+)`")


def promises(text: str) -> list[str]:
    """Returns the rows of tables, without header rows, and the items of lists."""
    found: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = line.startswith("|---") or lines[number + 1 : number + 2] == ["|---|---|---|---|"]
        if line.startswith("- ") or (line.startswith("|") and not is_head):
            found.append(line)
        elif found and line.startswith("  "):
            found[-1] += " " + line.strip()
    return found


def complaints(text: str) -> list[str]:
    found = [f"names no test: {each}" for each in promises(text) if not _NAMED.search(each)]
    for path, name in _NAMED.findall(text):
        file = ROOT / path
        if not file.exists():
            found.append(f"there is no {path}")
        elif name and not re.search(rf"def {name}\b", file.read_text()):
            found.append(f"{path} has no {name}")
    return found


def test_every_promise_names_tests_that_exist() -> None:
    assert complaints(TEXT) == []
    assert len(promises(TEXT)) >= 20


def test_the_make_targets_that_the_promises_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert set(_TARGET.findall(TEXT)) <= targets


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- **It never fails.** Trust us.", "names no test"),
        ("| acks=9 | always | never | hope |", "names no test"),
        ("- Checked by `tests/broker/test_of_nothing.py`.", "there is no"),
        ("- Checked by `tests/test_promises.py::test_of_nothing`.", "has no"),
    ],
)
def test_a_promise_without_a_test_is_found(text: str, complaint: str) -> None:
    assert any(complaint in each for each in complaints(text))
