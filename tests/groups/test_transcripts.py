"""Every group scenario, played and compared with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/groups/test_transcripts.py` writes what happens into the scripts;
read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .transcript import perform

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The coordinator does, line by line, what the script says it does."""
    expected = path.read_text("utf-8")
    actual = perform(expected)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


def test_scripts_exist() -> None:
    """A folder that moved must not pass for a suite that passes."""
    assert len(SCRIPTS) >= 22
