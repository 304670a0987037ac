"""Adding replicas to partitions that have too few."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.metadata.rebalance import Placed
from penstock.metadata.replica_counts import TooFewBrokers, add_replicas


def test_existing_replicas_stay_and_new_ones_are_spread() -> None:
    placed = [Placed("t", index, (0,)) for index in range(6)]
    steps = add_replicas(dict.fromkeys(range(4)), placed, {"t"}, 3)
    assert all(step.after[0] == 0 and len(set(step.after)) == 3 for step in steps)
    added = Counter(each for step in steps for each in step.added)
    assert added == {1: 4, 2: 4, 3: 4}


def test_racks_without_a_replica_come_first() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    (step,) = add_replicas(racks, [Placed("t", 0, (0,))], {"t"}, 2)
    assert step.after == (0, 2)


def test_only_partitions_that_lack_replicas_change() -> None:
    """A replica on a broker that does not run counts: the broker may come back."""
    placed = [Placed("t", 0, (0, 9)), Placed("t", 1, (1,)), Placed("u", 0, (0,))]
    steps = add_replicas({0: None, 1: None, 2: None}, placed, {"t"}, 2, exclude=[2])
    assert [(step.topic, step.index, step.after) for step in steps] == [("t", 1, (1, 0))]


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(
        TooFewBrokers, match=r"3 replicas need 3 brokers, but only \[0, 1\] can take"
    ):
        add_replicas({0: None, 1: None, 2: None}, [Placed("t", 0, (0,))], {"t"}, 3, exclude=[2])
