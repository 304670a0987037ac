"""Which topics have figures of their own.

A time series for each topic would be thousands on a large broker, and each scrape would pay for
them all. So there are so many places, and one more for all topics without: what these do is added
up there, and the sums stay right.

While there is room every topic has a place. When it runs short topics that carry something go
before those at rest; and one that carries something takes the place of one that has carried nothing
for `IDLE_S`. A topic that has gone from this broker gives its place up. What a place has counted
only grows as long as the topic has it, so a counter never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IDLE_S: Final = 3600.0


@dataclass(slots=True)
class Traffic:
    """What went in and out of a topic, and what its logs take."""

    received_bytes: int = 0
    received_records: int = 0
    sent_bytes: int = 0
    replicated_bytes: int = 0
    size_bytes: int = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.received_bytes or self.sent_bytes or self.replicated_bytes)

    def add(self, more: Traffic) -> None:
        """Count what is new; the size is as it is now, and for its owner to begin at 0."""
        self.received_bytes += more.received_bytes
        self.received_records += more.received_records
        self.sent_bytes += more.sent_bytes
        self.replicated_bytes += more.replicated_bytes
        self.size_bytes += more.size_bytes


class TopicPlaces:
    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._busy_at: dict[str, float] = {}
        """Those with a place, and when each was last seen to carry something."""
        self.rows: dict[str, Traffic] = {}
        self.other = Traffic()

    def update(self, news: Mapping[str, Traffic], now: float) -> None:
        """Take in what is new for each topic that is on this broker."""
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
        if len(self.rows) + len(waiting) > self._places_max:
            waiting.sort(key=lambda topic: not news[topic].is_busy)
            self._make_room(sum(news[topic].is_busy for topic in waiting), news, now)
        for topic in waiting[: max(0, self._places_max - len(self.rows))]:
            self.rows[topic] = Traffic()
            self._busy_at[topic] = now

    def _make_room(self, wanted: int, news: Mapping[str, Traffic], now: float) -> None:
        lacking = wanted - (self._places_max - len(self.rows))
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
