"""Sharing under overload: what each tenant gets, however much the others ask for."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.security import fair_share
from penstock.security.fair_share import (
    TENANTS_MAX,
    Admission,
    FairShare,
)

Ticket = tuple[str, int]
"""The tenant and a number."""


@dataclass
class _Broker:
    """Runs requests in the order that `FairShare` decides, and notes what started."""

    share: FairShare[Ticket]
    costs: dict[Ticket, float] = field(default_factory=dict)
    started: list[Ticket] = field(default_factory=list)
    running: list[Ticket] = field(default_factory=list)

    def send(self, tenant: str, cost: float) -> Ticket:
        ticket = (tenant, len(self.costs))
        self.costs[ticket] = cost
        admission = self.share.arrive(tenant, cost, ticket)
        if admission is Admission.START:
            self._start([ticket])
        return ticket

    def finish_one(self, index: int = 0) -> None:
        ticket = self.running.pop(index % len(self.running))
        self._start(self.share.finish(ticket))

    def _start(self, tickets: list[Ticket]) -> None:
        self.started += tickets
        self.running += tickets

    def work(self, tenant: str, since: int = 0) -> float:
        """Returns the cost of the tenant's requests that started since a position."""
        return sum(self.costs[each] for each in self.started[since:] if each[0] == tenant)


def test_without_overload_every_request_starts_at_once() -> None:
    share = FairShare[int](100)
    assert [share.arrive("greedy", 25, number) for number in range(4)] == [Admission.START] * 4
    assert share.arrive("modest", 1, 4) is Admission.WAIT
    assert share.finish(0) == [4]
    assert share.queued == 0


def test_tenants_take_turns_by_cost() -> None:
    """The greedy tenant has sent first and most, and still gets one of two turns."""
    broker = _Broker(FairShare(1))
    for _ in range(50):
        broker.send("greedy", 1)
    for _ in range(5):
        broker.send("modest", 1)
    for _ in range(12):
        broker.finish_one()
    assert Counter(tenant for tenant, _ in broker.started[:12]) == {"greedy": 7, "modest": 5}


def test_large_requests_do_not_get_a_larger_share() -> None:
    broker = _Broker(FairShare(10))
    for _ in range(100):
        broker.send("large", 10)
        broker.send("small", 1)
        broker.send("small", 1)
    while broker.share.queued > 150:
        broker.finish_one()
    assert abs(broker.work("large") - broker.work("small")) <= 11


def test_weights_divide_the_broker() -> None:
    broker = _Broker(FairShare(1, {"gold": 3}))
    for _ in range(200):
        broker.send("gold", 1)
        broker.send("plain", 1)
    for _ in range(200):
        broker.finish_one()
    assert broker.work("gold") == pytest.approx(3 * broker.work("plain"), abs=8)


def test_a_request_larger_than_the_capacity_runs_alone() -> None:
    broker = _Broker(FairShare(10))
    broker.send("small", 1)
    large = broker.send("large", 1000)
    broker.send("small", 1)
    assert broker.running == [("small", 0)]
    broker.finish_one()
    assert broker.running == [large]
    broker.finish_one()
    assert broker.running == [("small", 2)]


def test_an_idle_tenant_gets_nothing_for_having_waited() -> None:
    """One tenant works alone for long. The other then gets half, not all that it has missed."""
    broker = _Broker(FairShare(1))
    broker.send("patient", 1)
    for _ in range(200):
        broker.send("busy", 1)
    for _ in range(101):
        broker.finish_one()
    position = len(broker.started)
    for _ in range(100):
        broker.send("patient", 1)
    for _ in range(40):
        broker.finish_one()
    assert abs(broker.work("patient", position) - broker.work("busy", position)) <= 2


def test_a_request_that_takes_long_saves_up_nothing() -> None:
    """A tenant that always has one request in progress is not idle, and gets no credit either."""
    broker = _Broker(FairShare(2))
    broker.send("patient", 1)
    for _ in range(200):
        broker.send("busy", 1)
    for _ in range(100):
        broker.finish_one(1)
    position = len(broker.started)
    for _ in range(100):
        broker.send("patient", 1)
    for _ in range(40):
        broker.finish_one(1)
    assert abs(broker.work("patient", position) - broker.work("busy", position)) <= 2


