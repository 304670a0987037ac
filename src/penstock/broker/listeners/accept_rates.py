"""Limits how fast the listeners accept connections: `max.connection.creation.rate`.

There is a rate of the broker, for all listeners together, and each listener can have one of its
own. A listener over one of the rates accepts no connection for a while, at most a second. Further
connections wait in the backlog of its socket, as in Kafka. This is before the TLS handshake, which
costs the most.

If brokers have a listener of their own, only its own rate limits it. Its connections do not count
in the rate of the broker: clients cannot keep brokers from connecting to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.broker.access.quotas import Throttled
from penstock.metadata.config_types import INT_MAX
from penstock.ports import Pace
from penstock.security.gauges import WindowedRate
from penstock.security.rates import SHORT_THROTTLE_MAX_MS


class AcceptRates:
    """The rates of one broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._broker = WindowedRate(INT_MAX, now_ms(), SHORT_THROTTLE_MAX_MS)
        self.delays: dict[str, Throttled] = {}
        """By listener: how often and for how long it accepted no connection."""

    def set_rate(self, rate_max: int) -> None:
        """Changes the rate of the broker, in connections per second."""
        self._broker.limit = max(1, rate_max)

    def pace(self, listener: str, rate_max: int | None, *, is_protected: bool) -> Pace:
        """Returns what a listener asks for each connection.

        `rate_max` is the listener's own rate; None for no limit. `is_protected`: the rate of the
        broker does not apply."""
        self.delays[listener] = Throttled()
        rates = [] if is_protected else [self._broker]
        if rate_max is not None:
            rates.append(WindowedRate(max(1, rate_max), self._now_ms(), SHORT_THROTTLE_MAX_MS))
        return partial(self._record, rates, self.delays[listener])

    def _record(self, rates: list[WindowedRate], delays: Throttled) -> float:
        now_ms = self._now_ms()
        wait_ms = max((rate.record(1, now_ms) for rate in rates), default=0)
        if wait_ms:
            delays.add(wait_ms)
        return wait_ms / 1000
