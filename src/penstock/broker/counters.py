"""Counters and histograms that the broker updates while it works.

Only what cannot be read from the broker later is counted here. Code that runs for every batch adds
to an integer. A histogram costs two clock reads and a search, so on the fast path for produce
requests only some requests are timed, and each measurement also counts for the unmeasured requests
before it (`Sampled`). The number of requests is still exact, because the remaining ones are added
before a scrape reads the histogram.

Only the event loop accesses these counters, so there are no locks.
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
"""One in this many is timed, of the produce requests that the fast path answers at once."""
WAITED_EVERY: Final = 8
"""One in this many is timed, of the produce requests that wait until they are committed."""


class Histogram:
    """How often a duration fell between two bounds. The last count is for durations above all
    bounds."""

    __slots__ = ("bounds", "counts", "sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.sum_s += seconds * times


class Sampled:
    """Measures only some durations. Each measurement also counts for the unmeasured ones before it.

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
        """How many requests are skipped before the next measurement. The very first request is
        measured."""

    def begin(self) -> int:
        """Begins a measurement. Returns for how many requests it counts."""
        stands_for = 1 if self._last_s is None else 1 + self._left_max - self.left
        self._last_s = self._last_s or 0.0
        self.left = self._left_max
        return stands_for

    def end(self, seconds: float, stands_for: int) -> None:
        self._last_s = seconds
        self._histogram.observe(seconds, stands_for)

    def settle(self) -> None:
        """Counts the requests since the last measurement, with the duration of that measurement."""
        if self._last_s is not None:
            self._histogram.observe(self._last_s, self._left_max - self.left)
            self.left = self._left_max


class Requests:
    """Request durations by API, and errors."""

    def __init__(self) -> None:
        self.by_api: dict[int, Histogram] = {}
        self.errors: dict[tuple[int, ErrorCode], int] = {}
        produce = self.by_api[ApiKey.PRODUCE] = Histogram(REQUEST_BOUNDS_S)
        # Updated by the fast path for produce requests.
        self.answered = Sampled(produce, ANSWERED_EVERY)
        self.waited = Sampled(produce, WAITED_EVERY)

    def observe(self, api_key: int, seconds: float) -> None:
        histogram = self.by_api.get(api_key)
        if histogram is None:
            histogram = self.by_api[api_key] = Histogram(REQUEST_BOUNDS_S)
        histogram.observe(seconds)

    def refused(self, api_key: int, code: ErrorCode) -> None:
        """Counts a request that failed as a whole."""
        key = api_key, code
        self.errors[key] = self.errors.get(key, 0) + 1

    def settle(self) -> None:
        self.answered.settle()
        self.waited.settle()


class Cleaner:
    """Counters of retention and compaction."""

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
        """Logs whose retention or compaction is paused after a failure."""
        self.undecodable_batches = 0
        """Batches that the last compactions kept unchanged because they could not be decoded."""

    def on_cleaned(self, bytes_before: int, bytes_after: int, seconds: float) -> None:
        self.runs += 1
        self.bytes_read += bytes_before
        self.bytes_reclaimed += bytes_before - bytes_after
        self.seconds += seconds


class Produce:
    """Counts producers' batches that were refused because of their contents."""

    __slots__ = ("malformed", "oversized")

    def __init__(self) -> None:
        self.malformed = 0
        self.oversized = 0
        """Batches that decompress to more than the limit, a multiple of `max.message.bytes`."""

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, MalformedRecords):
            self.malformed += 1
        elif isinstance(error, DecompressedTooMuch):
            self.oversized += 1


class BrokerCounters:
    """All counters of one broker."""

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
        """How often this broker became leader of a partition, or began to lead in a new leader
        epoch."""
        self.controller_changes = 0


class TimedExecutor:
    """Measures how long each piece of work ran on its thread, without the time it waited for
    one."""

    def __init__(self, executor: Executor, counters: BrokerCounters) -> None:
        self._executor = executor
        self._counters = counters

    async def run(self, work: Callable[[], T]) -> T:
        now = self._counters.now
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
                self._counters.flushes.observe(took_s)
