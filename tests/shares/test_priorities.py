"""Levels of priority: shares by weight, no starvation, nothing saved up, full responses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shares.priorities import PriorityTurns, level_of

MANY = 1_000_000


def serve(
    turns: PriorityTurns, waiting: dict[int, int], limit: int, batch: int = 1
) -> Counter[int]:
    """Runs one fetch. Levels give whole batches, until the limit of the fetch is reached."""
    got: Counter[int] = Counter()
    for level, allowed in turns.plan(waiting, limit):
        if got.total() >= limit:
            break
        count = min(-(-allowed // batch) * batch, waiting[level])
        turns.charge(level, count)
        waiting[level] -= count
        got[level] += count
    return got


@pytest.mark.parametrize("limit", [1, 3, 15, 500])
def test_levels_get_records_in_proportion_to_their_weights(limit: int) -> None:
    turns, got = PriorityTurns(4), Counter[int]()
    while got.total() < 15_000:
        got += serve(turns, dict.fromkeys(range(4), MANY), limit)
    for level in range(4):
        assert abs(got[level] / got.total() - 2**level / 15) < 0.02


def test_a_response_begins_with_the_highest_level() -> None:
    plan = PriorityTurns(3).plan({0: 10, 1: 10, 2: 10}, 14)
    assert plan == [(2, 8), (1, 4), (0, 2)]


def test_what_a_level_does_not_need_the_others_get() -> None:
    assert PriorityTurns(3).plan({0: 100, 2: 1}, 50) == [(2, 1), (0, 49)]
    assert PriorityTurns(3).plan({0: 100, 1: 0}, 50) == [(0, 50)]
    assert PriorityTurns(2).plan({0: 0}, 50) == []


def test_a_level_that_had_nothing_does_not_save_up_turns() -> None:
    """After a long time alone, level 1 still gets two thirds once level 0 has records."""
    turns = PriorityTurns(2)
    for _ in range(1000):
        serve(turns, {1: MANY}, 100)
    got = Counter[int]()
    for _ in range(10):
        got += serve(turns, {0: MANY, 1: MANY}, 30)
    assert 150 <= got[1] <= 250


def test_partitions_are_divided_among_the_levels() -> None:
    assert [level_of(partition, 3) for partition in range(6)] == [0, 1, 2, 0, 1, 2]


@settings(deadline=None)
@given(
    levels=st.integers(2, 5),
    pattern=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 10), st.sets(st.integers(0, 4))),
        min_size=1,
        max_size=5,
    ),
    data=st.data(),
)
def test_no_level_starves(
    levels: int, pattern: list[tuple[int, int, set[int]]], data: st.DataObject
) -> None:
    """A level with records gets its share of all that is given, but for about one response: also
    if batches are larger than the limits, and whichever levels are busy besides it."""
    chosen = data.draw(st.integers(0, levels - 1))
    turns, got = PriorityTurns(levels), Counter[int]()
    for _ in range(400):
        for limit, batch, others in pattern:
            busy = {chosen, *(each for each in others if each < levels)}
            got += serve(turns, dict.fromkeys(busy, MANY), limit, batch)
    largest = max(limit + batch for limit, batch, _ in pattern)
    fair = got.total() * 2**chosen / (2**levels - 1)
    assert got[chosen] >= fair - 2 * largest


@settings(deadline=None)
@given(
    st.integers(2, 8),
    st.dictionaries(st.integers(0, 1), st.integers(0, 700), min_size=1),
    st.integers(1, 600),
)
def test_a_plan_uses_what_there_is(levels: int, waiting: dict[int, int], limit: int) -> None:
    plan = PriorityTurns(levels).plan(waiting, limit)
    assert sum(count for _, count in plan) == min(limit, sum(waiting.values()))
    assert all(0 < count <= waiting[level] for level, count in plan)
    assert [level for level, _ in plan] == sorted((level for level, _ in plan), reverse=True)
