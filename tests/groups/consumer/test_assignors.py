"""The assignors: complete, without overlap, balanced, and with few moves."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)
from penstock.groups.consumer.records import TopicIdPartition

TOPICS = [bytes([number]) * 16 for number in range(4)]
Counts = Mapping[bytes, int]


def member(name: str, *topics: int, instance: str | None = None) -> Subscriber:
    return Subscriber(name, instance, frozenset(TOPICS[each] for each in topics), frozenset())


def again(members: Sequence[Subscriber], before: Assignment) -> list[Subscriber]:
    """Returns the members with a previous target."""
    return [one._replace(previous=before.get(one.member_id, frozenset())) for one in members]


def check(members: Sequence[Subscriber], counts: Counts, found: Assignment) -> None:
    """Every partition that somebody subscribes to has one member, and that one subscribes to it."""
    assert found.keys() == {one.member_id for one in members}
    given = [each for partitions in found.values() for each in partitions]
    assert len(given) == len(set(given))
    readable = {topic for one in members for topic in one.topic_ids if topic in counts}
    assert set(given) == {
        TopicIdPartition(topic, index) for topic in readable for index in range(counts[topic])
    }
    for one in members:
        assert {each.topic_id for each in found[one.member_id]} <= one.topic_ids


def sizes(found: Assignment) -> list[int]:
    return [len(each) for each in found.values()]


subscriptions = st.lists(st.sets(st.sampled_from(range(4))), min_size=1, max_size=7)
counts_of = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ASSIGNORS)), subscriptions, counts_of, counts_of)
def test_every_partition_is_assigned_once(
    name: str, subscribed: list[set[int]], before: Counts, after: Counts
) -> None:
    """Also after topics came, went and grew, and members came and went."""
    members = [member(f"m{number}", *topics) for number, topics in enumerate(subscribed)]
    first = ASSIGNORS[name](members, before)
    check(members, before, first)
    left = [*again(members[1:], first), member("new", 0, 1)]
    check(left, after, ASSIGNORS[name](left, after))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), counts_of, st.integers(0, 3))
def test_uniform_is_even_and_moves_few(size: int, counts: Counts, leaving: int) -> None:
    members = [member(f"m{number}", 0, 1, 2, 3) for number in range(size)]
    first = assign_uniformly(members, counts)
    check(members, counts, first)
    assert max(sizes(first)) - min(sizes(first)) <= 1
    assert assign_uniformly(again(members, first), counts) == first
    left = again(members[leaving:], first)
    if left:
        second = assign_uniformly(left, counts)
        check(left, counts, second)
        assert max(sizes(second)) - min(sizes(second)) <= 1
        for one in left:
            assert one.previous <= second[one.member_id], "a member that stays keeps what it has"


def test_a_new_member_takes_only_its_share() -> None:
    members = [member("a", 0), member("b", 0)]
    first = assign_uniformly(members, {TOPICS[0]: 9})
    joined = [*again(members, first), member("c", 0)]
    second = assign_uniformly(joined, {TOPICS[0]: 9})
    assert sorted(sizes(second)) == [3, 3, 3]
    assert second["a"] <= first["a"]
    assert second["b"] <= first["b"]


@settings(max_examples=100, deadline=None)
@given(subscriptions, counts_of)
def test_uniform_with_mixed_subscriptions_leaves_no_move_that_helps(
    subscribed: list[set[int]], counts: Counts
) -> None:
    members = [member(f"m{number}", *topics) for number, topics in enumerate(subscribed)]
    found = assign_uniformly(members, counts)
    for giver in members:
        for partition in found[giver.member_id]:
            for taker in members:
                if partition.topic_id in taker.topic_ids:
                    spread = len(found[giver.member_id]) - len(found[taker.member_id])
                    assert spread <= 1
    assert assign_uniformly(again(members, found), counts) == found


@settings(max_examples=100, deadline=None)
@given(subscriptions, subscriptions, counts_of, counts_of)
def test_uniform_with_mixed_subscriptions_is_even_after_changes(
    subscribed: list[set[int]], joining: list[set[int]], before: Counts, after: Counts
) -> None:
    """The order of members and of their topics has no part in the result."""
    members = [member(f"m{number}", *topics) for number, topics in enumerate(subscribed)]
    left = again(members[1:], assign_uniformly(members, before))
    left += [member(f"n{number}", *topics) for number, topics in enumerate(joining)]
    found = assign_uniformly(left, after)
    check(left, after, found)
    for topic_ids in {one.topic_ids for one in left}:
        alike = [len(found[one.member_id]) for one in left if one.topic_ids == topic_ids]
        assert max(alike) - min(alike) <= 1
    assert assign_uniformly(again(left, found), after) == found
    turned = [one._replace(topic_ids=frozenset(sorted(one.topic_ids)[::-1])) for one in left[::-1]]
    assert assign_uniformly(turned, after) == found


def test_a_partition_that_a_member_had_moves_after_those_it_got_now() -> None:
    """The first topic is spread first. Then only `a` can have the other, and it gives some back."""
    mine = frozenset([TopicIdPartition(TOPICS[0], 9)])
    members = [member("a", 0, 1)._replace(previous=mine), member("b", 0)]
    found = assign_uniformly(members, {TOPICS[0]: 10, TOPICS[1]: 4})
    assert sizes(found) == [7, 7]
    assert mine <= found["a"]


def test_a_partition_in_two_previous_targets_is_kept_by_one() -> None:
    """The log may have such targets, if a coordinator failed between two batches."""
    both = frozenset([TopicIdPartition(TOPICS[0], 0)])
    members = [member("a", 0)._replace(previous=both), member("b", 0)._replace(previous=both)]
    counts = {TOPICS[0]: 2}
    check(members, counts, assign_uniformly(members, counts))
    mixed = [*members, member("c", 1)]
    check(mixed, counts, assign_uniformly(mixed, counts))


def test_ranges_are_consecutive_and_static_members_come_first() -> None:
    members = [member("a", 0, 1), member("z", 0, instance="one"), member("b", 0)]
    found = assign_ranges(members, {TOPICS[0]: 5, TOPICS[1]: 2})
    assert found == {
        "z": frozenset([TopicIdPartition(TOPICS[0], 0), TopicIdPartition(TOPICS[0], 1)]),
        "a": frozenset(
            [
                TopicIdPartition(TOPICS[0], 2),
                TopicIdPartition(TOPICS[0], 3),
                TopicIdPartition(TOPICS[1], 0),
                TopicIdPartition(TOPICS[1], 1),
            ]
        ),
        "b": frozenset([TopicIdPartition(TOPICS[0], 4)]),
    }


def test_nobody_to_assign_to() -> None:
    for assign in ASSIGNORS.values():
        assert assign([], {TOPICS[0]: 3}) == {}
        assert assign([member("a")], {TOPICS[0]: 3}) == {"a": frozenset()}


def wide_ids(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(count)]


def all_but_one_topic(size: int) -> list[frozenset[bytes]]:
    """One half of the members lacks one topic."""
    ids = wide_ids(size)
    return [frozenset(ids[: size - number % 2]) for number in range(size)]


def a_few_topics_each(size: int) -> list[frozenset[bytes]]:
    """All members subscribe to other topics."""
    ids, rng = wide_ids(size), random.Random(17)
    return [frozenset(rng.sample(ids, 4)) for _ in range(size)]


def same_topics(size: int) -> list[frozenset[bytes]]:
    return [frozenset(wide_ids(size))] * size


def steps(work: Callable[[], object]) -> int:
    """Returns how many instructions of the interpreter some work takes, loops included."""
    taken = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal taken
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        taken += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken


def steps_of_two_rebalances(name: str, subscribed: Sequence[frozenset[bytes]]) -> int:
    """Counts the steps of a first assignment, and of the next one after a member has joined."""
    counts = dict.fromkeys(wide_ids(len(subscribed)), 3)
    members = [
        Subscriber(f"m{number:05}", None, topics, frozenset())
        for number, topics in enumerate(subscribed)
    ]
    first: Assignment = {}
    taken = steps(lambda: first.update(ASSIGNORS[name](members[1:], counts)))
    joined = again(members, first)
    return taken + steps(lambda: ASSIGNORS[name](joined, counts))


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("shape", [all_but_one_topic, a_few_topics_each, same_topics])
def test_work_grows_with_partitions_and_not_with_topics_times_members(
    name: str, shape: Callable[[int], Sequence[frozenset[bytes]]]
) -> None:
    """With four times as many topics and members. The event loop waits for an assignment."""
    assert steps_of_two_rebalances(name, shape(160)) < 7 * steps_of_two_rebalances(name, shape(40))
