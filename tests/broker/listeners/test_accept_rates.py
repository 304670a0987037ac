"""max.connection.creation.rate: of the broker, and of one listener."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.listeners.accept_rates import AcceptRates

BURST_S = 10
"""A fresh listener may use its rate of this many seconds at once, as in Kafka."""
WAIT_MAX_S = 1.0


class Now:
    """A clock that stands still until a listener waits."""

    def __init__(self) -> None:
        self.ms = 5_000

    def __call__(self) -> int:
        return self.ms

    def accepted(self, pace: Callable[[], float], seconds: float) -> int:
        """Returns how many connections a listener accepts in this time if more always wait."""
        end_ms, count = self.ms + seconds * 1000, 0
        while self.ms < end_ms:
            wait_s = pace()
            assert 0 <= wait_s <= WAIT_MAX_S
            count += 1
            self.ms += round(wait_s * 1000)
        return count


def test_a_listener_accepts_its_burst_at_once_and_then_its_rate() -> None:
    now = Now()
    rates = AcceptRates(now)
    pace = rates.pace("L", 20, is_protected=False)
    waits = [pace() for _ in range(20 * BURST_S + 1)]
    assert not any(waits[:-1])
    assert waits[-1] > 0
    assert 20 * 60 * 0.7 <= now.accepted(pace, 60) <= 20 * 60 * 1.1
    assert rates.delays["L"].count > 100
    assert rates.delays["L"].ms > 10_000


def test_the_rate_of_the_broker_holds_for_all_its_listeners_together() -> None:
    now = Now()
    rates = AcceptRates(now)
    one, two = (rates.pace(name, None, is_protected=False) for name in ("ONE", "TWO"))
    assert not any(one() + two() for _ in range(10_000)), "there is no limit by default"
    now.ms += 60_000
    rates.set_rate(10)
    waits = [one() + two() for _ in range(10 * BURST_S)]
    assert not any(waits[: 5 * BURST_S])
    assert all(waits[5 * BURST_S :])
    assert rates.delays["ONE"].count == rates.delays["TWO"].count == 5 * BURST_S


def test_the_listener_of_brokers_is_not_delayed_when_clients_use_up_the_rate() -> None:
    now = Now()
    rates = AcceptRates(now)
    rates.set_rate(1)
    clients = rates.pace("CLIENTS", None, is_protected=False)
    brokers = rates.pace("BROKERS", None, is_protected=True)
    assert any(clients() for _ in range(100))
    assert not any(brokers() for _ in range(1000))
    assert rates.delays["BROKERS"].count == 0
    now.ms += 60_000
    assert not any(clients() for _ in range(BURST_S)), "connections of brokers do not count"


def test_the_listener_of_brokers_can_have_a_rate_of_its_own() -> None:
    brokers = AcceptRates(Now()).pace("BROKERS", 1, is_protected=True)
    waits = [brokers() for _ in range(BURST_S + 1)]
    assert not any(waits[:-1])
    assert waits[-1] > 0


def test_a_rate_of_zero_accepts_one_connection_per_second() -> None:
    now = Now()
    pace = AcceptRates(now).pace("L", 0, is_protected=False)
    now.accepted(pace, 30)
    assert 20 <= now.accepted(pace, 30) <= 31
