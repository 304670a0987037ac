"""Members that subscribe with a regular expression."""

from __future__ import annotations

import pytest

from penstock.coordination.batches import record_bytes
from penstock.groups.consumer.regexes import resolve
from penstock.groups.effects import RegexOutgrown
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest

from .bench import ConsumerBench, Member, code, join_request


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


REALISTIC = {
    r".*\.(orders|payments|refunds|shipments)\..*": 2,
    r"[a-z]+(\.[a-z0-9-]+)*\.v[0-9]+": 4,
    r".*(orders|payments|refunds|shipments|users).*v[0-9]+": 2,
    r".*(orders|payments|refunds|shipments|users|carts|sessions|clicks|views|searches|logins|"
    r"invoices|ledgers|audits|alerts|emails|prices|stock|returns|coupons)\.v.*": 2,
}
"""Expressions, and how many of four topics match."""


@pytest.mark.parametrize("regex", REALISTIC)
def test_long_names_of_many_topics_are_not_too_much_for_realistic_expressions(regex: str) -> None:
    kinds = "orders.v12", "refunds.v3", "inventory.v1", "metrics.v10"
    prefix = "prod.eu-west-1.billing.warehouse-and-logistics.team-"
    # The work that is allowed grows with the names, and so does the work of the matcher.
    names = [f"{prefix}{number:04}.{kind}" for number in range(100) for kind in kinds]
    assert max(map(len, names)) >= 67
    found = resolve([regex], names)[regex]
    assert found is not None
    assert len(found) == 100 * REALISTIC[regex]


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
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
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


def outgrow(bench: ConsumerBench, member: Member) -> list[RegexOutgrown]:
    """Creates a topic, with which there are too many for the expression of the member. Returns
    what the shard asks its runtime to report."""
    bench.topics.create(f"orders-{len(bench.topics.known) + 1}", 1)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.advance(10_000)
    bench.beat(member)
    (asked,), bench.resolutions = bench.resolutions, []
    found = dict.fromkeys(asked.regexes)
    effects = bench.shard.on_regexes_resolved("g", found, bench.now)
    bench.carry_out(effects)
    return [each for each in effects if isinstance(each, RegexOutgrown)]


def test_an_expression_that_has_worked_is_not_taken_back() -> None:
    """Anyone who may create topics could end the group: the error is fatal for clients."""
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    known = bench.topics.partitions(["orders-1"])
    assert outgrow(bench, a) == [RegexOutgrown("g", "orders-.*")]
    assert outgrow(bench, a) == [], "it is reported once"
    assert bench.shard.state.counters.regexes_outgrown == 2, "but counted each time"
    bench.settle_members(a)
    assert a.owned == known
    again = Member("b", names=(), regex="orders-.*")
    bench.restart()
    bench.join(again)
    assert outgrow(bench, again), "the next coordinator reports it too"
    assert code(bench.beat(again)) is ErrorCode.NONE


def test_an_expression_that_works_again_gets_the_new_topics() -> None:
    bench = ConsumerBench({"orders-1": 2})
    a = Member("a", names=(), regex="orders-.*")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    assert outgrow(bench, a)
    bench.topics.create("payments", 1)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.advance(10_000)
    bench.beat(a)
    bench.resolve()
    bench.settle_members(a)
    assert len(a.owned) == 3
    assert outgrow(bench, a), "a later time is reported again"


def test_topics_that_others_create_do_not_end_a_group() -> None:
    def name(number: int) -> str:
        return f"prod.eu-west-1.billing.inventory.metrics.team-{number:04}.orders.v1"

    bench = ConsumerBench({name(number): 1 for number in range(100)})
    a = Member("a", names=(), regex=r".*(orders|payments|refunds|shipments|users).*v[0-9]+")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    assert len(a.owned) == 100
    for number in range(100, 400):
        bench.topics.create(name(number), 1)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.advance(10_000)
    bench.beat(a)
    bench.resolve()
    bench.settle_members(a)
    assert len(a.owned) == 400


def too_many_topics(bench: ConsumerBench, first: int) -> None:
    """Creates more topics than the record of an expression can have."""
    for number in range(first, first + 100):
        bench.topics.create(f"t{number:03}-{'x' * 60}", 1)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)


def test_an_expression_that_matches_too_many_topics_is_refused_and_harms_no_others() -> None:
    bench = ConsumerBench({"orders": 6})
    bench.batch_bytes_max = 4_096
    too_many_topics(bench, 0)
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    large = Member("large", names=(), regex=".*")
    assert bench.join(large).error_code == 0
    bench.holds_log = True
    waits = [bench.send(join_request(Member("c")))]
    bench.resolve()
    waits += [bench.send(ConsumerGroupHeartbeatRequest("g", each, 1)) for each in ("a", "b")]
    bench.holds_log = False
    while bench.waiting:
        size = sum(map(record_bytes, bench.waiting[0].records))
        assert size <= bench.batch_bytes_max, "the log would refuse it, and so all requests"
        bench.settle_one()
    assert code(bench.answer(waits[0])) is ErrorCode.NONE
    response = bench.beat(large)
    assert code(response) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "too many topics" in (response.error_message or "")
    assert bench.shard.state.counters.regexes_outgrown == 1


def test_an_expression_that_matches_too_many_topics_by_now_keeps_those_of_the_last_time() -> None:
    bench = ConsumerBench({"orders-1": 6})
    bench.batch_bytes_max = 4_096
    a = Member("a", names=(), regex=".*")
    bench.join(a)
    bench.resolve()
    bench.settle_members(a)
    known = set(a.owned)
    too_many_topics(bench, 0)
    bench.advance(10_000)
    bench.beat(a)
    bench.resolve()
    bench.settle_members(a)
    assert a.owned == known
    assert bench.shard.state.counters.regexes_outgrown == 1


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
