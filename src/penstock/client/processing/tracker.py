"""What of each partition is in progress, and how far it may be committed. Pure.

A committed offset promises that every record below it has been dealt with. When records are worked
on side by side they end in any order, so what may be committed is not the last that ended, but the
end of the unbroken run of ended ones from the start: the *safe* offset. One slow record holds it
back, however many behind it have ended; after a crash those are handed out again, which is what
at-least-once means, and none is lost, which is what matters.

One `Window` is one partition during one stay with this consumer. Whoever works on a record holds
its window, so that a record that ends after the partition went away, and perhaps came back, ends
in a window that nobody reads any more.

A partition that leaves in good order is closed: what was not begun is not begun any more, except
where that would waste work. Records that ended above a gap would be handed out, and handled, again;
so the gaps below the last record that was begun are filled first, if there is time.

Invariants: `safe` never passes an offset that was started and not finished; it never goes back;
`held` (started records above `safe`) is what bounds memory, not the number still being worked on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from penstock.client.model import TopicPartition


class Window:
    """The records of one partition that were started, in offset order."""

    __slots__ = ("_finished", "_started", "_until", "committed", "place", "safe")

    def __init__(self, place: TopicPartition, first: int) -> None:
        self.place = place
        self.safe = first
        """All records below are dealt with, so this is the offset to commit."""
        self.committed = first
        """What was committed last; the first record's own offset is where we began."""
        self._until: int | None = None
        self._started: deque[int] = deque()
        self._finished: set[int] = set()

    @property
    def held(self) -> int:
        return len(self._started)

    @property
    def last(self) -> int:
        """The newest offset started, or one below the first."""
        return self._started[-1] if self._started else self.safe - 1

    def start(self, offset: int) -> None:
        if offset <= self.last:
            raise ValueError(f"{self.place}: offset {offset} was started after {self.last}")
        self._started.append(offset)

    @property
    def is_closed(self) -> bool:
        return self._until is not None

    def wants(self, offset: int) -> bool:
        """Whether this record is still to be handled."""
        return self._until is None or offset < self._until

    def close(self) -> None:
        """The partition has left, or is about to: nothing more of it is wanted."""
        self._until = self.safe

    def close_gently(self, in_hand: Iterable[int]) -> None:
        """Nothing more is wanted but the gaps below what has ended, or is in hand and will."""
        if self._until is None:
            self._until = max((*self._finished, *in_hand), default=self.safe)

    def finish(self, offset: int) -> None:
        started, finished = self._started, self._finished
        if not started or offset != started[0]:
            finished.add(offset)
            return
        started.popleft()
        self.safe = offset + 1
        while started and started[0] in finished:
            self.safe = started.popleft()
            finished.remove(self.safe)
            self.safe += 1


class Tracker:
    """The windows of all partitions that are with this consumer."""

    def __init__(self) -> None:
        self._windows: dict[TopicPartition, Window] = {}

    @property
    def held(self) -> int:
        return sum(window.held for window in self._windows.values())

    def window(self, place: TopicPartition) -> Window | None:
        return self._windows.get(place)

    def windows(self, places: Collection[TopicPartition] | None = None) -> list[Window]:
        """The windows of these partitions, or of all."""
        if places is None:
            return list(self._windows.values())
        return [window for place in places if (window := self._windows.get(place)) is not None]

    def start(self, place: TopicPartition, offset: int) -> Window:
        """A record was received. One from below those before it means that the position was moved
        back, by a seek or a reset: what was in progress is of the past, and a new window begins."""
        window = self._windows.get(place)
        if window is None or offset <= window.last:
            if window is not None:
                window.close()
            window = self._windows[place] = Window(place, offset)
        window.start(offset)
        return window

    def close(self, places: Collection[TopicPartition]) -> list[Window]:
        """These partitions have left; what ends from now on ends unheeded."""
        closed = self.windows(places)
        for window in closed:
            window.close()
            del self._windows[window.place]
        return closed

    def committable(
        self, places: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """What is worth a commit: the safe offsets that moved since the last one."""
        return {
            window.place: window.safe
            for window in self.windows(places)
            if window.safe != window.committed
        }

    def mark_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        for place, offset in offsets.items():
            if (window := self._windows.get(place)) is not None:
                window.committed = offset
