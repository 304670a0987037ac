"""What is durable of a share partition: the result of all deltas in its state log.

The image is sparse: an offset that no span mentions is available and was never delivered. Acquired
records are available in it, with the count that was stored last, because deliveries are not stored.

A live share partition applies a delta to its image when the delta is committed. A new leader
applies the same deltas in the same order, so it gets the same image.

Promoted records (`share_schedule`) are apart from the window. Each of them is mentioned until it is
done; all other far records below the start are scheduled, or done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.shares.share_schedule import NO_SCHEDULE, ShareSchedule
from penstock.shares.states import DONE, GiveUpReason, RecordState

_FIRST: Final = attrgetter("first")
_LAST: Final = attrgetter("last")


class LetterNumbers(NamedTuple):
    """How the dead letters of a share partition are numbered; `letters` says why.

    Of two values the greater one is the later one.
    """

    base: int = 0
    """The number of the letter that has sequence number 0."""
    next: int = 0
    """The number of the next letter. It never decreases."""
    producer_epoch: int = 0
    producer_id: int = -1
    """-1: there is none yet."""


NO_LETTERS: Final = LetterNumbers()


class StoredSpan(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    due_ms: int = 0
    """Wall-clock time: the record is not delivered again before it. 0: at once."""
    reason: GiveUpReason = GiveUpReason.NONE
    letter_shift: int = 0
    """In the state archiving: the number of an offset's dead letter is the offset plus this."""


class Delta(NamedTuple):
    """What one write changes."""

    state_epoch: int
    start_offset: int
    end_offset: int
    """No span of this delta, or of an earlier one, reaches this offset."""
    end_leader_epoch: int
    """The leader epoch of the last record before the end offset."""
    spans: tuple[StoredSpan, ...]
    letters: LetterNumbers = NO_LETTERS
    promoted: tuple[StoredSpan, ...] = ()
    """What changes of promoted records."""
    schedule: ShareSchedule = NO_SCHEDULE
    attachment: bytes = b""
    """Replaces the attachment of the image. Empty: it stays as it is."""


@dataclass(slots=True)
class ShareImage:
    state_epoch: int
    start_offset: int
    end_offset: int
    end_leader_epoch: int = -1
    spans: list[StoredSpan] = field(default_factory=list)
    """In order, without overlaps; neighbors that are equal are merged."""
    letters: LetterNumbers = NO_LETTERS
    promoted: list[StoredSpan] = field(default_factory=list)
    """All promoted records that are not done, in order, without overlaps."""
    schedule: ShareSchedule = NO_SCHEDULE
    attachment: bytes = b""
    """What the leader keeps here in a format of its own: the state of a delay topic's copies, or
    how a share partition has judged its far records."""

    @classmethod
    def starting_at(cls, offset: int, state_epoch: int = 0) -> ShareImage:
        return cls(state_epoch, offset, offset)

    def copy(self) -> ShareImage:
        return ShareImage(
            self.state_epoch,
            self.start_offset,
            self.end_offset,
            self.end_leader_epoch,
            list(self.spans),
            self.letters,
            list(self.promoted),
            self.schedule,
            self.attachment,
        )

    def apply(self, delta: Delta) -> None:
        """Applies a delta. One of another state epoch is ignored: the state was reset since."""
        if delta.state_epoch != self.state_epoch:
            return
        for span in delta.spans:
            self._put(span)
        for span in delta.promoted:
            _put(self.promoted, span, [] if span.state in DONE else [span])
        self.schedule = self.schedule.merged(delta.schedule)
        self._start_at(max(self.start_offset, delta.start_offset))
        self.letters = max(self.letters, delta.letters)
        self.attachment = delta.attachment or self.attachment
        end = (delta.end_leader_epoch, delta.end_offset)
        self.end_leader_epoch, self.end_offset = max((self.end_leader_epoch, self.end_offset), end)

    def truncate(self, offset: int) -> None:
        """Drops all states from an offset on: the log lost the records there.

        A leader that does this stores a snapshot before it delivers anything. Otherwise a later
        leader would apply the dropped states to other records at the same offsets.
        """
        for spans in (self.spans, self.promoted):
            del spans[bisect_left(spans, offset, key=_FIRST) :]
            if spans and spans[-1].last >= offset:
                spans[-1] = spans[-1]._replace(last=offset - 1)
        self.schedule = self.schedule.truncated(offset)
        self.end_offset = min(self.end_offset, offset)
        self.start_offset = min(self.start_offset, offset)

    def drop_below(self, offset: int) -> None:
        """Moves the start up to an offset: the log begins there."""
        if offset > self.start_offset:
            self._start_at(offset)
            self.end_offset = max(self.end_offset, offset)

    def _put(self, new: StoredSpan) -> None:
        _put(self.spans, new, [] if new[2:] == _NEVER_DELIVERED else [new])

    def _start_at(self, start: int) -> None:
        """Drops what is below the start, and moves the start past what is done."""
        spans = self.spans
        count = 0
        for span in spans:
            if span.first <= start <= span.last and span.state in DONE:
                start = span.last + 1
            if span.last >= start:
                break
            count += 1
        del spans[:count]
        if spans and spans[0].first < start:
            spans[0] = spans[0]._replace(first=start)
        self.start_offset = start


def _put(spans: list[StoredSpan], new: StoredSpan, pieces: list[StoredSpan]) -> None:
    """Replaces what is stored of the offsets of `new` by `pieces`."""
    low = bisect_left(spans, new.first, key=_LAST)
    high = bisect_right(spans, new.last, key=_FIRST)
    if low < high and spans[low].first < new.first:
        pieces.insert(0, spans[low]._replace(last=new.first - 1))
    if low < high and spans[high - 1].last > new.last:
        pieces.append(spans[high - 1]._replace(first=new.last + 1))
    # The neighbors may be equal to the new span.
    start = max(low - 1, 0)
    around = [*spans[start:low], *pieces, *spans[high : high + 1]]
    merged = around[:1]
    for span in around[1:]:
        before = merged[-1]
        if before.last + 1 == span.first and before[2:] == span[2:]:
            merged[-1] = before._replace(last=span.last)
        else:
            merged.append(span)
    spans[start : high + 1] = merged


_NEVER_DELIVERED: Final = StoredSpan(0, 0, RecordState.AVAILABLE, 0)[2:]
