"""Tests the assignors: Java's tables for range and round robin, laws for the sticky ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import OptionError
from penstock.client.membership.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    ROUNDROBIN,
    STICKY,
    Assignment,
    Assignor,
    Memory,
    Peer,
    assignor_named,
)
from penstock.client.membership.protocol import Subscription
from penstock.topic_partition import TopicPartition

ALL: list[Assignor] = [RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY]
Held = Mapping[str, tuple[TopicPartition, ...]]


def peer(
    member_id: str,
    topics: str,
    instance_id: str | None = None,
    held: Sequence[TopicPartition] = (),
    generation: int = -1,
) -> Peer:
    """Creates a member in the form that both sticky assignors understand."""
    user_data = STICKY.user_data(Memory(tuple(held), generation))
    subscription = Subscription(tuple(topics), tuple(held), generation, user_data)
    return Peer(member_id, subscription, instance_id)


def shown(assignment: Assignment) -> dict[str, str]:
    return {
        member: " ".join(
            f"{topic_partition.topic}{topic_partition.partition}"
            for topic_partition in sorted(topic_partitions)
        )
        for member, topic_partitions in assignment.items()
    }


RANGES: list[tuple[str, dict[str, int], list[Peer], dict[str, str]]] = [
    ("one member", {"a": 3}, [peer("x", "a")], {"x": "a0 a1 a2"}),
    ("no such topic", {"a": 1}, [peer("x", "ab")], {"x": "a0"}),
    (
        "more members than partitions",
        {"a": 1},
        [peer("x", "a"), peer("y", "a")],
        {"x": "a0", "y": ""},
    ),
    (
        "the first get the odd ones of every topic",
        {"a": 3, "b": 3},
        [peer("y", "ab"), peer("x", "ab")],
        {"x": "a0 a1 b0 b1", "y": "a2 b2"},
    ),
    (
        "different subscriptions",
        {"a": 3, "b": 3},
        [peer("x", "a"), peer("y", "ab"), peer("z", "a")],
        {"x": "a0", "y": "a1 b0 b1 b2", "z": "a2"},
    ),
    (
        "static members first, by their own names",
        {"a": 4},
        [peer("a-dynamic", "a"), peer("c", "a", "1"), peer("b", "a", "2"), peer("d", "a", "0")],
        {"d": "a0", "c": "a1", "b": "a2", "a-dynamic": "a3"},
    ),
]


@pytest.mark.parametrize(
    ("counts", "members", "expected"), [r[1:] for r in RANGES], ids=[r[0] for r in RANGES]
)
def test_range_assigns_like_javas(
    counts: dict[str, int], members: list[Peer], expected: dict[str, str]
) -> None:
    """Each member gets consecutive partitions of each topic."""
    assert shown(RANGE.assign(counts, members)) == expected


ROUNDS: list[tuple[str, dict[str, int], list[Peer], dict[str, str]]] = [
    (
        "all in turn, across topics",
        {"a": 3, "b": 3},
        [peer("y", "ab"), peer("x", "ab")],
        {"x": "a0 a2 b1", "y": "a1 b0 b2"},
    ),
    (
        "who does not want the topic is passed over",
        {"a": 1, "b": 2, "c": 3},
        [peer("x", "a"), peer("y", "ab"), peer("z", "abc")],
        {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"},
    ),
    (
        "static members first",
        {"a": 3},
        [peer("a", "a"), peer("z", "a", "i")],
        {"z": "a0 a2", "a": "a1"},
    ),
]


@pytest.mark.parametrize(
    ("counts", "members", "expected"), [r[1:] for r in ROUNDS], ids=[r[0] for r in ROUNDS]
)
def test_round_robin_assigns_like_javas(
    counts: dict[str, int], members: list[Peer], expected: dict[str, str]
) -> None:
    """Partitions are dealt out one at a time."""
    assert shown(ROUNDROBIN.assign(counts, members)) == expected


# -- laws ---------------------------------------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn, *, equal: bool | None = None) -> tuple[dict[str, int], list[Peer]]:
    """Generates topics, some of them missing, and members with arbitrary claims."""
    counts = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 7), min_size=1))
    counts = {topic: count for topic, count in counts.items() if count}
    everything = "".join(draw(st.sets(st.sampled_from("abcdefg"), min_size=1)))
    some = st.sets(st.sampled_from("abcdefg")).map("".join)
    size = draw(st.integers(1, 7))
    claimable = [TopicPartition(topic, n) for topic in "abcdef" for n in range(8)]
    members = []
    for number in range(size):
        topics = everything if equal else draw(some)
        held = draw(st.lists(st.sampled_from(claimable), unique=True, max_size=12))
        instance = draw(st.one_of(st.none(), st.just(f"i{9 - number}")))
        members.append(peer(f"m{number}", topics, instance, held, draw(st.integers(-1, 2))))
    return counts, members


def check_valid(counts: Mapping[str, int], members: Sequence[Peer], given: Assignment) -> None:
    """Checks that each subscribed partition has one owner, that its owner subscribed to it, and
    that nothing else is assigned."""
    wants = {peer.member_id: set(peer.subscription.topics) for peer in members}
    assert given.keys() == wants.keys()
    owners = Counter(
        topic_partition
        for topic_partitions in given.values()
        for topic_partition in topic_partitions
    )
    wanted = {topic for topics in wants.values() for topic in topics}
    expected = {
        TopicPartition(t, n) for t, count in counts.items() if t in wanted for n in range(count)
    }
    assert owners == Counter(expected)
    assert all(
        topic_partition.topic in wants[member]
        for member, topic_partitions in given.items()
        for topic_partition in topic_partitions
    )


@given(groups())
@settings(deadline=None, max_examples=100)
def test_every_partition_has_one_owner_that_subscribed_to_it(
    group: tuple[dict[str, int], list[Peer]],
) -> None:
    """This holds even if the members' claims are contradictory or outdated."""
    for assignor in (RANGE, ROUNDROBIN, STICKY):
        check_valid(*group, assignor.assign(*group))


