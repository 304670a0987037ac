"""Plays every scenario of a share partition and compares the result with its transcript.

`PENSTOCK_REWRITE=1 pytest tests/shares/test_partition_transcripts.py` writes the actual results
into the scripts. Read the diff before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.shares import acknowledgements, acquisition, decisions, loading, share_partition
from penstock.shares.acquisition import Acquisition
from penstock.shares.carried_locks import CarriedLocks
from penstock.shares.decisions import Decision
from penstock.shares.events import (
    Acknowledged,
    BatchKind,
    LogStartMoved,
    ReleaseMember,
    TimerFired,
    WriteFailed,
)
from penstock.shares.image import ShareImage, StoredSpan
from penstock.shares.pending_writes import PendingWrites
from penstock.shares.share_partition import SharePartition
from penstock.shares.spans import Span, SpanTable
from penstock.shares.states import AckType, RecordState
from penstock.wire.errors import ErrorCode
from transcripts import altered, check, matches, perform, scripts_in

from .partition_transcript import Player

SCRIPTS = scripts_in("share_partition")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_share_partition_follows_the_transcript(path: Path) -> None:
    check(path, Player)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_changed_effect_is_found(path: Path) -> None:
    for script in altered(path.read_text("utf-8")):
        assert perform(script, Player) != script


def ignores_the_end_of_sessions(patch: pytest.MonkeyPatch) -> None:
    """The records of a member that has gone stay locked."""
    patch.setitem(share_partition._HANDLERS, ReleaseMember, lambda *given: None)


def locks_never_end(patch: pytest.MonkeyPatch) -> None:
    """The timer fires, and releases nothing."""
    patch.setitem(share_partition._HANDLERS, TimerFired, lambda *given: None)


def ends_locks_during_writes(patch: pytest.MonkeyPatch) -> None:
    """The end of a lock forgets the acknowledgement that is being stored."""
    on_timer = SharePartition._on_timer

    def hasty(self: SharePartition, event: Any, now: Any) -> None:
        for span in self._tables.spans:
            if span.state is RecordState.ACQUIRED and span.lock_until_ms <= now.ticks_ms:
                span.change = None
        on_timer(self, event, now)

    patch.setitem(share_partition._HANDLERS, TimerFired, hasty)


def delivers_without_limit(patch: pytest.MonkeyPatch) -> None:
    def release(span: Span, *given: Any, **options: Any) -> Decision:
        return Decision(RecordState.AVAILABLE)

    patch.setattr(share_partition, "release", release)


def rejects_by_releasing(patch: pytest.MonkeyPatch) -> None:
    decide = decisions.decide

    def lenient(span: Span, kind: AckType, *given: Any) -> Decision:
        return decide(span, AckType.RELEASE if kind is AckType.REJECT else kind, *given)

    patch.setattr(share_partition, "decide", lenient)


def does_not_count_deliveries(patch: pytest.MonkeyPatch) -> None:
    lock = Acquisition._lock

    def uncounted(self: Acquisition, span: Span) -> None:
        span.delivery_count = max(0, span.delivery_count - 1)
        lock(self, span)

    patch.setattr(Acquisition, "_lock", uncounted)


def lets_anyone_acknowledge(patch: pytest.MonkeyPatch) -> None:
    def is_held_by(self: Span, member_id: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.change is None

    patch.setattr(Span, "is_held_by", is_held_by)


def acknowledges_twice(patch: pytest.MonkeyPatch) -> None:
    """A second acknowledgement is taken while the first one is being stored."""

    def is_held_by(self: Span, member_id: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.owner == member_id

    patch.setattr(Span, "is_held_by", is_held_by)


def answers_before_the_write(patch: pytest.MonkeyPatch) -> None:
    write = SharePartition._write

    def early(self: SharePartition, decided: Any, now: Any, token: Any = None) -> None:
        write(self, decided, now)
        if token is not None:
            self._effects.append(Acknowledged(token, ErrorCode.NONE))

    patch.setattr(SharePartition, "_write", early)


def fails_writes_silently(patch: pytest.MonkeyPatch) -> None:
    """A write that has failed takes effect."""
    committed = SharePartition._on_committed
    patch.setitem(share_partition._HANDLERS, WriteFailed, committed)


def renews_always(patch: pytest.MonkeyPatch) -> None:
    check_held = acknowledgements.check_held

    def lenient(parts: Any, member_id: str, end: int, settings: Any) -> None:
        kept = [part for part in parts if part.run.type is not AckType.RENEW]
        check_held(kept, member_id, end, settings)

    patch.setattr(acknowledgements, "check_held", lenient)


def takes_any_type(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acknowledgements, "_type_of", lambda number, is_renew: AckType.ACCEPT)


def never_fills_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpanTable, "places", property(lambda self: 0))


def counts_gaps(patch: pytest.MonkeyPatch) -> None:
    """A range without records takes as many places as it has offsets."""
    patch.setattr(SpanTable, "places", property(len))


def delivers_often_delivered_records_together(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acquisition, "isolated_size", lambda *given: None)


def delivers_control_batches(patch: pytest.MonkeyPatch) -> None:
    visit = Acquisition._visit

    def blind(self: Acquisition, batch: Any) -> None:
        visit(self, batch._replace(kind=BatchKind.DATA))

    patch.setattr(Acquisition, "_visit", blind)


def forgets_facts(patch: pytest.MonkeyPatch) -> None:
    """What the log has no records for is not stored."""
    patch.setattr(PendingWrites, "add_facts", lambda *given, **options: None)


def loads_without_counts(patch: pytest.MonkeyPatch) -> None:
    loaded_span = loading.loaded_span

    def uncounted(stored: StoredSpan, *given: Any) -> Span:
        return loaded_span(stored._replace(delivery_count=0), *given)

    patch.setattr(loading, "loaded_span", uncounted)


def keeps_states_of_lost_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareImage, "truncate", lambda *given: None)


def drops_locks_when_it_reads_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CarriedLocks, "put_back", lambda self, tables, epoch: epoch)


def forgets_the_log_start(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(share_partition._HANDLERS, LogStartMoved, lambda *given: None)


@pytest.mark.parametrize(
    "plant",
    [
        ignores_the_end_of_sessions,
        locks_never_end,
        ends_locks_during_writes,
        delivers_without_limit,
        rejects_by_releasing,
        does_not_count_deliveries,
        lets_anyone_acknowledge,
        acknowledges_twice,
        answers_before_the_write,
        fails_writes_silently,
        renews_always,
        takes_any_type,
        never_fills_the_window,
        counts_gaps,
        delivers_often_delivered_records_together,
        delivers_control_batches,
        forgets_facts,
        loads_without_counts,
        keeps_states_of_lost_records,
        drops_locks_when_it_reads_again,
        forgets_the_log_start,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not all(matches(path, Player) for path in SCRIPTS)


def test_an_event_that_is_misspelled_is_an_error() -> None:
    """It must not pass for an event without effects."""
    with pytest.raises(AssertionError, match="no such event: anna fetch"):
        perform("A misspelled event.\n\nanna fetch\n", Player)


def test_the_scripts_exist() -> None:
    """If the folder moved, the parametrized test would pass without running anything."""
    assert len(SCRIPTS) >= 30
