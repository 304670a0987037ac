"""Planted bugs of due times, times to live and dead letters: records that come too early or too
late, dead letters that are missing, or written twice, or for the wrong records.

See `replication`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Final

from penstock.broker.schedules.bucket_index import BucketDueIndex
from penstock.broker.shares.dead_letters import DeadLetters, letter_headers
from penstock.broker.shares.log_reads import ReadLimits
from penstock.broker.shares.record_scans import RecordScans, _Scan
from penstock.coordination.effects import Now
from penstock.records.record import Record, build_batch
from penstock.schedule.cursor import ScheduleCursor
from penstock.shares import decisions
from penstock.shares.acquisition import Acquisition
from penstock.shares.decisions import Decision
from penstock.shares.events import DeadLetter, LogBatch, WriteDeadLetters
from penstock.shares.image import NO_LETTERS, Delta, StoredSpan
from penstock.shares.letters import LetterBook, _Waiting
from penstock.shares.record_marks import MarkTable
from penstock.shares.settings import ShareSettings
from penstock.shares.share_partition import SharePartition
from penstock.shares.states import GiveUpReason, RecordState
from penstock.sim.bugs.planting import Plant, bug, patch

SHARE_RECORD_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, SHARE_RECORD_BUGS)


# -- due times and times to live


@_bug("late-group-misses-what-others-have-passed")
def _ignores_the_end(patches: ExitStack) -> None:
    """The index of far due times removes what all groups have passed. A group that is loaded later
    uses it although records beyond the end of its cursor are gone."""

    def careless(self: BucketDueIndex, cursor: ScheduleCursor) -> bool:
        return cursor.due >= self._forgotten

    patch(patches, BucketDueIndex, "serves", careless)


@_bug("due-times-forgotten-by-a-new-leader")
def _reads_the_rest_only(patches: ExitStack) -> None:
    """A new leader reads the due times of records that the last leader never came to, but not of
    those in the window."""

    run = RecordScans._run

    async def behind(
        self: RecordScans, group_id: str, scan: _Scan, last: int, limits: ReadLimits
    ) -> None:
        if scan.table is None:
            scan.table = MarkTable(scan.partition.end_offset)
        await run(self, group_id, scan, last, limits)

    patch(patches, RecordScans, "_run", behind)


@_bug("due-times-rounded-to-seconds")
def _rounds_down(patches: ExitStack) -> None:
    """Due times are rounded down to seconds."""
    visit = Acquisition._visit

    def rounded(self: Acquisition, batch: LogBatch) -> None:
        visit(self, batch._replace(due_ms=batch.due_ms - batch.due_ms % 1000))

    patch(patches, Acquisition, "_visit", rounded)


@_bug("expiry-not-checked-at-redelivery")
def _delivers_the_expired(patches: ExitStack) -> None:
    """A record that was delivered before is delivered again after it has expired."""
    expire = Acquisition._expire

    def lax(self: Acquisition, batch: LogBatch) -> None:
        if any(span.delivery_count for span in self.table.overlapping(batch.first, batch.last)):
            self._acquire_in_window(batch)
        else:
            expire(self, batch)

    patch(patches, Acquisition, "_expire", lax)


# -- dead letters


@_bug("letter-numbers-not-stored")
def _numbers_in_memory(patches: ExitStack) -> None:
    """The producer id and the numbers of dead letters are not stored. A new leader writes the
    letters that are left under other numbers, also those that were written already."""
    delta = SharePartition._delta

    def without_numbers(self: SharePartition, spans: Iterable[StoredSpan]) -> Delta:
        return delta(self, spans)._replace(letters=NO_LETTERS)

    patch(patches, SharePartition, "_delta", without_numbers)


@_bug("letters-without-sequence-numbers")
def _sends_plain_batches(patches: ExitStack) -> None:
    """A letter whose answer was lost is written again, and nothing recognizes it."""

    def plain(
        self: DeadLetters,
        group_id: str,
        order: WriteDeadLetters,
        letter: DeadLetter,
        copied: Record | None,
    ) -> bytearray:
        headers = letter_headers(self._hosted.topic, self._hosted.index, group_id, letter)
        key, value = (None, None) if copied is None else (copied.key, copied.value)
        return build_batch([Record(0, self._env.clock.wall_ms(), key, value, headers)])

    patch(patches, DeadLetters, "_batch", plain)


@_bug("record-archived-before-its-letter-is-written")
def _archives_early(patches: ExitStack) -> None:
    """A record is archived when the leader begins to write its letter. If the leader dies then,
    there is no letter."""
    move = SharePartition._move_letters

    def hasty(self: SharePartition, now: Now) -> None:
        count = len(self._effects)
        move(self, now)
        orders = [each for each in self._effects[count:] if isinstance(each, WriteDeadLetters)]
        for order in orders:
            self._letters._written += [(each.offset, each.offset) for each in order.letters]
        spans = self._letters.to_archive(self._tables) if orders else []
        self._write([(span, Decision(RecordState.ARCHIVED)) for span in spans], now)

    patch(patches, SharePartition, "_move_letters", hasty)


@_bug("record-given-up-without-a-letter")
def _forgets_the_letter(patches: ExitStack) -> None:
    """A record that was delivered as often as the limit allows is dropped. Only rejected and
    expired ones become dead letters."""
    give_up = decisions.give_up

    def careless(reason: GiveUpReason, settings: ShareSettings) -> Decision:
        if reason is GiveUpReason.DELIVERY_LIMIT:
            return Decision(RecordState.ARCHIVED)
        return give_up(reason, settings)

    patch(patches, decisions, "give_up", careless)


@_bug("letter-written-before-the-rejection-is-stored")
def _writes_early(patches: ExitStack) -> None:
    """When a letter is written, those whose records are not given up durably yet go with it. If
    the write of that fails, the record is delivered again, although it has a letter."""
    begin_round = LetterBook._begin_round

    def hasty(self: LetterBook, waiting: list[_Waiting]) -> WriteDeadLetters:
        return begin_round(self, [each._replace(is_durable=True) for each in waiting])

    patch(patches, LetterBook, "_begin_round", hasty)


@_bug("letter-names-the-first-offset-of-its-round")
def _names_another_offset(patches: ExitStack) -> None:
    """A letter names the first offset of its round, not that of its record."""
    batch = DeadLetters._batch

    def first(
        self: DeadLetters,
        group_id: str,
        order: WriteDeadLetters,
        letter: DeadLetter,
        copied: Record | None,
    ) -> bytearray:
        named = letter._replace(offset=order.letters[0].offset)
        return batch(self, group_id, order, named, copied)

    patch(patches, DeadLetters, "_batch", first)
