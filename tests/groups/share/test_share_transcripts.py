"""Plays every scenario of share groups and compares the result with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/groups/share/test_share_transcripts.py` writes the actual results
into the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.groups import share_admin, share_heartbeats, share_states, share_targets, share_turns
from penstock.groups.effects import InitializeShare
from penstock.groups.shard_state import ShardState
from penstock.groups.share.group import ShareGroup, Turn
from transcripts import altered, check, matches, perform, scripts_in

from .transcript import Player

SCRIPTS = scripts_in("share_groups")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_coordinator_follows_the_transcript(path: Path) -> None:
    check(path, Player)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_consequence_is_found(path: Path) -> None:
    for script in altered(path.read_text("utf-8")):
        assert perform(script, Player) != script


def accepts_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_heartbeats._Heartbeat, "_require_epoch", lambda *given: None)


def does_not_repeat_lost_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_heartbeats._Heartbeat, "_wants_assignment", lambda *given: False)


def refuses_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_heartbeats, "_validate", lambda *given: None)


def has_no_limit_of_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_heartbeats._Heartbeat, "_require_place", lambda *given: None)


def never_ends_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_heartbeats, "on_timer", lambda *given: None)


def assigns_before_it_is_initialized(patch: pytest.MonkeyPatch) -> None:
    def listed(self: ShareGroup, topic_id: bytes) -> frozenset[int]:
        found = self.listed(topic_id)
        return frozenset() if found is None else found.partitions

    patch.setattr(ShareGroup, "initialized", listed)


def begins_all_states_with_one_epoch(patch: pytest.MonkeyPatch) -> None:
    """A late call would undo a later one."""

    def first(partition: Any, epoch: int, start: int) -> InitializeShare:
        return InitializeShare(partition, 1, start)

    patch.setattr(share_states, "InitializeShare", first)


def does_not_repeat_initializations(patch: pytest.MonkeyPatch) -> None:
    """A partition that is listed as initializing stays so."""
    provide = share_states.provide

    def once(shard: ShardState, turn: Turn) -> bool:
        return bool(turn.group.stored.states.initializing) or provide(shard, turn)

    patch.setattr(share_heartbeats, "provide", once)


def repeats_calls_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_states, "_RETRY_MS", 0)


def calls_twice(patch: pytest.MonkeyPatch) -> None:
    """A call is made again while it is under way."""
    patch.setattr(ShareGroup, "is_called", lambda *given: False)


def keeps_states_of_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_states, "forget_topics", lambda *given: None)


def keeps_the_epoch_when_members_leave(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_targets, "raise_epoch", lambda *given, **options: None)


def keeps_what_could_not_be_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_turns, "_roll_back", lambda *given: None)


def alters_offsets_of_groups_with_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_admin, "_require_empty", lambda *given: None)


@pytest.mark.parametrize(
    "plant",
    [
        accepts_any_epoch,
        does_not_repeat_lost_answers,
        refuses_nobody,
        has_no_limit_of_members,
        never_ends_sessions,
        assigns_before_it_is_initialized,
        begins_all_states_with_one_epoch,
        does_not_repeat_initializations,
        repeats_calls_at_once,
        calls_twice,
        keeps_states_of_deleted_topics,
        keeps_the_epoch_when_members_leave,
        keeps_what_could_not_be_stored,
        alters_offsets_of_groups_with_members,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(matches(path, Player) for path in SCRIPTS)


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without consequences."""
    with pytest.raises(AssertionError, match="no such event: anna beat"):
        perform("A misspelled event.\n\nanna beat\n", Player)


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 24
