"""Tests which pipelines are assigned: none that a worker may still run."""

from __future__ import annotations

from collections.abc import Collection

from penstock.client.membership.assignors import COOPERATIVE_STICKY, Memory, Peer
from penstock.client.membership.protocol import Subscription
from penstock.spark.deployments.claims import PipelineAssignor
from penstock.topic_partition import TopicPartition

GENERATION = 8


def peer(
    member: str, topics: Collection[str], owned: Collection[str], assigned_in: int = GENERATION - 1
) -> Peer:
    """A member that received its last assignment in this generation."""
    claims = tuple(TopicPartition(name, 0) for name in owned)
    data = COOPERATIVE_STICKY.user_data(Memory((), assigned_in))
    return Peer(member, Subscription(tuple(topics), claims, GENERATION - 1, data))


def assign(
    *peers: Peer, exist: str, settled: str | None = None
) -> tuple[dict[str, set[str]], list[str]]:
    """Returns what each member gets, and what was held back."""
    held_back: list[str] = []
    may_move = frozenset(exist if settled is None else settled)
    assignor = PipelineAssignor(lambda: GENERATION, held_back.extend, lambda: may_move)
    found = assignor.assign(dict.fromkeys(exist, 1), peers)
    return {name: {each.topic for each in got} for name, got in found.items()}, held_back


def test_unclaimed_pipelines_are_assigned_if_all_claims_are_of_the_last_assignment() -> None:
    got, held_back = assign(peer("one", "abc", "a"), peer("two", "abc", "b"), exist="abc")
    assert got["one"] | got["two"] == {"a", "b", "c"}
    assert "a" in got["one"] and "b" in got["two"]
    assert not held_back


def test_an_old_claim_holds_back_what_nobody_claims() -> None:
    """The bytes of a JoinGroup were under way for long: the member may own more by now."""
    got, held_back = assign(peer("one", "abc", "a", 5), peer("two", "abc", "b"), exist="abc")
    assert got == {"one": {"a"}, "two": {"b"}}
    assert held_back == ["c"]


def test_a_new_member_waits_for_one_more_generation() -> None:
    """It claims nothing, and so does an old request of a member that has just joined."""
    got, held_back = assign(peer("one", "ab", "a"), peer("new", "ab", "", -1), exist="ab")
    assert got == {"one": {"a"}, "new": set()}
    assert held_back == ["b"]


def test_nothing_is_held_back_if_all_are_claimed() -> None:
    got, held_back = assign(peer("one", "ab", "ab"), peer("new", "ab", "", -1), exist="ab")
    # The new member's share is assigned to no member until its owner has given it up.
    assert len(got["one"]) == 1
    assert not got["new"]
    assert not held_back


def test_a_deployment_that_does_not_exist_is_assigned_to_no_member() -> None:
    got, held_back = assign(peer("one", "ab", "ab"), exist="b")
    assert got == {"one": {"b"}}
    assert not held_back


def test_an_assignment_in_no_generation_is_none_of_the_last() -> None:
    broken = Peer("odd", Subscription(("a",), (), 3, b"?"))
    got, held_back = assign(broken, peer("one", "a", ""), exist="a")
    assert got == {"odd": set(), "one": set()}
    assert held_back == ["a"]


def assignor_with(settled: str) -> PipelineAssignor:
    return PipelineAssignor(lambda: GENERATION, lambda _: None, lambda: frozenset(settled))


def test_a_pipeline_that_is_not_settled_stays_when_a_worker_joins() -> None:
    peers = (peer("one", "abcd", "abcd"), peer("new", "abcd", "", -1))
    assert assign(*peers, exist="abcd", settled="")[0] == {"one": set("abcd"), "new": set()}
    assignor = assignor_with("")
    assignor.assign(dict.fromkeys("abcd", 1), peers)
    assert len(assignor.postponed) == 2


def test_settled_pipelines_move_one_at_a_time() -> None:
    peers = (peer("one", "abcd", "abcd"), peer("new", "abcd", "", -1))
    assignor = assignor_with("abcd")
    found = assignor.assign(dict.fromkeys("abcd", 1), peers)
    assert len(found["one"]) == 3
    assert found["new"] == []
    assert len(assignor.postponed) == 1


def test_a_pipeline_that_its_worker_cannot_run_any_more_does_not_stay() -> None:
    peers = (peer("one", "a", "ab"), peer("two", "ab", "c"))
    got, _ = assign(*peers, exist="abc", settled="")
    assert got["one"] == {"a"}
    assert "b" not in got["two"]


def test_pipelines_of_a_worker_that_died_are_assigned_although_none_is_settled() -> None:
    got, _ = assign(peer("one", "abcd", "a"), peer("two", "abcd", "b"), exist="abcd", settled="")
    assert got["one"] | got["two"] == set("abcd")
    assert len(got["one"]) == len(got["two"]) == 2
