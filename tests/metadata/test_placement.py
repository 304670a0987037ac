"""Replicas are placed evenly, spread over racks, and always in the same way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.placement import place_replicas, ring


def racks_of(count: int, racks: int) -> dict[int, str | None]:
    return {broker: f"r{broker % racks}" if racks else None for broker in range(count)}


def spread(counts: Counter[int], brokers: int) -> int:
    return max(counts.values()) - min(counts[broker] for broker in range(brokers))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_leaders_and_replicas_are_balanced(data: st.DataObject) -> None:
    """Without racks, or with racks of one size, brokers differ by at most one leader and two
    replicas."""
    per_rack, racks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    brokers = per_rack * racks
    replication_factor = data.draw(st.integers(1, brokers))
    partitions = data.draw(st.integers(1, 60))
    start_index = data.draw(st.integers(0, 1000))
    placed = place_replicas(
        racks_of(brokers, racks if data.draw(st.booleans()) else 0),
        partitions,
        replication_factor,
        start_index,
    )
    assert len(placed) == partitions
    assert all(len(set(replicas)) == replication_factor for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), brokers) <= 1
    assert spread(Counter(each for replicas in placed for each in replicas), brokers) <= 2


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_replicas_are_in_as_many_racks_as_possible(data: st.DataObject) -> None:
    """If there are enough racks, the loss of one costs one replica."""
    racks: dict[int, str | None] = data.draw(
        st.dictionaries(
            st.integers(0, 50), st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=10
        )
    )
    replication_factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(racks, 20, replication_factor, data.draw(st.integers(0, 20)))
    expected = min(replication_factor, len(set(racks.values())))
    for replicas in placed:
        assert len({racks[each] for each in replicas}) == expected


def test_a_dead_brokers_partitions_go_to_many_brokers() -> None:
    """Its followers are not all on the next broker."""
    placed = place_replicas(racks_of(5, 0), 40, 2, 0)
    followers = Counter(follower for leader, follower in placed if leader == 0)
    assert len(followers) == 4
    assert max(followers.values()) <= 3


def test_the_start_index_moves_the_leaders() -> None:
    """So topics with one partition are not all on broker 0."""
    leaders = [place_replicas(racks_of(3, 0), 1, 1, start)[0][0] for start in range(6)]
    assert leaders == [0, 1, 2, 0, 1, 2]


def test_added_partitions_continue_where_the_first_ones_ended() -> None:
    """Leaders stay balanced over both parts."""
    racks = racks_of(4, 2)
    first = place_replicas(racks, 3, 2, 7)
    rest = place_replicas(racks, 9, 2, 7, first_partition=3)
    assert spread(Counter(replicas[0] for replicas in first + rest), 4) == 0


def test_adjacent_brokers_in_the_ring_are_in_different_racks() -> None:
    """As long as the racks have the same size."""
    assert ring({0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}) == (0, 2, 4, 1, 3, 5)
    assert ring({3: None, 1: None, 2: "x"}) == (1, 2, 3)


@pytest.mark.parametrize("replication_factor", [0, 4])
def test_an_impossible_placement_raises_value_error(replication_factor: int) -> None:
    """Requests are validated before they get here."""
    with pytest.raises(ValueError, match="on 3 brokers"):
        place_replicas(racks_of(3, 0), 1, replication_factor, 0)
