"""Every replication scenario, played and compared with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/partition/test_transcripts.py` writes what happens into the
scripts; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import test_replication_walk as walk
from . import transcript_cluster
from .transcript import perform

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "replication").glob("*.txt"))
EFFECT = "    "


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """Leaders and followers do, line by line, what the script says they do."""
    expected = path.read_text("utf-8")
    actual = perform(expected)
    if os.environ.get("PENSTOCK_REWRITE") == "1":
        path.write_text(actual, "utf-8")
        return
    assert actual == expected


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_effect_is_found(path: Path) -> None:
    """Whichever effect is changed, left out or added: the script no longer matches."""
    lines = path.read_text("utf-8").split("\n")
    effects = [number for number, line in enumerate(lines) if line.startswith(EFFECT)]
    assert effects
    for number in (effects[0], effects[len(effects) // 2], effects[-1]):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        for changed in ([f"{line} indeed"], [], [line, line]):
            script = "\n".join([*before, *changed, *after])
            assert perform(script) != script


@pytest.mark.parametrize(
    ("machine", "bug"),
    [
        ("Leadership", walk.CommittedSetOnly),
        ("Leadership", walk.NoMinimum),
        ("Leadership", walk.EligibleIgnored),
        ("Leadership", walk.JoinsBelowHighWatermark),
        ("Leadership", walk.JoinsBelowTerm),
        ("Leadership", walk.NoBrokerEpochs),
        ("Leadership", walk.ForgetsUnknownOutcomes),
        ("Follower", walk.OneRound),
        ("Follower", walk.TakesLateAnswers),
    ],
)
def test_a_planted_bug_is_found(machine: str, bug: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of these rules, some script does not match or cannot be played."""
    monkeypatch.setattr(transcript_cluster, machine, bug)
    assert not all(matches(path.read_text("utf-8")) for path in SCRIPTS)


def matches(script: str) -> bool:
    try:
        return perform(script) == script
    except AssertionError:
        return False


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without effects."""
    with pytest.raises(AssertionError, match="no such event: 1 flashes"):
        perform("A misspelled event.\n\nreplicas 1, min.insync 1, durability fsync\n1 flashes")


def test_scripts_exist() -> None:
    """A folder that moved must not pass for a suite that passes."""
    assert len(SCRIPTS) >= 38
