"""The acknowledgements of one request for one partition, checked and in a simple form.

Batches are in ascending order and do not overlap. A batch has one type for all of its offsets, or
one for each. Neighboring offsets with the same type become one `Run`. Some of its offsets may be in
the window, and some promoted: `divided` says which. More types than a share partition can have
offsets in flight are refused before anything is done for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from penstock.shares.events import AckBatch, Acknowledge
from penstock.shares.pending_writes import joined
from penstock.shares.promoted_spans import PromotedSpans, SpanTables
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import SpanTable
from penstock.shares.states import AckType, RecordState
from penstock.wire.errors import ErrorCode, KafkaError

TABLES_SIZE: Final = 3
"""The window and the promoted records have at most this many times `in_flight_max` offsets that can
be acquired: the window has less than two times as many (`acquisition`), and promoted records as
many."""
_FEW: Final = 1000
"""This many acknowledgements are never too many: most of them may be below the window."""
_TYPES: Final = {int(each): each for each in AckType}


class Run(NamedTuple):
    first: int
    last: int
    type: AckType


def checked_parts(event: Acknowledge, tables: SpanTables, settings: ShareSettings) -> list[Part]:
    """Returns what is to be done. Raises `KafkaError` if the request is malformed, or if the member
    may not acknowledge one of the offsets."""
    _require_few(event.batches, tables, settings)
    runs = runs_of(event.batches, is_renew=event.is_renew)
    parts = divided(runs, tables)
    check_held(parts, event.member_id, tables.window.end, settings)
    return parts


def _require_few(batches: Iterable[AckBatch], tables: SpanTables, settings: ShareSettings) -> None:
    count = sum(max(1, len(batch.types)) for batch in batches)
    if count <= max(_FEW, TABLES_SIZE * settings.in_flight_max):
        return
    # The limit may have been higher when these records were acquired.
    held = sum(len(span) for span in tables.spans if span.state is RecordState.ACQUIRED)
    if count > held:
        raise _invalid(f"{count} acknowledgements for {held} records that members hold")


def runs_of(batches: Iterable[AckBatch], *, is_renew: bool) -> list[Run]:
    """Returns the runs. Raises `KafkaError` (INVALID_REQUEST) if the request is malformed."""
    runs: list[Run] = []
    next_offset = 0
    for batch in batches:
        if batch.first < next_offset or batch.last < batch.first:
            raise _invalid(
                f"offsets {batch.first} to {batch.last} are not in ascending order: sort the "
                "batches, without overlaps"
            )
        types = [_type_of(number, is_renew) for number in batch.types]
        count = batch.last - batch.first + 1
        if len(types) == 1:
            runs.append(Run(batch.first, batch.last, types[0]))
        elif len(types) == count:
            runs += _runs_of_offsets(batch.first, types)
        else:
            raise _invalid(
                f"{len(types)} types for {count} offsets: send one type, or one for each offset"
            )
        next_offset = batch.last + 1
    return runs


class Part(NamedTuple):
    """A part of a run, and the table that has its offsets."""

    run: Run
    table: SpanTable | PromotedSpans
    first: int
    last: int


def divided(runs: Iterable[Run], tables: SpanTables) -> list[Part]:
    return [Part(run, *part) for run in runs for part in tables.divide(run.first, run.last)]


def stretches(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """Returns the ranges of the parts; those that continue each other are joined."""
    return joined((part.first, part.last) for part in parts)


def check_held(
    parts: Iterable[Part], member_id: str, window_end: int, settings: ShareSettings
) -> None:
    """Raises `KafkaError` if the member may not acknowledge one of these offsets.

    Offsets below the window that are not promoted are done, or deleted from the log.
    """
    for run, table, first, last in parts:
        if run.type is AckType.RENEW and not settings.renew_enabled:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "the group does not allow renewals: set share.renew.acknowledge.enable",
            )
        is_held = last < window_end and all(
            span.is_held_by(member_id) for span in table.overlapping(first, last)
        )
        if not is_held:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)


def _runs_of_offsets(first: int, types: list[AckType]) -> Iterable[Run]:
    for kind, equal in groupby(types):
        last = first + sum(1 for _ in equal) - 1
        yield Run(first, last, kind)
        first = last + 1


def _type_of(number: int, is_renew: bool) -> AckType:
    found = _TYPES.get(number)
    if found is None:
        raise _invalid(f"{number} is not a type of acknowledgement: use 0 to 4")
    if found is AckType.RENEW and not is_renew:
        raise _invalid("type 4 (renew) needs is_renew_ack in the request")
    return found


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
