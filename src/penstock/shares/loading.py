"""Compares the stored state of a share partition with the log of a new leader. Pure.

A state that was never used has no start offset: the leader decides it (`offset_reset`), and stores
it before it delivers anything.

The end offset is stored with the leader epoch of the last record before it. If the log ends earlier
for this epoch, an unclean election has lost records. Their states are dropped, and the rest is
stored: otherwise new records at the same offsets would look done.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.coordination.effects import Now
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.promoted_spans import SpanTables
from penstock.shares.settings import ShareSettings
from penstock.shares.spans import Span
from penstock.shares.states import RecordState

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


class LogEnd(NamedTuple):
    """Where the log ends for the stored leader epoch."""

    epoch: int
    """The largest epoch in the log, up to the stored one. -1 if the log has none."""
    end_offset: int
    """The first offset after this epoch. -1 if the log has none."""
    log_end_offset: int


def has_start(image: ShareImage) -> bool:
    return image.start_offset != NO_OFFSET


def start_delta(image: ShareImage, offset: int, epoch_before: int) -> Delta:
    """Returns the write that stores a start offset. `epoch_before` wrote the record before it."""
    return Delta(image.state_epoch, offset, offset, epoch_before, ())


def cut_lost(image: ShareImage, log: LogEnd) -> bool:
    """Drops the states of records that the log has lost. Returns whether there were any.

    If the log does not have the stored epoch at all, it is unknown where the logs part: the states
    of the whole window are dropped, and its records are delivered again.
    """
    end = log.log_end_offset
    is_unknown = NO_EPOCH in (log.epoch, image.end_leader_epoch)
    if not is_unknown:
        end = min(end, log.end_offset)
        if log.epoch < image.end_leader_epoch:
            end = min(end, image.start_offset)
            image.truncate(end)
            image.end_leader_epoch = log.epoch
            return True
    if image.end_offset <= end:
        return False
    image.truncate(end)
    return True


def load_spans(tables: SpanTables, image: ShareImage, settings: ShareSettings, now: Now) -> None:
    """Fills the window, which begins at the start of the image, and the promoted records."""
    window, schedule = tables.window, image.schedule
    for stored in image.promoted:
        tables.promoted.put(loaded_span(stored, settings, now))
    for stored in image.spans:
        if stored.first > window.end:
            window.extend(Span(window.end, stored.first - 1, RecordState.AVAILABLE))
        window.extend(loaded_span(stored, settings, now))
    if not schedule.has_ended and schedule.cursor.end > window.end:
        # The window has passed over the scheduled records there.
        window.extend(Span(window.end, schedule.cursor.end - 1, RecordState.AVAILABLE))


def loaded_span(stored: StoredSpan, settings: ShareSettings, now: Now) -> Span:
    """Returns a span as a new leader begins with it. It waits for what is left of its back-off."""
    longest_ms = max(settings.backoff_ms, settings.backoff_max_ms)
    wait_ms = min(max(0, stored.due_ms - now.wall_ms), longest_ms)
    return Span(
        stored.first,
        stored.last,
        stored.state,
        stored.delivery_count,
        not_before_ms=now.ticks_ms + wait_ms if wait_ms else 0,
        reason=stored.reason,
        letter_shift=stored.letter_shift,
    )
