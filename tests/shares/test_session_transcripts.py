"""Plays every scenario of share sessions and compares the result with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/shares/test_session_transcripts.py` writes the actual results into
the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.shares import sessions
from penstock.shares.sessions import ReleaseRecords, ShareSessions
from transcripts import altered, check, matches, perform, scripts_in

from .session_transcript import Player

SCRIPTS = scripts_in("share_sessions")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_sessions_follow_the_transcript(path: Path) -> None:
    check(path, Player)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_effect_is_found(path: Path) -> None:
    for script in altered(path.read_text("utf-8")):
        assert perform(script, Player) != script


def accepts_any_epoch(patch: pytest.MonkeyPatch) -> None:
    take = ShareSessions._next

    def lenient(self: ShareSessions, key: Any, epoch: int) -> Any:
        session = self._sessions.get(key)
        return take(self, key, epoch if session is None else session.epoch)

    patch.setattr(ShareSessions, "_next", lenient)


def releases_nothing(patch: pytest.MonkeyPatch) -> None:
    end = ShareSessions._end

    def silent(self: ShareSessions, key: Any, *, with_backoff: bool) -> Any:
        effects = end(self, key, with_backoff=with_backoff)
        return [each for each in effects if not isinstance(each, ReleaseRecords)]

    patch.setattr(ShareSessions, "_end", silent)


def ends_new_sessions_with_old_connections(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareSessions, "_forget_connection", lambda *given: None)


def does_not_rotate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "_rotated", lambda partitions, epoch: tuple(partitions))


@pytest.mark.parametrize(
    "plant",
    [
        accepts_any_epoch,
        releases_nothing,
        ends_new_sessions_with_old_connections,
        does_not_rotate,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(matches(path, Player) for path in SCRIPTS)


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without effects."""
    with pytest.raises(AssertionError, match="no such event: anna fetch epoch 0"):
        perform("A misspelled event.\n\nanna fetch epoch 0\n", Player)


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 6