def test_what_a_tenant_used_alone_is_not_held_against_it() -> None:
    broker = _Broker(FairShare(2))
    for _ in range(100):
        broker.send("early", 1)
        if len(broker.running) == 2:
            broker.finish_one()
    position = len(broker.started)
    for _ in range(20):
        broker.send("early", 1)
        broker.send("late", 1)
    for _ in range(20):
        broker.finish_one()
    assert abs(broker.work("early", position) - broker.work("late", position)) <= 2


# Properties

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_COSTS = st.integers(1, 20)
ON_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine must not fail a test."""
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), _NAMES, _COSTS),
        st.tuples(st.just("finish"), _NAMES, _COSTS),
    ),
    min_size=20,
    max_size=200,
)
_WEIGHTS = st.dictionaries(_NAMES, st.sampled_from([0.5, 1, 2, 4]))


@ON_ANY_MACHINE
@given(st.integers(1, 60), _WEIGHTS, _STEPS)
def test_a_tenant_that_waits_gets_its_share(
    capacity: int, weights: dict[str, float], steps: list[tuple[str, str, int]]
) -> None:
    """The bound that the module states, for every interval in which a tenant has waiting requests.

    The tenant "greedy" always has many.
    """
    broker = _Broker(FairShare(capacity, weights))
    largest: dict[str, float] = defaultdict(float, greedy=20)
    total_weight = 1 + sum(weights.get(name, 1) for name in "abcd")
    waiting_since: dict[str, int] = {}
    for _ in range(100):
        broker.send("greedy", 20)
    for kind, name, number in steps:
        if kind == "send":
            largest[name] = max(largest[name], number)
            broker.send(name, number)
        elif broker.running:
            broker.finish_one(number)
        waiting = {tenant for tenant, each in broker.costs if (tenant, each) not in broker.started}
        waiting_since = {
            tenant: waiting_since.get(tenant, len(broker.started)) for tenant in waiting
        }
        for tenant, position in waiting_since.items():
            everything = sum(broker.costs[each] for each in broker.started[position:])
            share = weights.get(tenant, 1) / total_weight
            least = share * (everything - sum(largest.values())) - largest[tenant]
            assert broker.work(tenant, position) >= least - 1e-6


@ON_ANY_MACHINE
@given(st.integers(1, 60), _WEIGHTS, st.lists(_COSTS, min_size=1, max_size=15), st.data())
def test_a_tenant_with_one_request_at_a_time_waits_for_a_bounded_amount(
    capacity: int, weights: dict[str, float], costs: list[int], data: st.DataObject
) -> None:
    """Each other tenant starts no more than the module states while the request waits."""
    broker = _Broker(FairShare(capacity, weights))
    greedy = ["b", "c", "d"]
    for cost in costs:
        for name in greedy:
            for _ in range(15):
                if len([each for each in broker.costs if each[0] == name]) < 200:
                    broker.send(name, data.draw(_COSTS))
        position = len(broker.started)
        ticket = broker.send("a", cost)
        for _ in range(400):
            if ticket in broker.started:
                break
            broker.finish_one(data.draw(st.integers(0, 3)))
        assert ticket in broker.started
        for name in greedy:
            most = weights.get(name, 1) / weights.get("a", 1) * max(costs) + 20
            before = sum(
                broker.costs[each]
                for each in broker.started[position : broker.started.index(ticket)]
                if each[0] == name
            )
            assert before <= most + 1e-6
        while ticket in broker.running:
            broker.finish_one(broker.running.index(ticket))


@ON_ANY_MACHINE
@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 10))
def test_modest_tenants_get_all_they_ask_for_next_to_a_greedy_one(
    capacity: int, modest: int, cost: int
) -> None:
    """Each modest tenant asks for less than its share. It never has more than one in the queue."""
    broker = _Broker(FairShare(capacity))
    for _ in range(256):
        broker.send("greedy", cost)
    sent: Counter[str] = Counter()
    for turn in range(60):
        tenant = f"modest{turn % modest}"
        broker.send(tenant, cost)
        sent[tenant] += 1
        # The broker does twice the work that the modest tenants ask for.
        broker.finish_one(turn)
        broker.finish_one(turn)
        for name, count in sent.items():
            assert broker.work(name) >= (count - 1) * cost
    assert broker.work("greedy") > 0


@ON_ANY_MACHINE
@given(st.integers(1, 60), _STEPS, st.sets(st.integers(0, 100)))
def test_no_request_is_lost_and_the_capacity_holds(
    capacity: int, steps: list[tuple[str, str, int]], canceled: set[int]
) -> None:
    share = FairShare[Ticket](capacity, tenants_max=3)
    broker = _Broker(share)
    gone: set[Ticket] = set()
    for number, (kind, name, value) in enumerate(steps):
        if kind == "send":
            broker.send(name, value)
        elif broker.running:
            broker.finish_one(value)
        if number in canceled and broker.costs:
            ticket = list(broker.costs)[value % len(broker.costs)]
            gone.add(ticket)
            if ticket in broker.running:
                broker.running.remove(ticket)
            for each in share.cancel(ticket):
                broker.started.append(each)
                broker.running.append(each)
        in_progress = sum(broker.costs[each] for each in broker.running)
        assert in_progress <= capacity or len(broker.running) == 1
        assert share.tenants <= 4
        assert not share.queued or broker.running
    while broker.running:
        broker.finish_one()
    assert share.queued == 0
    assert share.tenants == 0
    assert set(broker.started) | gone == set(broker.costs)
    assert len(broker.started) == len(set(broker.started))


# Actual costs


def test_a_tenant_pays_later_for_what_cost_more_than_expected() -> None:
    share = FairShare[Ticket](1)
    broker = _Broker(share)
    for _ in range(150):
        broker.send("liar", 1)
        broker.send("honest", 1)
    for _ in range(120):
        ticket = broker.running.pop()
        tickets = share.finish(ticket, actual=10 if ticket[0] == "liar" else 1)
        broker.started += tickets
        broker.running += tickets
    count = Counter(tenant for tenant, _ in broker.started)
    assert count["honest"] == pytest.approx(10 * count["liar"], abs=20)


def test_a_canceled_request_does_not_clear_a_debt() -> None:
    share = FairShare[str](2)
    share.arrive("liar", 1, "expensive")
    share.arrive("honest", 1, "running")
    share.arrive("honest", 1, "next")
    share.arrive("liar", 1, "bait")
    assert share.cancel("bait") == []
    assert share.finish("expensive", actual=100) == ["next"]
    share.arrive("liar", 1, "again")
    for number in range(20):
        share.arrive("honest", 1, f"honest {number}")
    started: list[str] = []
    running = ["running", "next"]
    while running:
        now = share.finish(running.pop(0))
        started += now
        running += now
    assert started.index("again") == 20


def test_a_tenant_that_disconnects_pays_what_its_request_has_cost() -> None:
    """Each request of the liar is canceled while it is processed."""
    share = FairShare[Ticket](1)
    broker = _Broker(share)
    for _ in range(150):
        broker.send("liar", 1)
        broker.send("honest", 1)
    for _ in range(120):
        ticket = broker.running.pop()
        is_liar = ticket[0] == "liar"
        tickets = share.cancel(ticket, actual=10) if is_liar else share.finish(ticket)
        broker.started += tickets
        broker.running += tickets
    count = Counter(tenant for tenant, _ in broker.started)
    assert count["honest"] == pytest.approx(10 * count["liar"], abs=20)


def test_a_request_that_is_canceled_before_it_starts_costs_nothing() -> None:
    share = FairShare[str](1)
    share.arrive("other", 1, "running")
    share.arrive("gone", 1, "canceled")
    share.arrive("other", 1, "next")
    assert share.cancel("canceled", actual=100) == []
    share.arrive("gone", 1, "again")
    assert share.finish("running") == ["again"]


# Hostile tenants


def test_requests_without_cost_do_not_go_first_forever() -> None:
    """There is always a free request that waits. Each counts as if it had the smallest cost."""
    broker = _Broker(FairShare(1))
    broker.send("free", 0)
    broker.send("honest", 20 * fair_share.COST_MIN)
    honest = broker.send("honest", 1)
    for _ in range(100):
        broker.send("free", 0)
        broker.send("free", 0)
        broker.finish_one()
    assert 15 <= broker.started.index(honest) <= 25


def test_tenants_beyond_the_limit_share_one_queue() -> None:
    broker = _Broker(FairShare(1, {"0": 1}, tenants_max=2))
    for number in range(100):
        broker.send(str(number % 50), 1)
    assert broker.share.tenants == 3
    for _ in range(8):
        broker.finish_one()
    # Two tenants with queues of their own have two requests each: they are done first.
    assert sum(broker.work(str(number)) for number in (0, 1)) == 4


def test_many_tenants_are_forgotten() -> None:
    broker = _Broker(FairShare(10))
    broker.send("steady", 1)
    for number in range(5 * TENANTS_MAX):
        broker.send(f"user{number}", 1)
        broker.finish_one(1)
    assert broker.share.tenants <= TENANTS_MAX + 1
    broker.finish_one()
    assert broker.share.tenants == 0


def test_a_connection_that_comes_and_goes_leaves_nothing_behind() -> None:
    """A waiting request is canceled when its connection ends, and its place is free again."""
    share = FairShare[int](1)
    share.arrive("steady", 1, 0)
    share.arrive("steady", 1, 1)
    for number in range(2, 5000):
        assert share.arrive("mallory", 1, number) is Admission.WAIT
        assert share.cancel(number) == []
    assert share.queued == 1
    assert share.tenants == 2
    assert share.cancel(4_999) == []
    assert share.cancel(0) == [1]
    assert share.finish(1) == []
    assert share.tenants == 0


def test_tags_stay_exact_when_the_broker_is_never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "_VIRTUAL_TIME_MAX", 5.0)
    broker = _Broker(FairShare(1))
    for _ in range(100):
        broker.send("one", 1)
        broker.send("other", 1)
    for _ in range(150):
        broker.finish_one()
        assert abs(broker.work("one") - broker.work("other")) <= 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_numbers_that_make_no_sense_are_refused(value: float) -> None:
    share = FairShare[int](1)
    with pytest.raises(ValueError, match="the cost is"):
        share.arrive("a", value, 1)
    with pytest.raises(ValueError, match="the capacity is"):
        share.set_capacity(value)
    with pytest.raises(ValueError, match="the weight is"):
        FairShare[int](1, {"a": value})


@pytest.mark.parametrize("capacity", [fair_share.CAPACITY_MIN, 1.0, fair_share.CAPACITY_MAX])
def test_huge_costs_do_not_break_the_order(capacity: float) -> None:
    """They count as the largest cost, and the weights still decide."""
    broker = _Broker(FairShare(capacity, {"light": fair_share.WEIGHT_MIN}))
    for _ in range(20):
        broker.send("light", 1.7e308)
        broker.send("heavy", 1.7e308)
    while broker.running:
        tickets = broker.share.finish(broker.running.pop(), actual=1.7e308)
        broker.started += tickets
        broker.running += tickets
    tenants = [tenant for tenant, _ in broker.started]
    assert tenants == ["light"] + ["heavy"] * 20 + ["light"] * 19
    assert broker.share.tenants == 0


@pytest.mark.parametrize("capacity", [1e-300, 1e300])
def test_a_capacity_that_makes_no_sense_is_refused(capacity: float) -> None:
    with pytest.raises(ValueError, match="the capacity is"):
        FairShare[int](capacity)


def test_a_ticket_names_one_request() -> None:
    share = FairShare[int](1)
    share.arrive("a", 1, 1)
    with pytest.raises(ValueError, match="the ticket 1 is in use"):
        share.arrive("b", 1, 1)


def test_more_capacity_starts_waiting_requests() -> None:
    share = FairShare[int](1)
    for number in range(4):
        share.arrive("a", 1, number)
    assert share.set_capacity(3) == [1, 2]
