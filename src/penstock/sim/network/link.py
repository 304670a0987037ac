"""A link: one direction between two simulated machines, with its delays and faults."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import Final, Protocol

from penstock.sim.loop import SimLoop

BACKOFF_S_MAX: Final = 4.0
"""The longest pause between two attempts to retransmit."""


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    delay_min_s: float = 0.0002
    delay_mean_s: float = 0.0008
    """The mean of the random part of the delay, on top of the minimum."""
    tail_chance: float = 0.005
    tail_s: float = 0.2
    """Occasionally a delay is up to this much longer."""
    cut_chance: float = 0.1
    """The chance that a read returns less than is available."""
    window_bytes: int = 256 << 10
    bandwidth_bytes_per_s: float | None = None


class Delayed(Protocol):
    """Something in flight that waits until its link is open again."""

    def resend(self, pause_s: float = 0.0) -> None: ...


class Link:
    """One direction between two machines."""

    __slots__ = (
        "_blocked_at",
        "_busy_until",
        "_draws",
        "_loop",
        "bandwidth_bytes_per_s",
        "blocked",
        "clogged_until",
        "config",
        "extra_s",
        "refused",
        "stalled",
    )

    def __init__(self, loop: SimLoop, config: NetworkConfig, draws: Random) -> None:
        self._loop = loop
        self.config = config
        self._draws = draws
        self._busy_until = 0.0
        self._blocked_at = 0.0
        self.blocked = False
        self.stalled: dict[Delayed, None] = {}
        self.heal()

    def heal(self) -> None:
        self.extra_s = 0.0
        self.clogged_until = 0.0
        self.refused = False
        self.bandwidth_bytes_per_s = self.config.bandwidth_bytes_per_s
        self.unblock()

    def block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._blocked_at = self._loop.now

    def unblock(self) -> None:
        """Lets everything through. Old connections retry less and less often, so their bytes
        come late."""
        self.blocked = False
        stalled, self.stalled = self.stalled, {}
        backoff_s = min(self._loop.now - self._blocked_at, BACKOFF_S_MAX)
        for each in stalled:
            each.resend(backoff_s * self._draws.random())

    def delay(self, size: int) -> float:
        config, draw = self.config, self._draws.random
        delay = config.delay_min_s - config.delay_mean_s * log(1.0 - draw()) + self.extra_s
        if draw() < config.tail_chance:
            delay += config.tail_s * draw()
        rate = self.bandwidth_bytes_per_s
        if rate is not None:
            now = self._loop.now
            self._busy_until = max(self._busy_until, now) + size / rate
            delay += self._busy_until - now
        return delay

    def piece(self, size: int) -> int:
        """Returns how many of the available bytes one read gives."""
        if size > 1 and self._draws.random() < self.config.cut_chance:
            return 1 + int(self._draws.random() * (size - 1))
        return size
