"""Plans that rebalance or drain a whole cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.placement import place_replicas
from penstock.metadata.reassignment import Move
from penstock.metadata.rebalance import Load, NotEnoughBrokers, Placed, Plan, Step, plan

Racks = dict[int, str | None]


def topic(name: str, *replicas: Sequence[int], size_bytes: int | None = None) -> list[Placed]:
    return [Placed(name, index, tuple(each), size_bytes) for index, each in enumerate(replicas)]


def carried_out(planned: Plan, partitions: Iterable[Placed]) -> list[Placed]:
    targets = {(step.topic, step.index): step.after for step in planned.steps}
    return [
        Placed(
            each.topic,
            each.index,
            targets.get((each.topic, each.index), each.replicas),
            each.size_bytes,
        )
        for each in partitions
    ]


def loads(partitions: Iterable[Placed], racks: Iterable[int]) -> dict[int, int]:
    counted = Counter(broker for each in partitions for broker in each.replicas)
    return {broker: counted[broker] for broker in racks}


def leads(partitions: Iterable[Placed], racks: Iterable[int]) -> dict[int, int]:
    counted = Counter(each.replicas[0] for each in partitions)
    return {broker: counted[broker] for broker in racks}


def gap(counts: Mapping[int, int]) -> int:
    return max(counts.values()) - min(counts.values())


def plain(brokers: int) -> Racks:
    return dict.fromkeys(range(brokers), None)


def grown(brokers: int, partitions: int, factor: int, racks: Racks | None = None) -> list[Placed]:
    """Returns partitions as placement creates them."""
    placed = place_replicas(racks or plain(brokers), partitions, factor, start_index=0)
    return topic("t", *placed)


@st.composite
def clusters(draw: st.DrawFn, *, with_racks: bool = True) -> tuple[Racks, list[Placed]]:
    """Brokers in racks, and partitions of several topics with random placement."""
    brokers = draw(st.integers(1, 7))
    names = st.sampled_from(["a", "b", "c"]) if with_racks else st.none()
    racks = {broker: draw(names) for broker in range(brokers)}
    partitions: list[Placed] = []
    for number in range(draw(st.integers(1, 3))):
        factor = draw(st.integers(1, brokers))
        orders = draw(st.lists(st.permutations(range(brokers)), min_size=1, max_size=12))
        placed = [order[:factor] for order in orders]
        partitions += topic(f"t{number}", *placed, size_bytes=draw(st.sampled_from([None, 7])))
    return racks, partitions


def check_valid(planned: Plan, racks: Racks, partitions: Sequence[Placed]) -> None:
    known = {(each.topic, each.index): each for each in partitions}
    for step in planned.steps:
        before = known[step.topic, step.index]
        assert step.before == before.replicas
        assert step.before != step.after
        assert len(step.after) == len(step.before)
        assert len({*step.after}) == len(step.after)
        assert {*step.after} <= {*racks} | {*step.before}


def evenness(replicas: Iterable[int], racks: Mapping[int, str | None]) -> int:
    return sum(count**2 for count in Counter(racks[each] for each in replicas).values())


def best_evenness(factor: int, racks: Mapping[int, str | None]) -> int:
    """Deals replicas one by one to the rack that has fewest of them and a free broker."""
    room = Counter(racks.values())
    dealt: Counter[str | None] = Counter()
    for _ in range(factor):
        dealt[min((each for each in room if dealt[each] < room[each]), key=dealt.__getitem__)] += 1
    return sum(count**2 for count in dealt.values())


@settings(deadline=None, max_examples=200)
@given(clusters())
def test_a_plan_keeps_replication_and_spreads_racks(given_: tuple[Racks, list[Placed]]) -> None:
    """The number of replicas stays, each on another broker, as evenly over racks as possible. A
    second plan has nothing to do."""
    racks, partitions = given_
    planned = plan(racks, partitions)
    check_valid(planned, racks, partitions)
    outcome = carried_out(planned, partitions)
    for each in outcome:
        assert evenness(each.replicas, racks) == best_evenness(len(each.replicas), racks)
    assert planned.after.uneven_racks == 0
    assert {broker: load.replicas for broker, load in planned.after.loads.items()} == loads(
        outcome, racks
    )
    assert {broker: load.leads for broker, load in planned.after.loads.items()} == leads(
        outcome, racks
    )
    assert plan(racks, outcome).steps == ()


@settings(deadline=None, max_examples=200)
@given(clusters(with_racks=False))
def test_without_racks_replicas_are_even_and_no_copy_is_wasted(
    given_: tuple[Racks, list[Placed]],
) -> None:
    """Brokers differ by at most one, and only the surplus of overloaded brokers is copied."""
    racks, partitions = given_
    planned = plan(racks, partitions)
    outcome = carried_out(planned, partitions)
    assert gap(loads(outcome, racks)) <= 1
    before, after = loads(partitions, racks), loads(outcome, racks)
    assert planned.copies == sum(max(0, before[each] - after[each]) for each in racks)


@settings(deadline=None, max_examples=100)
@given(clusters())
def test_leaders_are_as_even_as_the_replicas_allow(given_: tuple[Racks, list[Placed]]) -> None:
    """No chain of handovers leads from a broker to one that leads at least two partitions fewer."""
    racks, partitions = given_
    outcome = carried_out(plan(racks, partitions), partitions)
    counts = leads(outcome, racks)
    for highest in racks:
        reached = {highest}
        while more := {
            other
            for each in outcome
            if each.replicas[0] in reached
            for other in each.replicas
            if other not in reached
        }:
            reached |= more
        assert counts[highest] <= min(counts[each] for each in reached) + 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 40), st.data())
def test_a_new_broker_gets_its_share(brokers: int, partitions: int, data: st.DataObject) -> None:
    """One of n+1 brokers gets about 1/(n+1) of all replicas, and nothing else is moved."""
    factor = data.draw(st.integers(1, brokers))
    placed = carried_out(
        plan(plain(brokers), grown(brokers, partitions, factor)),
        grown(brokers, partitions, factor),
    )
    planned = plan(plain(brokers + 1), placed)
    share = partitions * factor / (brokers + 1)
    assert planned.after.loads[brokers].replicas == planned.copies
    assert share - 1 < planned.copies <= share + 1
    assert all(step.added in ((), (brokers,)) for step in planned.steps)
    assert gap(leads(carried_out(planned, placed), range(brokers + 1))) <= 1


@settings(deadline=None, max_examples=100)
@given(clusters(), st.data())
def test_a_broker_is_drained(given_: tuple[Racks, list[Placed]], data: st.DataObject) -> None:
    """It keeps no replica, whether it runs or not. If no other broker can take them, an error says
    so."""
    racks, partitions = given_
    gone = data.draw(st.sampled_from([*racks]))
    if data.draw(st.booleans()):
        left = {broker: rack for broker, rack in racks.items() if broker != gone}
    else:
        left = racks
    most = max(len(each.replicas) for each in partitions if gone in each.replicas or not each.index)
    level = data.draw(st.booleans())
    if any(gone in each.replicas and len(each.replicas) == len(racks) for each in partitions):
        with pytest.raises(NotEnoughBrokers, match=f"broker {gone} cannot be drained.*add a brok"):
            plan(left, partitions, drain={gone}, level=level)
        return
    planned = plan(left, partitions, drain={gone}, level=level)
    assert most <= len(racks)
    check_valid(planned, racks, partitions)
    outcome = carried_out(planned, partitions)
    assert all(gone not in each.replicas for each in outcome)
    assert planned.after.loads.get(gone, Load(0, 0, 0)) == Load(0, 0, 0)
    assert plan(left, outcome, drain={gone}, level=level).steps == ()
    if not level:
        assert all(step.removed == (gone,) for step in planned.steps)


@settings(deadline=None, max_examples=60)
@given(clusters(), st.data())
def test_excluded_brokers_are_left_alone(
    given_: tuple[Racks, list[Placed]], data: st.DataObject
) -> None:
    """Whether they run or not."""
    racks, partitions = given_
    left_out = data.draw(st.sets(st.sampled_from([*racks])))
    runs = data.draw(st.booleans())
    known = racks if runs else {each: racks[each] for each in racks if each not in left_out}
    for step in plan(known, partitions, exclude=left_out).steps:
        assert left_out.isdisjoint(step.added + step.removed)
        assert (step.before[0] in left_out) == (step.after[0] in left_out)


def test_drained_leaderships_go_to_replicas_that_have_the_records() -> None:
    """The new replica would have to copy them first."""
    placed = topic("t", (0, 1), (0, 2), size_bytes=10)
    planned = plan(plain(4), placed, drain=[0], level=False)
    assert planned.steps == (
        Step("t", 0, (0, 1), (1, 3), 10),
        Step("t", 1, (0, 2), (2, 1), 10),
    )
    assert planned.copies == 2
    assert planned.copied_bytes == 20


def test_replicas_are_taken_from_the_topic_with_the_most() -> None:
    """A new broker gets some partitions of each topic rather than all of one."""
    placed = [*topic("a", *[(0,)] * 8), *topic("b", *[(0,)] * 8)]
    planned = plan(plain(2), placed)
    moved = Counter(step.topic for step in planned.steps)
    assert moved == {"a": 4, "b": 4}


def test_racks_take_precedence_over_even_loads() -> None:
    """Two replicas in two racks, and one rack has a single broker, which therefore has half of
    all."""
    racks: Racks = {0: "a", 1: "a", 2: "b"}
    placed = topic("t", (0, 1), (1, 0), (0, 1), (1, 0))
    planned = plan(racks, placed)
    assert planned.before.uneven_racks == 4
    assert planned.after.uneven_racks == 0
    assert {each: load.replicas for each, load in planned.after.loads.items()} == {0: 2, 1: 2, 2: 4}


def test_loads_are_evened_out_through_other_brokers() -> None:
    """Broker 2 gets too much because of the racks, and broker 3, which has nothing, can take none
    of it. Broker 4 takes it, and gives its own replica to 3."""
    racks: Racks = {0: "a", 1: "a", 2: "b", 3: "a", 4: "b"}
    placed = [*topic("t", (3, 1), (2, 0)), *topic("u", (4,))]
    planned = plan(racks, placed)
    after = {each: load.replicas for each, load in planned.after.loads.items()}
    assert after == dict.fromkeys(range(5), 1)
    assert planned.after.uneven_racks == 0


def test_another_order_of_the_same_brokers_copies_nothing() -> None:
    """This is how leaders are balanced."""
    placed = topic("t", (0, 1), (0, 1), (0, 1), (0, 1), size_bytes=5)
    planned = plan(plain(2), placed)
    assert [step.added for step in planned.steps] == [(), ()]
    assert (planned.copies, planned.copied_bytes) == (0, 0)
    assert [step.move for step in planned.steps] == [
        Move(step.topic, step.index, (1, 0)) for step in planned.steps
    ]
    assert planned.after.loads == {0: Load(4, 2, 20), 1: Load(4, 2, 20)}


def test_a_large_cluster_can_be_planned() -> None:
    """A seventh broker for 6,000 partitions with three replicas each."""
    racks: Racks = {each: f"r{each % 3}" for each in range(6)}
    placed = [
        Placed(f"t{number}", index, replicas)
        for number in range(3)
        for index, replicas in enumerate(place_replicas(racks, 2000, 3, start_index=number))
    ]
    planned = plan({**racks, 6: "r0"}, placed)
    assert 18_000 / 9 - 10 < planned.copies < 18_000 / 5
    assert planned.after.uneven_racks == 0
