"""Plays every scenario of the new group protocol and compares the result with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/groups/consumer/test_transcripts.py` writes the actual results into
the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .transcript import perform

SCRIPTS = sorted((Path(__file__).parents[2] / "scripts" / "consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_coordinator_follows_the_transcript(path: Path) -> None:
    expected = path.read_text("utf-8")
    actual = perform(expected)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 14
