"""The assignor of share groups."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shares.assignor import Assignment, assign
from penstock.topic_partition import TopicPartition

JOBS = frozenset({"jobs"})


def names(assignment: Assignment) -> dict[str, list[str]]:
    return {member: sorted(map(str, chosen)) for member, chosen in assignment.items()}


def members(count: int) -> dict[str, frozenset[str]]:
    return {f"m{index:03}": JOBS for index in range(count)}


def test_with_few_members_each_partition_has_one() -> None:
    assert names(assign({"anna": JOBS, "ben": JOBS}, {"jobs": range(3)}, {})) == {
        "anna": ["jobs-0", "jobs-1"],
        "ben": ["jobs-2"],
    }


def test_with_many_members_partitions_are_shared() -> None:
    assigned = assign(members(5), {"jobs": range(2)}, {})
    assert sorted(Counter(map(str, frozenset().union(*assigned.values())))) == ["jobs-0", "jobs-1"]
    assert all(assigned.values())


def test_members_keep_their_partitions() -> None:
    before = assign(members(2), {"jobs": range(4)}, {})
    after = assign(members(3), {"jobs": range(4)}, before)
    kept = sum(len(before[member] & after[member]) for member in before)
    assert kept == 3
    assert len(after["m002"]) == 1


def test_topics_without_partitions_and_members_without_topics() -> None:
    subscriptions = {"anna": JOBS, "ben": frozenset[str]()}
    assert names(assign(subscriptions, {}, {})) == {"anna": [], "ben": []}
    assert names(assign(subscriptions, {"jobs": range(1)}, {})) == {"anna": ["jobs-0"], "ben": []}
    assert assign({}, {"jobs": range(1)}, {}) == {}


def test_a_topic_is_assigned_to_its_subscribers_only() -> None:
    subscriptions = {"anna": frozenset({"jobs", "mail"}), "ben": frozenset({"mail"})}
    assert names(assign(subscriptions, {"jobs": range(2), "mail": range(2)}, {})) == {
        "anna": ["jobs-0", "jobs-1", "mail-0"],
        "ben": ["mail-1"],
    }


@given(
    count=st.integers(1, 30),
    counts=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 12), min_size=1),
    gone=st.integers(0, 10),
    more=st.integers(0, 10),
)
@settings(deadline=None, max_examples=150)
def test_the_load_is_even_and_assignments_are_stable(
    count: int, counts: dict[str, int], gone: int, more: int
) -> None:
    topics = frozenset(counts)
    partitions = {topic: range(number) for topic, number in counts.items()}
    everybody = {f"m{index:03}": topics for index in range(count + more)}
    first = dict.fromkeys(list(everybody)[:count], topics)
    before = assign(first, partitions, {})
    second = dict.fromkeys(list(everybody)[min(gone, count - 1) :], topics)
    after = assign(second, partitions, before)
    total = sum(counts.values())
    for assigned in (before, after):
        users = Counter(partition for chosen in assigned.values() for partition in chosen)
        assert len(users) == total, "a partition has no member"
        loads = [len(chosen) for chosen in assigned.values()]
        assert min(loads) >= 1
        assert max(loads) - min(loads) <= 1
        if len(assigned) <= total:
            assert set(users.values()) == {1}
    assert assign(second, partitions, after) == after


@given(
    subscriptions=st.dictionaries(
        st.sampled_from(["anna", "ben", "cleo", "dora"]),
        st.frozensets(st.sampled_from(["a", "b", "c"])),
    ),
    previous=st.dictionaries(
        st.sampled_from(["anna", "ben", "eve"]),
        st.frozensets(st.builds(TopicPartition, st.sampled_from("abcd"), st.integers(0, 5))),
    ),
)
def test_every_partition_with_a_subscriber_has_a_member(
    subscriptions: dict[str, frozenset[str]], previous: dict[str, frozenset[TopicPartition]]
) -> None:
    partitions = {"a": [0], "b": [0, 2, 5]}
    assigned = assign(subscriptions, partitions, previous)
    assert assigned.keys() == subscriptions.keys()
    wanted = {
        TopicPartition(topic, index)
        for names_of_member in subscriptions.values()
        for topic in names_of_member & partitions.keys()
        for index in partitions[topic]
    }
    assert frozenset().union(*assigned.values()) == wanted
    for member, chosen in assigned.items():
        assert {partition.topic for partition in chosen} <= subscriptions[member]
