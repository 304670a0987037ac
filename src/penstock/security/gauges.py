"""How fast something is used: Kafka's rate and Kafka's token bucket.

`WindowedRate` is Kafka's rate: 11 windows of one second, measured over at least 10 seconds. So an
idle client may use its quota of 10 seconds at once. `TokenBucket` is Kafka's limit on changes of
topics, and here the limit on bytes too. Kafka limits bytes by its rate, which forgets a burst when
its windows expire: a client that always has more to send gets a burst every 11 seconds, and over 30
seconds up to a fifth more than its quota. A bucket forgets nothing.

`JointRate` and `JointBucket` measure clients that are too many for a gauge each. A client uses
several gauges at the same time. Other clients use each of them too, but seldom the same ones. So
each gauge measures at least what the client uses, and the one that measures least tells best how
much that is: it decides.

Callers pass the milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WINDOW_MS: Final = 1000
WINDOWS: Final = 11
"""Ten complete windows and the current one."""
_MEASURED_MIN_MS: Final = (WINDOWS - 1) * WINDOW_MS
MEASURED_MIN_S: Final = _MEASURED_MIN_MS // 1000
_EXPIRES_MS: Final = WINDOWS * WINDOW_MS
_SLOTS: Final = WINDOWS + 1
"""One more window is kept: the oldest one still overlaps the measured time."""

BYTES_BURST_S: Final = 1
"""The bytes of so many seconds can be sent at once after an idle time."""

THROTTLE_MAX_MS: Final = 2**31 - 1
"""The longest throttle time that a response can express."""


class WindowedRate:
    """The rate of one quota. It looks at all windows only when one begins or expires."""

    __slots__ = (
        "_before",
        "_index",
        "_last_ms",
        "_lasts",
        "_oldest_ms",
        "_starts",
        "_throttle_max_ms",
        "_turn_ms",
        "_value",
        "_values",
        "limit",
        "throttled_ms",
    )

    def __init__(self, limit: float, now_ms: int, throttle_max_ms: int = THROTTLE_MAX_MS) -> None:
        self.limit = limit
        self.throttled_ms = 0
        """The sum of all throttle times."""
        self._throttle_max_ms = throttle_max_ms
        self._index = 0
        self._starts = [now_ms]
        self._lasts = [now_ms]
        """When the last value of each window was recorded; of the current one: `_last_ms`."""
        self._values: list[float] = [0]
        """The sum of each window; of the current one: `_value`."""
        self._value: float = 0
        self._before: float = 0
        """The sum of all windows but the current one."""
        self._last_ms = self._oldest_ms = now_ms
        self._turn_ms = now_ms + WINDOW_MS
        """Until then no window is complete, and none expires."""

    def record(self, amount: float, now_ms: int) -> int:
        """Records what was used. Returns the throttle time in milliseconds."""
        total = self.add(amount, now_ms)
        # The window has at least 10 seconds, so this is below the limit however long it is.
        if total <= self.limit * MEASURED_MIN_S:
            return 0
        return self._throttle(total, now_ms)

    def add(self, amount: float, now_ms: int) -> float:
        """Records what was used. Returns how much was used in the window."""
        if now_ms >= self._turn_ms:
            self._turn(now_ms)
        self._last_ms = now_ms
        self._value += amount
        return self._before + self._value

    def unrecord(self, amount: float, now_ms: int) -> None:
        """Takes back what `record` has recorded at the same time."""
        self.add(-amount, now_ms)

    def rate(self, now_ms: int) -> float:
        """Returns what was used per second. Reading it changes nothing."""
        self._save()
        windows = zip(self._starts, self._values, self._lasts, strict=True)
        kept = [(start, value) for start, value, last in windows if now_ms - last < _EXPIRES_MS]
        oldest_ms = min((start for start, _ in kept), default=now_ms)
        return sum(value for _, value in kept) * 1000 / _window_ms(now_ms - oldest_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Returns whether a new meter would measure the same."""
        return now_ms - self._last_ms >= _EXPIRES_MS

    def _throttle(self, total: float, now_ms: int) -> int:
        window_ms = _window_ms(now_ms - self._oldest_ms)
        rate = total * 1000 / window_ms
        if rate <= self.limit:
            return 0
        throttle_ms = (rate - self.limit) / self.limit * window_ms
        # Compared as floats first: a tiny limit makes the quotient infinite.
        rounded_ms = int(min(throttle_ms, self._throttle_max_ms) + 0.5)
        self.throttled_ms += rounded_ms
        return rounded_ms

    def _save(self) -> None:
        self._values[self._index] = self._value
        self._lasts[self._index] = self._last_ms

    def _turn(self, now_ms: int) -> None:
        """Begins a window if the current one is complete, and drops the expired ones."""
        self._save()
        index = self._index
        if now_ms - self._starts[index] >= WINDOW_MS:
            index = self._index = (index + 1) % _SLOTS
            if index == len(self._starts):
                self._starts.append(now_ms)
                self._lasts.append(now_ms)
                self._values.append(0)
            else:
                self._clear(index, now_ms)
        self._expire(now_ms)

    def _expire(self, now_ms: int) -> None:
        lasts, starts = self._lasts, self._starts
        for index, last_ms in enumerate(lasts):
            if now_ms - last_ms >= _EXPIRES_MS:
                self._clear(index, now_ms)
        current = self._index
        self._value = self._values[current]
        self._last_ms = lasts[current]
        # Summed up from scratch, so that rounding errors do not accumulate.
        self._values[current] = 0
        self._before = sum(self._values)
        self._oldest_ms = min(starts)
        self._turn_ms = min(starts[current] + WINDOW_MS, min(lasts) + _EXPIRES_MS)

    def _clear(self, index: int, now_ms: int) -> None:
        self._values[index] = 0
        self._starts[index] = self._lasts[index] = now_ms


