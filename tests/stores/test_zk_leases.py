"""When a handle of the ZooKeeper store regards a lease as ended."""

from __future__ import annotations

from penstock.stores.zk_format import Pulse
from penstock.stores.zk_leases import CREDIT_INTERVALS, INTERVAL_MAX_S, LeaseObserver

ONE, TWO = Pulse(1, 4000, 0), Pulse(2, 8000, 0)
RTT_S = 0.01


def observe(observer: LeaseObserver, now: float, *pulses: Pulse) -> list[Pulse]:
    return observer.observe(pulses, now - RTT_S, now)


def test_a_lease_ends_when_its_pulse_stays_the_same() -> None:
    """For its time to live, counted from when this handle first saw the pulse."""
    observer = LeaseObserver()
    now, ended_at = 0.0, dict[Pulse, float]()
    while now < 20:
        for pulse in observe(observer, now, ONE, TWO):
            ended_at.setdefault(pulse, now)
        now += 0.25
    assert 4.0 <= ended_at[ONE] <= 5.0
    assert 8.0 <= ended_at[TWO] <= 9.0


def test_a_renewed_lease_goes_on() -> None:
    observer, pulse = LeaseObserver(), ONE
    for step in range(100):
        assert observe(observer, step / 2, pulse) == []
        if step % 7 == 0:
            pulse = pulse.next()


def test_a_lease_that_is_seen_for_the_first_time_has_its_whole_time() -> None:
    """Its holder may have renewed it just before."""
    observer = LeaseObserver()
    observe(observer, 0.0)
    assert observe(observer, 1000.0, ONE) == []
    assert observe(observer, 1000.5, ONE) == []


def test_an_outage_hardly_counts() -> None:
    """Nobody could renew a lease while ZooKeeper did not answer."""
    observer = LeaseObserver()
    observe(observer, 0.0, TWO)
    assert observe(observer, 1000.0, TWO) == []
    now, ended = 1000.0, list[Pulse]()
    while not ended:
        now += 0.5
        ended = observe(observer, now, TWO)
    assert now >= 1008.0 - CREDIT_INTERVALS * INTERVAL_MAX_S


def test_the_wait_for_an_answer_does_not_count() -> None:
    """The answer shows the pulse at some moment between request and answer."""
    observer = LeaseObserver()
    now = 0.0
    for _ in range(7):
        assert observer.observe([ONE], now, now + 0.5) == []
        now += 1.0


def test_leases_are_looked_at_several_times_in_their_time_to_live() -> None:
    observer = LeaseObserver()
    assert observer.interval_s == INTERVAL_MAX_S
    observe(observer, 0.0, ONE, TWO)
    assert observer.interval_s == 0.5
    observe(observer, 0.0, TWO)
    assert observer.interval_s == INTERVAL_MAX_S
    observe(observer, 0.0, Pulse(3, 1, 0))
    assert observer.interval_s > 0
