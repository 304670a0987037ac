"""Decides which leases of a ZooKeeper store have ended: a pure machine.

Each renewal of a lease replaces its pulse, a znode whose name counts the renewals. Every handle
looks at the names of all pulses again and again (`observe`). A lease whose pulse stays the same for
its time to live has ended, and the handle removes it with its keys. That removal names the pulse:
ZooKeeper refuses it if the holder was faster.

So the holder always knows first that its lease may be over. It counts from when it sent the
renewal. A handle that observes counts from when it received the answer with the new name, which was
later. Each reads a monotonic clock of its own, so the difference of two clocks does not matter, but
only the difference of their speeds.

While ZooKeeper has no majority, no holder can renew. So only time during which ZooKeeper answers
counts: between two observations at most `CREDIT_INTERVALS` intervals count, however long it was.
After an outage, holders have as much time left as they had before, except for that. A handle that
was frozen, or whose machine was, counts no more either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.stores.zk_format import Pulse

INTERVAL_MIN_S: Final = 0.05
INTERVAL_MAX_S: Final = 1.0
INTERVALS_PER_TTL: Final = 8
CREDIT_INTERVALS: Final = 2


@dataclass(slots=True)
class _Seen:
    pulse: Pulse
    age_s: float


class LeaseObserver:
    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._observed_at: float | None = None

    @property
    def interval_s(self) -> float:
        """How long to wait until the next observation."""
        shortest_ms = min((seen.pulse.ttl_ms for seen in self._seen.values()), default=None)
        if shortest_ms is None:
            return INTERVAL_MAX_S
        return min(max(shortest_ms / 1000 / INTERVALS_PER_TTL, INTERVAL_MIN_S), INTERVAL_MAX_S)

    def observe(self, pulses: Iterable[Pulse], asked_at: float, now: float) -> list[Pulse]:
        """Notes the pulses that ZooKeeper has, and returns those whose leases have ended.

        `asked_at` is when they were requested, `now` is when the answer came."""
        passed_s = 0.0
        if self._observed_at is not None:
            # The pulses are those of some moment after `asked_at`.
            most_s = CREDIT_INTERVALS * self.interval_s
            passed_s = min(max(asked_at - self._observed_at, 0.0), most_s)
        self._observed_at = now
        seen: dict[int, _Seen] = {}
        for pulse in pulses:
            before = self._seen.get(pulse.lease)
            same = before is not None and before.pulse == pulse
            seen[pulse.lease] = _Seen(pulse, before.age_s + passed_s if before and same else 0.0)
        self._seen = seen
        return [each.pulse for each in seen.values() if each.age_s * 1000 >= each.pulse.ttl_ms]