def _window_ms(elapsed_ms: int) -> int:
    """Returns how long was measured. Windows that are missing count as empty."""
    if elapsed_ms < _MEASURED_MIN_MS:
        return _MEASURED_MIN_MS + elapsed_ms % WINDOW_MS
    return elapsed_ms


class TokenBucket:
    """A limit on changes of topics, where each created or deleted partition takes one token, or on
    bytes.

    The bucket starts full, with the tokens of `burst_s` seconds. It may go below zero, so a request
    larger than the bucket succeeds once, and the next one waits longer.
    """

    __slots__ = (
        "_burst_s",
        "_last_ms",
        "_measured",
        "_tokens",
        "limit",
        "throttled_ms",
    )

    def __init__(self, limit: float, now_ms: int, burst_s: int = WINDOWS) -> None:
        self.limit = limit
        self.throttled_ms = 0
        self._burst_s = burst_s
        self._tokens = self._burst
        self._last_ms = now_ms
        self._measured = WindowedRate(limit, now_ms)
        """Only shown: it decides nothing."""

    def admit(self, amount: float, now_ms: int) -> int:
        """Takes tokens and returns 0, unless the bucket is below zero.

        Then it takes none and returns the milliseconds until it is at zero again, at least 1.
        """
        if wait_ms := self.wait_ms(now_ms):
            self.throttled_ms += wait_ms
            return wait_ms
        self._take(amount, now_ms)
        return 0

    def record(self, amount: float, now_ms: int) -> int:
        """Takes tokens in any case. Returns the milliseconds until the bucket is at zero again."""
        self._refill(now_ms)
        self._take(amount, now_ms)
        if self._tokens >= 0:
            return 0
        wait_ms = self.wait_ms(now_ms)
        self.throttled_ms += wait_ms
        return wait_ms

    def rate(self, now_ms: int) -> float:
        """Returns what was used per second. Reading it changes nothing."""
        return self._measured.rate(now_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Returns whether the bucket is full, and shows the same rate as a new one."""
        self._refill(now_ms)
        return self._tokens >= self._burst and self._measured.is_idle(now_ms)

    @property
    def _burst(self) -> float:
        return self.limit * self._burst_s

    def _take(self, amount: float, now_ms: int) -> None:
        self._measured.add(amount, now_ms)
        self._tokens -= amount

    def _refill(self, now_ms: int) -> None:
        refilled = self._tokens + self.limit * (now_ms - self._last_ms) / 1000
        self._tokens = min(self._burst, refilled)
        self._last_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Returns the milliseconds until the bucket is at zero again."""
        self._refill(now_ms)
        if self._tokens >= 0:
            return 0
        wait_ms = min(-self._tokens / self.limit * 1000, THROTTLE_MAX_MS)
        # Kafka rounds to 0 as well, and the client retries at once, in vain.
        return max(1, int(wait_ms + 0.5))


def new_byte_bucket(limit: float, now_ms: int) -> TokenBucket:
    """Returns the gauge of a quota in bytes per second."""
    return TokenBucket(limit, now_ms, BYTES_BURST_S)


class JointRate:
    """Several rates that a client shares with others. The lowest one decides."""

    __slots__ = ("_rates",)

    def __init__(self, rates: Sequence[WindowedRate]) -> None:
        self._rates = rates

    @property
    def limit(self) -> float:
        return self._rates[0].limit

    def record(self, amount: float, now_ms: int) -> int:
        """Records what was used. Returns the throttle time in milliseconds."""
        waits_ms = [rate.record(amount, now_ms) for rate in self._rates]
        least_ms = min(waits_ms)
        for rate, wait_ms in zip(self._rates, waits_ms, strict=True):
            rate.throttled_ms += least_ms - wait_ms
        return least_ms

    def unrecord(self, amount: float, now_ms: int) -> None:
        """Takes back what `record` has recorded at the same time."""
        for rate in self._rates:
            rate.unrecord(amount, now_ms)


class JointBucket:
    """Several token buckets that a client shares with others. The fullest one decides."""

    __slots__ = ("_buckets",)

    def __init__(self, buckets: Sequence[TokenBucket]) -> None:
        self._buckets = buckets

    @property
    def limit(self) -> float:
        return self._buckets[0].limit

    def admit(self, amount: float, now_ms: int) -> int:
        """Takes tokens from all buckets and returns 0, unless all of them are below zero."""
        wait_ms = min(bucket.wait_ms(now_ms) for bucket in self._buckets)
        self._take(0 if wait_ms else amount, wait_ms, now_ms)
        return wait_ms

    def record(self, amount: float, now_ms: int) -> int:
        """Takes tokens in any case. Returns the milliseconds until one bucket is at zero again."""
        self._take(amount, 0, now_ms)
        wait_ms = min(bucket.wait_ms(now_ms) for bucket in self._buckets)
        self._take(0, wait_ms, now_ms)
        return wait_ms

    def _take(self, amount: float, wait_ms: int, now_ms: int) -> None:
        for bucket in self._buckets:
            throttled_ms = bucket.throttled_ms
            bucket.record(amount, now_ms)
            bucket.throttled_ms = throttled_ms + wait_ms
