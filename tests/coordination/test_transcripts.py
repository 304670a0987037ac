"""Plays every scenario of the kernel and compares it with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/coordination/test_transcripts.py` writes what happens into the
scripts; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .transcript import perform

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "coordination").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The kernel does, line by line, what the script says it does."""
    expected = path.read_text("utf-8")
    actual = perform(expected)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


def test_scripts_exist() -> None:
    """A folder that was moved must not look like a suite that passes."""
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_has_effects(path: Path) -> None:
    """A script whose events have no effects shows nothing."""
    head, _, body = path.read_text("utf-8").partition("\n\n")
    assert not any(line.startswith("    ") for line in head.splitlines())
    assert any(line.startswith("    ") for line in body.splitlines())


@pytest.mark.parametrize("line", ["A dances", "append 0 is happy", "x expires soon"])
def test_an_event_that_is_misspelled_fails(line: str) -> None:
    """It must not pass for an event without effects."""
    with pytest.raises(ValueError, match="unknown event"):
        perform(f"Head.\n\n{line}\n")
