"""Tests the order within a lane and the rotation between lanes."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.processing.lanes import Lane, Lanes
from penstock.topic_partition import TopicPartition

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), min_size=1, max_size=60),
    st.integers(min_value=1, max_value=4),
)
def test_a_lane_keeps_its_order_and_is_never_taken_twice(
    steps: list[tuple[str, bool]], most: int
) -> None:
    """In any sequence of puts and takes, each lane's items come out once, in order, one at a
    time."""
    lanes: Lanes[int] = Lanes()
    put: dict[Lane, list[int]] = defaultdict(list)
    out: dict[Lane, list[int]] = defaultdict(list)
    busy: list[Lane] = []
    for number, (key, takes) in enumerate(steps):
        lanes.put((A, key), number)
        put[A, key].append(number)
        if takes and (taken := lanes.take(most)) is not None:
            assert taken[0] not in busy
            assert len(taken[1]) <= most
            busy.append(taken[0])
            out[taken[0]] += taken[1]
        elif busy:
            lanes.give_back(busy.pop(0))
    for lane in busy:
        lanes.give_back(lane)
    while (taken := lanes.take(most)) is not None:
        out[taken[0]] += taken[1]
        lanes.give_back(taken[0])
    assert out == put


def test_lanes_take_turns() -> None:
    """A lane that is given back with items left comes after the other lanes that were ready."""
    lanes: Lanes[int] = Lanes()
    for number in range(3):
        lanes.put((A, "long"), number)
    lanes.put((A, "short"), 9)
    assert lanes.take(1) == ((A, "long"), [0])
    lanes.give_back((A, "long"))
    assert lanes.take(1) == ((A, "short"), [9])
    assert lanes.take(1) == ((A, "long"), [1])
    assert lanes.ready == 0


def test_dropping_affects_one_partition_only() -> None:
    """All waiting items of the partition are dropped, also those of busy lanes."""
    lanes: Lanes[int] = Lanes()
    for number in range(4):
        lanes.put((A, "k"), number)
    lanes.put((A, "l"), 4)
    lanes.put((B, "k"), 5)
    assert lanes.take(2) == ((A, "k"), [0, 1])
    assert lanes.holds(A)
    lanes.drop(A, lambda item: item == 3)
    assert lanes.holds(A)
    lanes.drop(A)
    assert not lanes.holds(A)
    assert lanes.take(9) == ((B, "k"), [5])
    assert lanes.take(9) is None


def test_a_lane_is_busy_until_its_work_has_ended() -> None:
    """Items put after a drop wait for the work that was running during the drop."""
    lanes: Lanes[int] = Lanes()
    lanes.put((A, "k"), 0)
    assert lanes.take(1) == ((A, "k"), [0])
    lanes.drop(A)
    lanes.put((A, "k"), 0)
    assert lanes.take(1) is None
    lanes.give_back((A, "k"))
    assert lanes.take(1) == ((A, "k"), [0])
