"""Measures how long drivers take to start Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.broker.counters import Histogram
from penstock.ports import Clock
from penstock.spark.deployments.metrics.figures import START_BOUNDS_S

OnEvent = Callable[[Mapping[str, Any]], None]


class StartTimes:
    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(START_BOUNDS_S)
        self._clock = clock

    def watching(self, on_event: OnEvent) -> OnEvent:
        """Returns `on_event` for a driver that is started now."""
        began = self._clock.monotonic()

        def watch(event: Mapping[str, Any]) -> None:
            if event.get("event") == "warm":
                self.histogram.observe(self._clock.monotonic() - began)
            on_event(event)

        return watch
