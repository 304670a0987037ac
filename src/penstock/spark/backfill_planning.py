"""Plans the part of a stream's micro-batches that belongs to a backfill.

New records come first. A backfill gets what they leave of the limits of the source, and has a limit
of its own. A run with the trigger availableNow ends when the records are read that were there at
its beginning; a backfill is then read only for some seconds, so that the next run can begin: new
records and the other flows of the pipeline wait for it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from penstock.ports import Clock
from penstock.spark.backfill_file import RequestFile
from penstock.spark.log_view import RECORD_BYTES_GUESS, LogView
from penstock.spark.offsets import Offsets, Span, waiting
from penstock.spark.options import SourceOptions
from penstock.spark.stream_position import (
    Backfill,
    Position,
    advanced,
    backfill_spans,
    follow,
    skip_deleted,
)
from penstock.topic_partition import TopicPartition

log = logging.getLogger(__name__)
_RUN_S: Final = 10.0
"""How long a run with availableNow reads a backfill."""


class BackfillPlan:
    def __init__(
        self, options: SourceOptions, view: LogView, clock: Clock, requests: RequestFile
    ) -> None:
        self._options = options
        self._view = view
        self._clock = clock
        self._requests = requests
        self._until: float | None = None
        self._has_read = False

    def begun(self, offsets: Offsets) -> Position:
        """Returns the position of a new stream. It has where the stream began, if records before
        that can be read by a backfill later."""
        if not self._requests.is_used or self._options.starting.kind == "earliest":
            return Position(offsets)
        return Position(offsets, began=offsets)

    def stop_at_now(self) -> None:
        """The run ends at what is there now."""
        self._until = self._clock.monotonic() + _RUN_S
        self._has_read = False

    def follow(self, position: Position) -> Position:
        """Returns the position with the backfill that is to be read now."""
        return follow(position, self._requests.requests())

    def advance(
        self, start: Position, begun: Offsets, live: Offsets, *, unlimited: bool
    ) -> Position:
        """Returns where the next batch ends, if it reads new records from `begun` to `live`."""
        backfill = start.backfill
        if backfill is not None and not backfill.has_ended and not self._is_over():
            backfill = self._advanced(backfill, begun, live, unlimited=unlimited)
            self._has_read = True
        return replace(start, live=live, backfill=backfill)

    def _is_over(self) -> bool:
        """Whether this run reads nothing more of it. Each run reads at least one part."""
        if self._until is None or not self._has_read:
            return False
        return self._clock.monotonic() >= self._until

    def _advanced(
        self, backfill: Backfill, begun: Offsets, live: Offsets, *, unlimited: bool
    ) -> Backfill:
        options = self._options
        earliest = self._view.earliest(backfill.ranges)
        left = skip_deleted(backfill, earliest)
        if left.lost > backfill.lost:
            log.warning(
                "retention deleted %d records before backfill %d read them",
                left.lost - backfill.lost,
                backfill.id,
            )
        sizes = self._view.record_bytes(_known(earliest, live))
        records_max = bytes_max = None
        if not unlimited:
            count = waiting(begun, live)
            used = sum(
                waiting(begun, {each: end}) * sizes.get(each, RECORD_BYTES_GUESS)
                for each, end in live.items()
            )
            if options.trigger_offsets_max is not None:
                records_max = max(0, options.trigger_offsets_max - count)
            if options.trigger_bytes_max is not None:
                bytes_max = max(0, options.trigger_bytes_max - round(used))
        return advanced(left, records_max=records_max, bytes_max=bytes_max, record_bytes=sizes)

    def spans(self, start: Position, end: Position, left: set[TopicPartition]) -> list[Span]:
        """Returns what a batch reads for the backfill, without what was deleted meanwhile."""
        whole = [each for each in backfill_spans(start, end) if each.topic_partition in left]
        earliest = self._view.earliest({each.topic_partition for each in whole}) if whole else {}
        there = [
            replace(each, start=max(each.start, earliest[each.topic_partition])) for each in whole
        ]
        return [each for each in there if each.size > 0]


def _known(earliest: Offsets, ends: Offsets) -> dict[TopicPartition, tuple[int, int]]:
    """Returns the logs of a backfill, as far as they are read."""
    return {each: (start, ends.get(each, start)) for each, start in earliest.items()}
