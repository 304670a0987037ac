"""Limits the bytes per second of replication, on the leader and on the follower, as in Kafka.

`follower.replication.throttled.rate` limits what a broker fetches, for its replicas that the
topic's `follower.replication.throttled.replicas` names (`leader_link`).
`leader.replication.throttled.rate` limits what it sends, for its replicas that
`leader.replication.throttled.replicas` names (`handlers/fetch`). Both apply only to followers that
lag. An in-sync follower is never throttled, because that would throttle `acks=all`.

An allowance grows with time and shrinks by what is fetched. While it is below zero, throttled
replicas wait. It is capped at a fiftieth of a second's worth, and no single request asks for more,
apart from a minimum per replica. A larger burst would delay other traffic for its whole duration,
even if the rate over a second is right.
"""

from __future__ import annotations

from typing import Final

UNLIMITED: Final = 2**63 - 1
_LOOK_AGAIN_MS: Final = 1_000
"""The longest wait, because the rate may change in the meantime."""
_BURSTS_PER_S: Final = 50
_PIECE_MIN: Final = 64 << 10


class ReplicationThrottle:
    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._allowance = 0.0
        self._counted_ms = 0

    def names(self, replicas: tuple[str, ...], index: int) -> bool:
        """Whether a list of PARTITION:BROKER pairs, or `*`, includes this broker's replica."""
        return replicas == ("*",) or f"{index}:{self._broker_id}" in replicas

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """How long throttled replicas must wait before they may fetch. 0 if they may fetch now."""
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
        """How many bytes to request for each replica if this many are throttled."""
        return max(_PIECE_MIN, rate // _BURSTS_PER_S // max(1, throttled))

    def on_fetched(self, size: int) -> None:
        self._allowance -= size
