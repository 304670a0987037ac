"""The partition machine, played from scripts and compared with its transcripts.

`PENSTOCK_REWRITE=1 pytest tests/partition/test_machine.py` writes what happens into the scripts;
read the difference before you keep it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.partition.decisions import Append, Refuse
from penstock.partition.leadership import Leadership
from penstock.partition.machine import PartitionMachine
from penstock.partition.retry_window import RetryWindow
from penstock.records.batch import BatchHeader
from penstock.wire.errors import ErrorCode

from .machine_transcript import Player, perform

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "partition").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The machine decides, line by line, what the script says."""
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
    effects = [number for number, line in enumerate(lines) if line.startswith("    ")]
    assert effects
    for number in (effects[0], effects[len(effects) // 2], effects[-1]):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        for changed in ([f"{line} indeed"], [], [line, line]):
            script = "\n".join([*before, *changed, *after])
            assert perform(script) != script


def begins_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leadership begins before its epoch is synced."""
    lead = PartitionMachine.lead

    def hasty(self: PartitionMachine[Any], *given: Any) -> Any:
        effects = lead(self, *given)
        return [*effects, *self._begin(self._beginning)] if self._beginning else effects

    patch.setattr(PartitionMachine, "lead", hasty)


def counts_unsynced(patch: pytest.MonkeyPatch) -> None:
    """Records count when they are written, although the topic has durability=fsync."""
    patch.setattr(PartitionMachine, "counted_end", property(lambda self: self._log.end_offset))


def forgets_refusals(patch: pytest.MonkeyPatch) -> None:
    """A batch may overtake one that was refused for the moment."""
    patch.setattr(RetryWindow, "holds_back", lambda *given: False)


def takes_transactions_on_trust(patch: pytest.MonkeyPatch) -> None:
    """The first batch of a transaction is not verified."""
    in_sequence = PartitionMachine._in_sequence

    def trusting(
        self: PartitionMachine[Any], header: BatchHeader, held: Leadership, *given: Any
    ) -> Any:
        plain = header._replace(attributes=0)
        return in_sequence(self, plain, held, given[0], None)

    patch.setattr(PartitionMachine, "_in_sequence", trusting)


def drops_waits_when_the_role_ends(patch: pytest.MonkeyPatch) -> None:
    """Requests that wait are never answered if the broker resigns."""
    resign = PartitionMachine.resign

    def silent(self: PartitionMachine[Any], *given: Any) -> Any:
        self._waiting.clear()
        self._waiting_for_own_disk.clear()
        return resign(self, *given)

    patch.setattr(PartitionMachine, "resign", silent)


def fails_waits_when_leading_again(patch: pytest.MonkeyPatch) -> None:
    """A new leadership of the same broker fails requests whose batches are still in its log."""
    lead = PartitionMachine.lead

    def eager(self: PartitionMachine[Any], *given: Any) -> Any:
        return [*self.resign(), *lead(self, *given)] if self.leadership else lead(self, *given)

    patch.setattr(PartitionMachine, "lead", eager)


def keeps_the_high_watermark_above_the_log(patch: pytest.MonkeyPatch) -> None:
    """A high watermark above the end of the log survives a change of roles."""

    def leave(self: PartitionMachine[Any]) -> None:
        self._restored_high_watermark = self.high_watermark + 1
        self.leadership = self.follower = self._beginning = None

    patch.setattr(PartitionMachine, "_leave_role", leave)


def acks_one_waits_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """A request with acks=1 is answered before the leader's flush."""
    patch.setattr(PartitionMachine, "wait_for_own_disk", lambda *given: ErrorCode.NONE)


@pytest.mark.parametrize(
    "plant",
    [
        begins_at_once,
        counts_unsynced,
        forgets_refusals,
        takes_transactions_on_trust,
        drops_waits_when_the_role_ends,
        fails_waits_when_leading_again,
        keeps_the_high_watermark_above_the_log,
        acks_one_waits_for_nothing,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any one of these rules, some script does not match or cannot be played."""
    plant(monkeypatch)
    assert not all(matches(path.read_text("utf-8")) for path in SCRIPTS)


def matches(script: str) -> bool:
    try:
        return perform(script) == script
    except AssertionError:
        return False


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without effects."""
    with pytest.raises(AssertionError, match="no such event: flashed"):
        perform("A misspelled event.\n\nflashed\n")


def test_scripts_exist() -> None:
    """A folder that moved must not pass for a suite that passes."""
    assert len(SCRIPTS) >= 17


def state_of(player: Player) -> dict[str, object]:
    """Everything that an append could change, except the retry window and the guards."""
    it, log = player.it, player.log
    held = it.leadership
    return {
        "high watermark": it.high_watermark,
        "last stable offset": it.last_stable_offset,
        "counted end": it.counted_end,
        "waits": ([*it._waiting], [*it._waiting_for_own_disk]),
        "role": (held, held and (held.isr, held.partition_epoch), it.follower, it.is_beginning),
        "producers": log.producers.entries(5),
        "log": (log.end_offset, log.recovery_point, log.epochs.entries, log.needs_flush),
    }


@pytest.mark.parametrize(
    "line",
    [
        "append 1, producer 7 sequence 9",
        "append 1, producer 7 sequence 0 epoch 0",
        "append 1, producer 9 sequence 4",
        "append 1, producer 8 sequence 0, transactional",
        "append 3, producer 7 sequence 0",
    ],
    ids=["out of order", "overlaps", "unknown producer", "to be verified", "duplicate"],
)
def test_a_batch_that_is_not_appended_changes_only_the_retry_window_and_guards(line: str) -> None:
    """The machine's docstring promises this, and that asking again gives the same answer."""
    player = Player()
    for event in (
        "replicas 1 2, isr 1 2, min.insync 1, durability fsync",
        "lead epoch 5",
        "flushed",
        "append 3, producer 7 sequence 0",
        "request a waits for 3",
    ):
        player.play(event)
    before = state_of(player)
    first = player.play(line)
    assert not first[0].startswith("append")
    assert state_of(player) == before
    assert player.play(line) == first
    assert state_of(player) == before


def test_accepted_batches_of_a_leadership_share_one_decision() -> None:
    """No object is created for a batch that is accepted."""
    player = Player()
    player.play("replicas 1, isr 1, min.insync 1, durability fsync")
    player.play("lead epoch 0")
    header = BatchHeader(0, 0, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    assert player.it.append(header, 0) is player.it.append(header, 0)
    assert player.it.append(header, 0) == Append(0)
    player.play("resign")
    assert isinstance(player.it.append(header, 0), Refuse)
