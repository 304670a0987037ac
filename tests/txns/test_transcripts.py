"""Plays every transaction scenario and compares it with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/txns/test_transcripts.py` writes what happens into the scripts;
read the difference before you keep it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .transcript import perform

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "txns").glob("*.txt"))


def check(path: Path) -> None:
    expected = path.read_text("utf-8")
    actual = perform(expected)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The coordinator does, line by line, what the script says it does."""
    check(path)


def test_scripts_exist() -> None:
    """A folder that was moved must not look like a suite that passes."""
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_starts_with_what_it_shows(path: Path) -> None:
    """Two or more sentences, and then an empty line."""
    head, _, body = path.read_text("utf-8").partition("\n\n")
    assert len(re.findall(r"\.(?:\s|$)", head)) >= 2
    assert body
    assert not any(line.startswith("    ") for line in head.split("\n"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_line_fails(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any effect that is changed, missing or added, fails; the rewrite restores the script."""
    text = perform(path.read_text("utf-8"))
    lines = text.split("\n")
    effects = [number for number, line in enumerate(lines) if line.startswith("    ")]
    assert effects
    copy = tmp_path / "copy.txt"
    for number in (effects[0], effects[len(effects) // 2], effects[-1]):
        line = lines[number]
        for changed in ([f"{line}0"], [], [line, line]):
            copy.write_text("\n".join(lines[:number] + changed + lines[number + 1 :]), "utf-8")
            monkeypatch.delenv("PENSTOCK_REWRITE", raising=False)
            with pytest.raises(AssertionError):
                check(copy)
    monkeypatch.setenv("PENSTOCK_REWRITE", "1")
    check(copy)
    assert copy.read_text("utf-8") == text


@pytest.mark.parametrize(
    "line",
    ["P dances", "P inits (vast)", "log sings", "marker of orders-0 melts", "wait a moment"],
)
def test_an_event_that_is_misspelled_fails(line: str) -> None:
    """It must not pass for an event without effects."""
    with pytest.raises((AttributeError, KeyError, ValueError)):
        perform(f"Head.\n\n{line}\n")
