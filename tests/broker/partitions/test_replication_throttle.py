"""The throttle of replication, in bytes per second."""

from __future__ import annotations

from penstock.broker.partitions.replication_throttle import UNLIMITED, ReplicationThrottle


def test_without_a_rate_no_replica_waits() -> None:
    """What was fetched without a rate does not count once a rate is set."""
    throttle = ReplicationThrottle(2)
    assert throttle.wait_ms(UNLIMITED, 0) == 0
    throttle.on_fetched(10**9)
    assert throttle.wait_ms(UNLIMITED, 1) == 0
    assert throttle.wait_ms(1000, 2) == 0


def test_over_time_no_more_than_the_throttled_rate_is_fetched() -> None:
    """After a pause, at most a fiftieth of a second's worth may be fetched at once."""
    throttle = ReplicationThrottle(2)
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


def test_the_size_of_a_throttled_fetch_is_proportional_to_the_rate() -> None:
    """All throttled replicas share a fiftieth of a second's worth, with a minimum for each."""
    throttle = ReplicationThrottle(2)
    assert throttle.piece(20_000_000, 4) == 100_000
    assert throttle.piece(20_000_000, 1) == 400_000
    assert throttle.piece(20_000_000, 1000) == 64 << 10


def test_with_a_rate_of_zero_replicas_check_again_every_second() -> None:
    """The rate may change while they wait."""
    throttle = ReplicationThrottle(2)
    assert throttle.wait_ms(0, 5) == 1000
    assert throttle.wait_ms(0, 5000) == 1000
    assert throttle.wait_ms(10, 5001) == 0


def test_throttled_replicas_are_listed_as_pairs_or_as_a_star() -> None:
    """A pair is a partition and a broker."""
    throttle = ReplicationThrottle(2)
    assert throttle.names(("0:1", "3:2"), 3)
    assert not throttle.names(("0:1", "3:2"), 0)
    assert not throttle.names((), 0)
    assert throttle.names(("*",), 7)
