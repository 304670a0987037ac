"""Planted bugs of delay topics: copies that are missing, that are there twice, that come too early
or in the wrong order, and copies of records that were never committed.

See `replication`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Final

from penstock.broker.delay import delayed_partition
from penstock.broker.delay.delayed_partition import DelayedPartition
from penstock.broker.delay.source_reads import SCAN_BYTES_MAX, SourceReads
from penstock.broker.shares.letter_sender import WRITTEN
from penstock.broker.shares.log_reads import ReadLimits, read_batches
from penstock.delays.copy_state import CopyState
from penstock.delays.copying import WINDOW_RECORDS, Copying, Send, Step, Store, View
from penstock.delays.records import due_entries
from penstock.schedule.cursor import DueEntry
from penstock.shares.events import BatchKind
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.wire.errors import ErrorCode

DELAY_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, DELAY_BUGS)
_EARLY_MS: Final = 2_000
_EVERYTHING: Final = 2**63 - 1


@_bug("copies-sent-before-their-plan-is-stored")
def _sends_at_once(patches: ExitStack) -> None:
    """Batches are sent while their plan is not stored. A new leader knows nothing of them, and
    makes a plan of its own."""
    finish = Copying._finish_plan

    def hasty(self: Copying, view: View) -> Step:
        step = finish(self, view)
        return Send(self.state) if isinstance(step, Store) else step

    patch(patches, Copying, "_finish_plan", hasty)


@_bug("plan-sent-under-new-numbers-by-a-new-leader")
def _forgets_numbers(patches: ExitStack) -> None:
    """A new leader sends the plan of the last one in an epoch of its own. The target does not
    recognize the batches that it has."""
    begin = Copying.__init__

    def forgetful(
        self: Copying,
        state: CopyState,
        *,
        is_stored: bool = True,
        window_records: int = WINDOW_RECORDS,
        late_max: int = 5_000,
    ) -> None:
        if state.planned:
            state, is_stored = state.in_new_epoch(state.target), False
        begin(self, state, is_stored=is_stored, window_records=window_records, late_max=late_max)

    patch(patches, Copying, "__init__", forgetful)


@_bug("planned-copies-taken-for-written-by-a-new-leader")
def _trusts_the_plan(patches: ExitStack) -> None:
    """A new leader takes what the last one has planned for copied."""
    begin = Copying.__init__

    def trusting(
        self: Copying,
        state: CopyState,
        *,
        is_stored: bool = True,
        window_records: int = WINDOW_RECORDS,
        late_max: int = 5_000,
    ) -> None:
        if state.planned:
            state, is_stored = state.written(len(state.planned)), False
        begin(self, state, is_stored=is_stored, window_records=window_records, late_max=late_max)

    patch(patches, Copying, "__init__", trusting)


@_bug("refused-copies-taken-for-written")
def _ignores_refusals(patches: ExitStack) -> None:
    """A batch that the target has refused because its leader has changed, or because it has too few
    in-sync replicas, counts as written."""
    refused = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
    patch(patches, delayed_partition, "WRITTEN", WRITTEN | refused)


@_bug("records-copied-two-seconds-early")
def _comes_early(patches: ExitStack) -> None:
    """Records are copied two seconds before they are due."""
    view_of = DelayedPartition._view

    def early(self: DelayedPartition, state: CopyState) -> View:
        view = view_of(self, state)
        return view._replace(now_ms=view.now_ms + _EARLY_MS)

    patch(patches, DelayedPartition, "_view", early)


@_bug("late-records-of-a-delay-topic-forgotten")
def _forgets_the_late(patches: ExitStack) -> None:
    """A record that arrives after later ones were copied is never copied."""
    on_scanned = Copying.on_scanned

    def careless(self: Copying, entries: Iterable[DueEntry], end: int) -> None:
        due = self.state.cursor.due
        on_scanned(self, [entry for entry in entries if entry > due], end)

    patch(patches, Copying, "on_scanned", careless)


@_bug("floor-passes-records-that-are-not-due")
def _raises_the_floor(patches: ExitStack) -> None:
    """The offset from which a new leader reads the log passes records that wait."""

    def too_high(self: Copying, end: int) -> int:
        return end

    patch(patches, Copying, "_floor", too_high)


@_bug("aborted-records-of-a-delay-topic-copied")
def _copies_the_aborted(patches: ExitStack) -> None:
    """Records of aborted transactions are copied too."""

    async def lax(self: SourceReads, offset: int) -> tuple[list[DueEntry], int]:
        limits = ReadLimits(self._hosted.last_stable_offset, _EVERYTHING, SCAN_BYTES_MAX, True)
        batches = read_batches(self._hosted, offset, limits)
        data = [each.data for each in batches if each.batch.kind is not BatchKind.CONTROL]
        found = due_entries(data)
        return [each for each in found if each.offset >= offset], batches[-1].batch.last + 1

    patch(patches, SourceReads, "due_from", lax)


@_bug("copies-in-the-order-of-offsets")
def _sorts_by_offset(patches: ExitStack) -> None:
    """Records that are due together are copied in the order of their offsets."""
    take = Copying.take

    def by_offset(self: Copying, count: int, now_ms: int) -> list[int]:
        found = len(take(self, count, now_ms))
        at = len(self._taken) - found
        self._taken[at:] = sorted(self._taken[at:], key=lambda due: due.offset)
        return [due.offset for due in self._taken[at:]]

    patch(patches, Copying, "take", by_offset)
