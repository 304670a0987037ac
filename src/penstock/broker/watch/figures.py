"""What a broker counts while it works: plain numbers, added to where things happen.

Only what cannot be read off the broker later is counted here. A path that is taken for every batch
adds to an integer; a histogram costs a clock, read twice, and a search, so on the produce lanes one
request in several is timed and stands for those since the last: `Sampled`. The number of requests
stays exact, since the rest is settled before it is read.

Nobody but the event loop touches these, so nothing is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.partition.record_validation import DecompressedTooMuch, MalformedRecords
from penstock.ports import Clock, Executor
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode

T = TypeVar("T")

REQUEST_BOUNDS_S: Final = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
FLUSH_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
DELAY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ANSWERED_EVERY: Final = 32
"""Of the produce requests that a lane answers at once, one in so many is timed."""
WAITED_EVERY: Final = 8
"""Of those that wait for their commit."""


class Histogram:
    """How often a duration fell between two bounds; one count more than bounds, for the rest."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum_s += seconds * times


class Sampled:
    """Durations of which only some are measured, each of which stands for those before it too.

    if sampled.left:
        sampled.left -= 1        # and nothing else
    else:
        stands_for = sampled.begin()
        ...
        sampled.end(seconds, stands_for)
    """

    __slots__ = ("_histogram", "_last_s", "_left_max", "left")

    def __init__(self, histogram: Histogram, every: int) -> None:
        self._histogram = histogram
        self._last_s: float | None = None
        self._left_max = every - 1
        self.left = 0
        """How many are not measured before the next that is: the very first is."""

    def begin(self) -> int:
        """One is going to be measured; how many it stands for."""
        stands_for = 1 if self._last_s is None else 1 + self._left_max - self.left
        self._last_s = self._last_s or 0.0
        self.left = self._left_max
        return stands_for

    def end(self, seconds: float, stands_for: int) -> None:
        self._last_s = seconds
        self._histogram.observe(seconds, stands_for)

    def settle(self) -> None:
        """Count those that were not measured like the last that was."""
        if self._last_s is not None:
            self._histogram.observe(self._last_s, self._left_max - self.left)
            self.left = self._left_max


class Requests:
    """Durations by API, and what was refused."""

    def __init__(self) -> None:
        self.by_api: dict[int, Histogram] = {}
        self.errors: dict[tuple[int, ErrorCode], int] = {}
        produce = self.by_api[ApiKey.PRODUCE] = Histogram(REQUEST_BOUNDS_S)
        # What the produce lanes add to.
        self.answered = Sampled(produce, ANSWERED_EVERY)
        self.waited = Sampled(produce, WAITED_EVERY)

    def observe(self, api_key: int, seconds: float) -> None:
        histogram = self.by_api.get(api_key)
        if histogram is None:
            histogram = self.by_api[api_key] = Histogram(REQUEST_BOUNDS_S)
        histogram.observe(seconds)

    def refused(self, api_key: int, code: ErrorCode) -> None:
        """A request failed as a whole."""
        key = api_key, code
        self.errors[key] = self.errors.get(key, 0) + 1

    def settle(self) -> None:
        self.answered.settle()
        self.waited.settle()


class Cleaner:
    """What retention and compaction have done."""

    __slots__ = (
        "bytes_read",
        "bytes_reclaimed",
        "failures",
        "paused_logs",
        "runs",
        "seconds",
        "segments_deleted",
        "undecodable_batches",
    )

    def __init__(self) -> None:
        self.runs = 0
        self.bytes_read = 0
        self.bytes_reclaimed = 0
        self.seconds = 0.0
        self.segments_deleted = 0
        self.failures = 0
        self.paused_logs = 0
        """Left alone for a while because their maintenance failed."""
        self.undecodable_batches = 0
        """Kept as they are by the last compactions."""

    def on_cleaned(self, bytes_before: int, bytes_after: int, seconds: float) -> None:
        self.runs += 1
        self.bytes_read += bytes_before
        self.bytes_reclaimed += bytes_before - bytes_after
        self.seconds += seconds


class Produce:
    """Batches of producers that were refused for what they contain."""

    __slots__ = ("malformed", "oversized")

    def __init__(self) -> None:
        self.malformed = 0
        self.oversized = 0
        """Decompressed to more than `max.message.bytes` allows."""

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, MalformedRecords):
            self.malformed += 1
        elif isinstance(error, DecompressedTooMuch):
            self.oversized += 1


class Figures:
    """All of one broker's."""

    def __init__(self, clock: Clock) -> None:
        self.now: Callable[[], float] = clock.monotonic
        self.requests = Requests()
        self.cleaner = Cleaner()
        self.produce = Produce()
        self.flushes = Histogram(FLUSH_BOUNDS_S)
        self.loop_delays = Histogram(DELAY_BOUNDS_S)
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.leader_changes = 0
        """Partitions that this broker took over, or leads in a new term."""
        self.controller_changes = 0


class TimedExecutor:
    """An executor that notes how long each work took on its thread, not how long it waited."""

    def __init__(self, executor: Executor, figures: Figures) -> None:
        self._executor = executor
        self._figures = figures

    async def run(self, work: Callable[[], T]) -> T:
        now = self._figures.now
        took_s = -1.0

        def timed() -> T:
            nonlocal took_s
            began = now()
            try:
                return work()
            finally:
                took_s = now() - began

        try:
            return await self._executor.run(timed)
        finally:
            if took_s >= 0:
                self._figures.flushes.observe(took_s)
