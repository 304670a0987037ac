"""Plays every scenario of the share coordinator and compares the result with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/shares/test_state_transcripts.py` writes the actual results into
the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.shares import state_requests, state_shard
from penstock.shares.formats import Snapshot
from penstock.shares.image import ShareImage
from penstock.shares.state_port import CallOrder
from penstock.shares.state_requests import Initialize, Known, Write
from penstock.shares.state_shard import ShareShard
from penstock.shares.stored_states import StoredState, StoredStates
from penstock.wire.errors import ErrorCode
from transcripts import altered, check, matches, perform, scripts_in

from .state_transcript import Player

SCRIPTS = scripts_in("share_state")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_share_coordinator_follows_the_transcript(path: Path) -> None:
    check(path, Player)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_consequence_is_found(path: Path) -> None:
    for script in altered(path.read_text("utf-8")):
        assert perform(script, Player) != script


def decides(patch: pytest.MonkeyPatch, believed: Callable[[Any, Known], Known | None]) -> None:
    """Lets the coordinator believe something else about a state than what is stored."""
    content_of = state_requests.content_of

    def mistaken(change: Any, known: Known | None, wall_ms: int) -> Any:
        return content_of(change, None if known is None else believed(change, known), wall_ms)

    patch.setattr(state_shard, "content_of", mistaken)


def forgets_leader_epochs(patch: pytest.MonkeyPatch) -> None:
    decides(patch, lambda change, known: known._replace(leader_epoch=-1))


def forgets_reads(patch: pytest.MonkeyPatch) -> None:
    """A write need not name the last read."""

    def believed(change: Any, known: Known) -> Known:
        return known._replace(read_offset=getattr(change, "read_offset", known.read_offset))

    decides(patch, believed)


def forgets_state_epochs(patch: pytest.MonkeyPatch) -> None:
    """A write may be of an earlier state."""

    def believed(change: Any, known: Known) -> Known:
        is_write = isinstance(change, Write)
        return known._replace(state_epoch=change.delta.state_epoch) if is_write else known

    decides(patch, believed)


def forgets_the_order_of_calls(patch: pytest.MonkeyPatch) -> None:
    decides(patch, lambda change, known: known._replace(order=CallOrder()))


def begins_states_again(patch: pytest.MonkeyPatch) -> None:
    """Every initialization begins a new state."""
    decides(patch, lambda change, known: None if isinstance(change, Initialize) else known)


def forgets_deletions(patch: pytest.MonkeyPatch) -> None:
    """A deletion leaves nothing that refuses late calls."""
    patch.setattr(state_requests, "_deleted", lambda change, known, wall_ms: (None, None))


def removes_markers_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_shard, "_MARKER_MS", -1)


def keeps_markers_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_shard, "_MARKER_MS", 1 << 60)


def stores_failed_appends(patch: pytest.MonkeyPatch) -> None:
    def failed(self: ShareShard, append_id: int, error: ErrorCode, now: Any) -> Any:
        return self.on_committed(append_id, now)

    patch.setattr(ShareShard, "on_append_failed", failed)


def lets_requests_wait_behind_late_appends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareShard, "_refuse_waiting", lambda self, code: None)


def writes_no_snapshots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareShard, "_due_snapshots", lambda *given: [])


def writes_snapshots_without_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredState, "snapshot", lambda self: Snapshot(self.image))


def forgets_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareImage, "apply", lambda *given: None)


def trims_too_much(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredStates, "needed_from", lambda self, end_offset: end_offset)


def forgets_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareShard, "on_timer", lambda *given: [])


@pytest.mark.parametrize(
    "plant",
    [
        forgets_leader_epochs,
        forgets_reads,
        forgets_state_epochs,
        forgets_the_order_of_calls,
        begins_states_again,
        forgets_deletions,
        removes_markers_at_once,
        keeps_markers_for_ever,
        stores_failed_appends,
        lets_requests_wait_behind_late_appends,
        writes_no_snapshots,
        writes_snapshots_without_fences,
        forgets_updates,
        trims_too_much,
        forgets_deleted_topics,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(matches(path, Player) for path in SCRIPTS)


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without consequences."""
    with pytest.raises(AssertionError, match="no such event: anna read jobs-0"):
        perform("A misspelled event.\n\nanna read jobs-0\n", Player)


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 18
