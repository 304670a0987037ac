"""What is durable of a share partition: the result of all deltas in its state log.

The image is sparse: an offset that no span mentions is available and was never delivered. Acquired
records are available in it, with the count that was stored last, because deliveries are not stored.

A live share partition applies a delta to its image when the delta is committed. A new leader
applies the same deltas in the same order, so it gets the same image.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.shares.states import DONE, GiveUpReason, RecordState

_FIRST: Final = attrgetter("first")
_LAST: Final = attrgetter("last")


class StoredSpan(NamedTuple):
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    due_ms: int = 0
    """Wall-clock time: the record is not delivered again before it. 0: at once."""
    reason: GiveUpReason = GiveUpReason.NONE


class Delta(NamedTuple):
    """What one write changes."""

    state_epoch: int
    start_offset: int
    end_offset: int
    """No span of this delta, or of an earlier one, reaches this offset."""
    end_leader_epoch: int
    """The leader epoch of the last record before the end offset."""
    spans: tuple[StoredSpan, ...]


@dataclass(slots=True)
class ShareImage:
    state_epoch: int
    start_offset: int
    end_offset: int
    end_leader_epoch: int = -1
    spans: list[StoredSpan] = field(default_factory=list)
    """In order, without overlaps; neighbors that are equal are merged."""

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
        )

    def apply(self, delta: Delta) -> None:
        """Applies a delta. One of another state epoch is ignored: the state was reset since."""
        if delta.state_epoch != self.state_epoch:
            return
        for span in delta.spans:
            self._put(span)
        self._start_at(max(self.start_offset, delta.start_offset))
        end = (delta.end_leader_epoch, delta.end_offset)
        self.end_leader_epoch, self.end_offset = max((self.end_leader_epoch, self.end_offset), end)

    def truncate(self, offset: int) -> None:
        """Drops all states from an offset on: the log lost the records there.

        A leader that does this stores a snapshot before it delivers anything. Otherwise a later
        leader would apply the dropped states to other records at the same offsets.
        """
        del self.spans[bisect_left(self.spans, offset, key=_FIRST) :]
        if self.spans and self.spans[-1].last >= offset:
            self.spans[-1] = self.spans[-1]._replace(last=offset - 1)
        self.end_offset = min(self.end_offset, offset)
        self.start_offset = min(self.start_offset, offset)

    def drop_below(self, offset: int) -> None:
        """Moves the start up to an offset: the log begins there."""
        if offset > self.start_offset:
            self._start_at(offset)
            self.end_offset = max(self.end_offset, offset)

    def _put(self, new: StoredSpan) -> None:
        """Replaces what is stored of these offsets."""
        spans = self.spans
        low = bisect_left(spans, new.first, key=_LAST)
        high = bisect_right(spans, new.last, key=_FIRST)
        pieces = [] if new[2:] == _NEVER_DELIVERED else [new]
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


_NEVER_DELIVERED: Final = StoredSpan(0, 0, RecordState.AVAILABLE, 0)[2:]
