"""Plays every scenario of a group that changes its protocol, and compares it with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/groups/consumer/test_migration_transcripts.py` writes the actual
results into the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.groups import (
    classic_members,
    consumer_heartbeats,
    consumer_migration,
    consumer_targets,
    consumer_timers,
    consumer_turns,
)
from penstock.groups.config import MigrationPolicy
from penstock.groups.consumer.embedded_protocol import (
    Assignment,
    read_assignment,
    write_assignment,
)
from transcripts import altered, check, matches, perform, scripts_in

from .migration_transcript import Player

SCRIPTS = scripts_in("group_migration")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_coordinator_follows_the_transcript(path: Path) -> None:
    check(path, Player)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_consequence_is_found(path: Path) -> None:
    for script in altered(path.read_text("utf-8")):
        assert perform(script, Player) != script


def ignores_the_policy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MigrationPolicy, "upgrades", property(lambda self: True))


def always_downgrades(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MigrationPolicy, "downgrades", property(lambda self: True))


def never_downgrades(patch: pytest.MonkeyPatch) -> None:
    for module in (classic_members, consumer_targets, consumer_turns):
        patch.setattr(module, "downgrade_is_due", lambda *given: False)


def upgrades_groups_with_an_assignor_of_their_own(patch: pytest.MonkeyPatch) -> None:
    def read(*given: Any) -> Assignment:
        return read_assignment(*given)._replace(has_user_data=False)

    patch.setattr(consumer_migration, "read_assignment", read)


def upgrades_without_assignments(patch: pytest.MonkeyPatch) -> None:
    """Partitions that are being read get a second owner."""
    imported = consumer_migration._imported

    def without(*given: Any) -> Any:
        return imported(*given)[0], Assignment(frozenset(), False)

    patch.setattr(consumer_migration, "_imported", without)


def leaves_members_waiting(patch: pytest.MonkeyPatch) -> None:
    """A join that waits when the group is upgraded is never answered."""
    patch.setattr(consumer_migration, "evict_parked", lambda *given: None)


def downgrades_with_another_generation(patch: pytest.MonkeyPatch) -> None:
    """Members would be told that their generation is unknown, and drop their partitions."""
    exported = consumer_migration._exported

    def ahead(*given: Any) -> Any:
        value = exported(*given)
        value.generation += 1
        return value

    patch.setattr(consumer_migration, "_exported", ahead)


def forgets_what_is_being_given_up(patch: pytest.MonkeyPatch) -> None:
    """A downgraded group does not know all that its members still read."""
    patch.setattr(
        consumer_migration, "write_assignment", lambda owned, *rest: write_assignment((), *rest)
    )


def accepts_any_generation(patch: pytest.MonkeyPatch) -> None:
    require_member = classic_members._require_member

    def require(group: Any, member_id: str, instance_id: str | None, generation: int) -> Any:
        return require_member(group, member_id, instance_id, group.current(member_id).epoch)

    patch.setattr(classic_members, "_require_member", require)


def accepts_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer_heartbeats._Call, "_require_epoch", lambda *given: None)


def accepts_any_protocol(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_members._Join, "_require_protocols", lambda *given: None)


def does_not_call_members_back(patch: pytest.MonkeyPatch) -> None:
    """Classic members are not told to join again."""
    patch.setattr(classic_members, "_must_rejoin", lambda *given: False)


def waits_for_a_sync_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer_timers, "expect_sync", lambda *given: None)


def waits_for_a_rejoin_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer_timers, "expect_rejoin", lambda *given: None)


@pytest.mark.parametrize(
    "plant",
    [
        ignores_the_policy,
        always_downgrades,
        never_downgrades,
        upgrades_groups_with_an_assignor_of_their_own,
        upgrades_without_assignments,
        leaves_members_waiting,
        downgrades_with_another_generation,
        forgets_what_is_being_given_up,
        accepts_any_generation,
        accepts_any_epoch,
        accepts_any_protocol,
        does_not_call_members_back,
        waits_for_a_sync_for_ever,
        waits_for_a_rejoin_for_ever,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(matches(path, Player) for path in SCRIPTS)


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without consequences."""
    with pytest.raises(AssertionError, match="no such event: x join"):
        perform("A misspelled event.\n\nx join\n", Player)


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 29