@given(groups(equal=True))
@settings(deadline=None, max_examples=100)
def test_members_with_equal_subscriptions_get_equal_shares(
    group: tuple[dict[str, int], list[Peer]],
) -> None:
    """The numbers of partitions differ by at most one."""
    for assignor in (ROUNDROBIN, STICKY):
        sizes = [len(topic_partitions) for topic_partitions in assignor.assign(*group).values()]
        assert max(sizes) - min(sizes) <= 1


def rightful(counts: Mapping[str, int], members: Sequence[Peer]) -> Held:
    """Returns what each member may keep: its newest claims, unless another member has
    one of the same generation."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member in members:
        generation = member.subscription.generation
        assert generation is not None
        for topic_partition in member.subscription.owned if generation >= 0 else ():
            claims.setdefault(topic_partition, []).append((generation, member.member_id))
    kept: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    wants = {member.member_id: member.subscription.topics for member in members}
    for topic_partition, found in claims.items():
        newest = max(generation for generation, _ in found)
        holders = [member for generation, member in found if generation == newest]
        exists = topic_partition.partition < counts.get(topic_partition.topic, 0)
        if len(holders) == 1 and exists and topic_partition.topic in wants[holders[0]]:
            kept[holders[0]].append(topic_partition)
    return {member: tuple(topic_partitions) for member, topic_partitions in kept.items()}


@given(groups(equal=True))
@settings(deadline=None, max_examples=100)
def test_as_few_partitions_move_as_balance_allows(
    group: tuple[dict[str, int], list[Peer]],
) -> None:
    """With equal subscriptions, no balanced assignment could keep more partitions in place."""
    counts, members = group
    given = STICKY.assign(counts, members)
    held = rightful(counts, members)
    kept = sum(
        len(set(held[member]) & set(topic_partitions)) for member, topic_partitions in given.items()
    )
    share, larger = divmod(
        sum(len(topic_partitions) for topic_partitions in given.values()), len(members)
    )
    over = sum(1 for topic_partitions in held.values() if len(topic_partitions) > share)
    assert kept == sum(
        min(len(topic_partitions), share) for topic_partitions in held.values()
    ) + min(over, larger)


@given(groups())
@settings(deadline=None, max_examples=100)
def test_no_chain_of_moves_would_improve_the_balance(
    group: tuple[dict[str, int], list[Peer]],
) -> None:
    """No member can pass a partition, directly or through others, to a
    member with at least two fewer."""
    counts, members = group
    given = STICKY.assign(counts, members)
    wants = {peer.member_id: set(peer.subscription.topics) for peer in members}
    for source in given:
        reached, grown = {source}, True
        while grown:
            topics = {
                topic_partition.topic for member in reached for topic_partition in given[member]
            }
            found = {member for member in wants if wants[member] & topics} | reached
            grown, reached = found != reached, found
        assert all(len(given[source]) - len(given[member]) < 2 for member in reached)


@given(groups())
@settings(deadline=None, max_examples=100)
def test_a_balanced_group_is_left_alone(group: tuple[dict[str, int], list[Peer]]) -> None:
    """Given its own assignment again, a sticky assignor returns the same."""
    counts, members = group
    first = STICKY.assign(counts, members)
    again = [
        peer(m.member_id, "".join(m.subscription.topics), m.instance_id, first[m.member_id], 5)
        for m in members
    ]
    for assignor in (STICKY, COOPERATIVE_STICKY):
        assert shown(assignor.assign(counts, again)) == shown(first)


@given(groups())
@settings(deadline=None, max_examples=100)
def test_cooperative_assignment_never_gives_away_a_held_partition(
    group: tuple[dict[str, int], list[Peer]],
) -> None:
    """A partition that moves is first assigned to no member. Within a few rounds
    all partitions are assigned."""
    counts, members = group
    for _ in range(3):
        given = COOPERATIVE_STICKY.assign(counts, members)
        holders = Counter(
            topic_partition for m in members for topic_partition in m.subscription.owned
        )
        for member in members:
            own = set(member.subscription.owned)
            for topic_partition in given[member.member_id]:
                assert topic_partition in own or topic_partition not in holders
        # As members do: keep what was assigned again, add what is new, drop the rest.
        members = [
            peer(m.member_id, "".join(m.subscription.topics), m.instance_id, given[m.member_id], 5)
            for m in members
        ]
    check_valid(counts, members, given)
    assert shown(COOPERATIVE_STICKY.assign(counts, members)) == shown(given)


def test_partitions_of_a_member_that_left_are_spread_evenly() -> None:
    """Only the partitions of that member move."""
    counts = {"a": 12}
    first = STICKY.assign(counts, [peer(name, "a") for name in "wxyz"])
    rest = [peer(name, "a", held=first[name], generation=1) for name in "xyz"]
    second = STICKY.assign(counts, rest)
    assert all(set(first[name]) <= set(second[name]) for name in "xyz")
    assert {len(topic_partitions) for topic_partitions in second.values()} == {4}


def test_two_members_with_equal_claims_both_give_the_partition_up() -> None:
    """The partition is assigned, to one of them or to a third member, only
    after both have released it."""
    topic_partition = TopicPartition("a", 0)
    members = [peer(name, "a", held=[topic_partition], generation=3) for name in "xy"]
    assert shown(COOPERATIVE_STICKY.assign({"a": 1}, members)) == {"x": "", "y": ""}
    late = [
        peer("x", "a", held=[topic_partition], generation=3),
        peer("y", "a", held=[topic_partition], generation=2),
    ]
    assert shown(COOPERATIVE_STICKY.assign({"a": 1}, late)) == {"x": "a0", "y": ""}


@pytest.mark.parametrize("assignor", ALL, ids=lambda assignor: assignor.name)
@pytest.mark.parametrize("kind", ["equal", "different"])
@pytest.mark.timeout(120)
def test_a_large_group_is_assigned_quickly(assignor: Assignor, kind: str) -> None:
    """1,000 members, 10,000 partitions, then half of the members are replaced.

    This takes a second or two each; an assignor that compares every pair would take hours.
    """
    names = [f"t{n:03}" for n in range(100)]
    counts = dict.fromkeys(names, 100)

    def topics(number: int) -> tuple[str, ...]:
        return tuple(names if kind == "equal" else (names * 2)[number % 100 :][: 1 + number % 50])

    members = [Peer(f"m{n:04}", Subscription(topics(n))) for n in range(1000)]
    first = assignor.assign(counts, members)
    check_valid(counts, members, first)
    members = [
        Peer(
            f"m{n:04}" if n % 2 else f"n{n:04}",
            Subscription(topics(n), tuple(first[m.member_id]), 1, assignor.user_data(memory))
            if n % 2
            else Subscription(topics(n)),
        )
        for n, m in enumerate(members)
        for memory in [Memory(tuple(first[m.member_id]), 1)]
    ]
    check_valid(counts, members, assignor.assign(counts, members))


def test_assignors_are_found_by_kafkas_names() -> None:
    """The error for an unknown name lists the known ones."""
    assert [assignor_named(assignor.name) for assignor in ALL] == ALL
    assert [assignor.name for assignor in ALL if assignor.cooperative] == ["cooperative-sticky"]
    with pytest.raises(OptionError, match="'cooperative-sticky'"):
        assignor_named("coop")
