"""Members that subscribe with a regular expression."""

from __future__ import annotations

import pytest

from penstock.groups.consumer.regexes import resolve
from penstock.wire.errors import ErrorCode

from .bench import ConsumerBench, Member, code


def test_the_whole_name_must_match() -> None:
    names = ["orders", "orders-1", "my-orders", "payments"]
    found = resolve(["orders.*", "^orders$|pay.*", "[", "x(?=y)"], names)
    assert found == {
        "orders.*": frozenset(["orders", "orders-1"]),
        "^orders$|pay.*": frozenset(["orders", "payments"]),
        "[": None,
        "x(?=y)": None,
    }


def test_an_expression_that_takes_too_long_is_given_up() -> None:
    names = [f"{'a' * 240}{number}" for number in range(100)]
    slow = "(a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a|a)+" * 12 + "b"
    assert resolve([slow, "a.*7"], names) == {
        slow: None,
        "a.*7": frozenset(name for name in names if name.endswith("7")),
    }


def test_topics_that_match_are_assigned_once_they_are_resolved() -> None:
    bench = ConsumerBench({"orders-1": 2, "orders-2": 2, "payments": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    assert (a.epoch, a.owned) == (1, set())
    bench.resolve()
    bench.beat(a)
    assert (a.epoch, a.owned) == (2, bench.topics.partitions(["orders-1", "orders-2"]))
    assert bench.state == "Stable"


def test_names_and_an_expression_together() -> None:
    bench = ConsumerBench({"orders-1": 2, "orders-2": 2, "payments": 2})
    a = Member("a", names=("payments",), regex="orders-1")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    assert a.owned == bench.topics.partitions(["payments", "orders-1"])
    bench.beat(a, subscribed_topic_regex="")
    bench.settle_members(a)
    assert a.owned == bench.topics.partitions(["payments"])
    assert not bench.group.stored.regexes, "nobody uses the expression any more"


def test_new_topics_are_found_but_not_at_once_again() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    bench.topics.create("orders-2", 2)
    bench.shard.on_topics_changed(created=True)
    bench.beat(a)
    assert not bench.resolutions, "the last time was a moment ago"
    bench.advance(10_000)
    bench.beat(a)
    bench.beat(a)
    assert len(bench.resolutions) == 1
    bench.resolve()
    bench.settle_members(a)
    assert a.owned == bench.topics.partitions(["orders-1", "orders-2"])
    bench.advance(10_000)
    bench.beat(a)
    assert not bench.resolutions, "nothing has changed"


def test_expressions_are_resolved_again_from_time_to_time() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolve()
    for _ in range(20):
        bench.advance(30_000)
        bench.beat(a)
    assert len(bench.resolutions) == 1
    epoch = bench.group.epoch
    bench.resolve()
    assert bench.group.epoch == epoch, "the same topics match"


def test_topics_that_the_member_may_not_describe_are_left_out() -> None:
    bench = ConsumerBench({"orders-1": 2, "orders-2": 2})
    bench.hidden = {"orders-2"}
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    assert a.owned == bench.topics.partitions(["orders-1"])


def test_a_member_that_leaves_takes_its_expression_along() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a, b = Member("a", names=(), regex="orders-.*"), Member("b", names=(), regex=".*-1")
    bench.join(a)
    bench.join(b)
    bench.resolve()
    bench.leave(a)
    bench.resolve()
    assert bench.group.stored.regexes.keys() <= {".*-1"}
    bench.advance(10_000)
    bench.beat(b)
    bench.resolve()
    bench.settle_members(b)
    assert b.owned == bench.topics.partitions(["orders-1"])


def test_a_result_that_comes_after_the_member_left_changes_nothing() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.leave(a)
    epoch = bench.group.epoch
    bench.resolve()
    assert (bench.group.stored.regexes, bench.group.epoch) == ({}, epoch)


def test_an_expression_known_to_the_group_is_used_at_once() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a, b = Member("a", names=(), regex="orders-.*"), Member("b", names=())
    bench.join(a)
    bench.resolve()
    bench.join(b)
    epoch = bench.group.epoch
    bench.beat(b, subscribed_topic_regex="orders-.*")
    assert bench.group.epoch == epoch + 1
    bench.settle_members(a, b)
    assert (len(a.owned), len(b.owned)) == (1, 1)


@pytest.mark.parametrize("regex", ["[", "(?=x)", "(a)\\1", "a**"])
def test_an_expression_that_is_not_supported_is_refused(regex: str) -> None:
    bench = ConsumerBench()
    response = bench.join(Member("a", names=(), regex=regex))
    assert code(response) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "is not supported" in (response.error_message or "")
    assert not bench.shard.state.groups


def test_a_member_with_an_expression_that_takes_too_long_learns_it() -> None:
    bench = ConsumerBench()
    a = Member("a", names=(), regex="orders")
    bench.join(a)
    (asked,) = bench.resolutions
    found = dict.fromkeys(asked.regexes)
    bench.carry_out(bench.shard.on_regexes_resolved("g", found, bench.now))
    response = bench.beat(a)
    assert code(response) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "simpler" in (response.error_message or "")


def test_a_resolution_that_failed_is_asked_for_again() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolutions.clear()
    bench.carry_out(bench.shard.on_regexes_resolved("g", {}, bench.now))
    bench.advance(10_000)
    bench.beat(a)
    bench.resolve()
    bench.settle_members(a)
    assert a.owned == bench.topics.partitions(["orders-1"])
