"""The brakes on copying replicas, in bytes a second: one on each side, as in Kafka.

`follower.replication.throttled.rate` is for what a broker fetches, of the replicas on it that the
topic's `follower.replication.throttled.replicas` names (`leader_link`).
`leader.replication.throttled.rate` is for what it gives out, of those that
`leader.replication.throttled.replicas` names (`handlers/fetch`). Of either only followers that lag
are slowed down: one in sync never is, or `acks=all` would be. An allowance grows with time and
falls by what is fetched; while it is below zero the throttled ones wait. It grows up to a fiftieth
of a second's worth, and no more is asked for at a time: what comes in one burst is in everybody's
way for as long, whatever the rate is over a second.
"""

from __future__ import annotations

from typing import Final

UNLIMITED: Final = 2**63 - 1
_LOOK_AGAIN_MS: Final = 1_000
"""The rate may be changed in the meantime."""
_BURSTS_PER_S: Final = 50
_PIECE_MIN: Final = 64 << 10


class ReplicaThrottle:
    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._allowance = 0.0
        self._counted_ms = 0

    def names(self, replicas: tuple[str, ...], index: int) -> bool:
        """Whether a list of PARTITION:BROKER pairs, or a star, has this broker's replica in it."""
        return replicas == ("*",) or f"{index}:{self._broker_id}" in replicas

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """How long the throttled must wait before they may fetch; 0 if they may now."""
        if rate >= UNLIMITED:
            self._allowance, self._counted_ms = 0.0, now_ms
            return 0
        gained = rate * (now_ms - self._counted_ms) / 1000
        self._allowance = min(self._allowance + gained, rate / _BURSTS_PER_S)
        self._counted_ms = now_ms
        if rate == 0:
            return _LOOK_AGAIN_MS
        if self._allowance >= 0:
            return 0
        return min(_LOOK_AGAIN_MS, int(-self._allowance * 1000 / rate) + 1)

    def piece(self, rate: int, throttled: int) -> int:
        """How much to ask for of each of so many that are throttled."""
        return max(_PIECE_MIN, rate // _BURSTS_PER_S // max(1, throttled))

    def on_fetched(self, size: int) -> None:
        self._allowance -= size
