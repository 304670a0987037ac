"""Chooses which topics get their own time series.

A series per topic would mean thousands of series on a large broker, and every scrape would pay for
all of them. So the number of topics with their own series is limited. The traffic of all other
topics is added up in one more series, so that the sums stay right.

While the limit is not reached, every topic gets a series. After that, busy topics are preferred to
idle ones, and a busy topic replaces one that had no traffic for `IDLE_S`. A topic that is no longer
on this broker loses its series. The counters of a series only grow while its topic has it, so a
counter never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IDLE_S: Final = 3600.0


@dataclass(slots=True)
class Traffic:
    """A topic's traffic, and the size of its logs."""

    received_bytes: int = 0
    received_records: int = 0
    sent_bytes: int = 0
    replicated_bytes: int = 0
    size_bytes: int = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.received_bytes or self.sent_bytes or self.replicated_bytes)

    def add(self, more: Traffic) -> None:
        """Adds traffic. The size is a current value, not an increment, so the caller resets it to 0
        first."""
        self.received_bytes += more.received_bytes
        self.received_records += more.received_records
        self.sent_bytes += more.sent_bytes
        self.replicated_bytes += more.replicated_bytes
        self.size_bytes += more.size_bytes


class TopTopics:
    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._busy_at: dict[str, float] = {}
        """The topics with a series, and when each last had traffic."""
        self.rows: dict[str, Traffic] = {}
        self.other = Traffic()

    def update(self, news: Mapping[str, Traffic], now: float) -> None:
        """Adds the new traffic of each topic on this broker."""
        for topic in [topic for topic in self.rows if topic not in news]:
            self._leave(topic)
        self._admit(news, now)
        self.other.size_bytes = 0
        for row in self.rows.values():
            row.size_bytes = 0
        for topic, traffic in news.items():
            row = self.rows.get(topic, self.other)
            row.add(traffic)
            if traffic.is_busy and row is not self.other:
                self._busy_at[topic] = now

    def _admit(self, news: Mapping[str, Traffic], now: float) -> None:
        waiting = [topic for topic in news if topic not in self.rows]
        if len(self.rows) + len(waiting) > self._topics_max:
            waiting.sort(key=lambda topic: not news[topic].is_busy)
            self._make_room(sum(news[topic].is_busy for topic in waiting), news, now)
        for topic in waiting[: max(0, self._topics_max - len(self.rows))]:
            self.rows[topic] = Traffic()
            self._busy_at[topic] = now

    def _make_room(self, wanted: int, news: Mapping[str, Traffic], now: float) -> None:
        lacking = wanted - (self._topics_max - len(self.rows))
        if lacking <= 0:
            return
        idle = sorted(
            (busy_at, topic)
            for topic, busy_at in self._busy_at.items()
            if now - busy_at >= IDLE_S and not news[topic].is_busy
        )
        for _, topic in idle[:lacking]:
            self._leave(topic)

    def _leave(self, topic: str) -> None:
        del self.rows[topic]
        del self._busy_at[topic]
