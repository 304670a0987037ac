"""Simulates leaders of a share partition that crash, and writes that are lost and reordered.

`failover_world` has the rules. Each planted bug must be found: a check that never fails proves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from penstock.coordination.effects import Now, Token
from penstock.shares import share_partition
from penstock.shares.decisions import Decision
from penstock.shares.events import Acknowledged, TimerFired, WriteFailed
from penstock.shares.image import Delta, ShareImage
from penstock.shares.share_partition import SharePartition
from penstock.shares.spans import Span
from penstock.shares.states import DONE, RecordState
from penstock.wire.errors import ErrorCode

from .failover_world import FailoverWorld, Leader, RuleBroken, ShareCoordinator

SEEDS = 400
BUG_SEEDS = 600

Patch = pytest.MonkeyPatch


def test_leaders_crash_and_no_record_is_lost_or_acknowledged_twice() -> None:
    """In many seeds, and everything that can happen does happen."""
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        world = FailoverWorld(seed)
        world.run()
        for name, times in world.counts.items():
            counts[name] = counts.get(name, 0) + times
    for name in (
        *("deliveries", "elections", "crashes", "leaders_refused", "messages_lost", "loads_again"),
        *("writes_repeated", "writes_failed", "acknowledged_none"),
        *("acknowledged_invalid_record_state", "acknowledged_not_enough_replicas"),
    ):
        assert counts.get(name), f"{name} did not happen: {counts}"


# Planted bugs


def _deposed_leaders_write(patch: Patch) -> None:
    """The share coordinator takes writes of a leader that was replaced."""
    patch.setattr(ShareCoordinator, "knows", lambda self, leader_epoch, load: True)


def _repeated_writes_apply_again(patch: Patch) -> None:
    """A write that was sent twice takes effect twice, perhaps after later ones."""
    patch.setattr(ShareCoordinator, "is_stored", lambda self, write_id: False)


def _timeouts_taken_for_failures(patch: Patch) -> None:
    """A write without an answer is reported as failed, and still arrives."""

    def give_up(self: FailoverWorld, leader: Leader) -> None:
        write_id = self.random.choice([*leader.writes])
        del leader.writes[write_id]
        self.handle(leader, WriteFailed(write_id, ErrorCode.REQUEST_TIMED_OUT))

    patch.setattr(FailoverWorld, "on_timeout", give_up)


def _confirmed_before_it_is_stored(patch: Patch) -> None:
    """A member is told that its acknowledgement is stored when that has only begun."""
    write = SharePartition._write

    def hasty(
        self: SharePartition,
        decided: list[tuple[Span, Decision]],
        now: Now,
        token: Token | None = None,
    ) -> None:
        write(self, decided, now)
        if token is not None:
            self._effects.append(Acknowledged(token, ErrorCode.NONE))

    patch.setattr(SharePartition, "_write", hasty)


def _locks_end_early(patch: Patch) -> None:
    """Any timer ends all locks."""
    fire = SharePartition._on_timer

    def early(self: SharePartition, event: TimerFired, now: Now) -> None:
        for span in self._table.spans:
            if span.state is RecordState.ACQUIRED:
                span.lock_until_ms = now.ticks_ms
        fire(self, event, now)

    patch.setitem(share_partition._HANDLERS, TimerFired, early)


def _anyone_acknowledges(patch: Patch) -> None:
    """A member may acknowledge what another one has."""

    def held(self: Span, member_id: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.change is None

    patch.setattr(Span, "is_held_by", held)


def _delivered_while_a_decision_is_stored(patch: Patch) -> None:
    """A record is available as soon as its release is decided."""
    write = SharePartition._write

    def at_once(
        self: SharePartition,
        decided: list[tuple[Span, Decision]],
        now: Now,
        token: Token | None = None,
    ) -> None:
        write(self, decided, now, token)
        for span, decision in decided:
            if decision.state is RecordState.AVAILABLE:
                span.state, span.owner, span.change = RecordState.AVAILABLE, None, None

    patch.setattr(SharePartition, "_write", at_once)


def _acknowledgements_lost_by_a_new_leader(patch: Patch) -> None:
    """The image does not keep what is done, only where the window starts."""
    apply = ShareImage.apply

    def forgetful(self: ShareImage, delta: Delta) -> None:
        kept = tuple(span for span in delta.spans if span.state not in DONE)
        apply(self, delta._replace(spans=kept))

    patch.setattr(ShareImage, "apply", forgetful)


def _start_moves_past_what_is_not_done(patch: Patch) -> None:
    """A delta stores the end of the window as its start."""
    delta_of = SharePartition._delta

    def ahead(self: SharePartition, spans: Iterable[object]) -> Delta:
        delta = delta_of(self, spans)  # type: ignore[arg-type]
        return delta._replace(start_offset=delta.end_offset)

    patch.setattr(SharePartition, "_delta", ahead)


def _locks_forgotten_by_a_load(patch: Patch) -> None:
    """A leader that loads its state again forgets which member has which record."""
    patch.setattr(SharePartition, "put_back", lambda self, locks: None)


BUGS: tuple[Callable[[Patch], None], ...] = (
    _deposed_leaders_write,
    _repeated_writes_apply_again,
    _timeouts_taken_for_failures,
    _confirmed_before_it_is_stored,
    _locks_end_early,
    _anyone_acknowledges,
    _delivered_while_a_decision_is_stored,
    _acknowledgements_lost_by_a_new_leader,
    _start_moves_past_what_is_not_done,
    _locks_forgotten_by_a_load,
)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_breaks_a_rule(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Within the number of seeds that run clean without it."""
    plant(monkeypatch)
    for seed in range(BUG_SEEDS):
        try:
            FailoverWorld(seed).run()
        except RuleBroken:
            return
    pytest.fail(f"{plant.__doc__} was not found in {BUG_SEEDS} seeds")
