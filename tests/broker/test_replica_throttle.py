"""The brake on replicas that are being copied."""

from __future__ import annotations

from penstock.broker.replica_throttle import UNLIMITED, ReplicaThrottle


def test_without_a_rate_nobody_waits() -> None:
    """And what was fetched meanwhile is not held against anyone later."""
    throttle = ReplicaThrottle(2)
    assert throttle.wait_ms(UNLIMITED, 0) == 0
    throttle.on_fetched(10**9)
    assert throttle.wait_ms(UNLIMITED, 1) == 0
    assert throttle.wait_ms(1000, 2) == 0


def test_over_time_no_more_than_the_rate_is_fetched() -> None:
    """A fiftieth of a second's worth may come at once, after a pause."""
    throttle = ReplicaThrottle(2)
    now_ms, fetched = 10_000, 0
    assert throttle.wait_ms(1000, now_ms) == 0
    end_ms = now_ms + 20_000
    while now_ms < end_ms:
        wait_ms = throttle.wait_ms(1000, now_ms)
        if wait_ms == 0:
            throttle.on_fetched(700)
            fetched += 700
        else:
            now_ms += wait_ms
    assert 19_000 <= fetched <= 21_000


def test_what_is_asked_for_at_once_is_in_proportion_to_the_rate() -> None:
    """A fiftieth of a second's worth among all that are throttled, in pieces that are worth it."""
    throttle = ReplicaThrottle(2)
    assert throttle.piece(20_000_000, 4) == 100_000
    assert throttle.piece(20_000_000, 1) == 400_000
    assert throttle.piece(20_000_000, 1000) == 64 << 10


def test_a_rate_of_nothing_is_looked_at_again() -> None:
    """It may be changed while everybody waits."""
    throttle = ReplicaThrottle(2)
    assert throttle.wait_ms(0, 5) == 1000
    assert throttle.wait_ms(0, 5000) == 1000
    assert throttle.wait_ms(10, 5001) == 0


def test_replicas_are_named_by_pairs_or_by_a_star() -> None:
    """Partition and broker."""
    throttle = ReplicaThrottle(2)
    assert throttle.names(("0:1", "3:2"), 3)
    assert not throttle.names(("0:1", "3:2"), 0)
    assert not throttle.names((), 0)
    assert throttle.names(("*",), 7)
