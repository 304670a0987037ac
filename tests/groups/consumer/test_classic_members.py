"""Members of the classic protocol in a consumer group: what the group keeps about them."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import LogRecord, Now
from penstock.groups import consumer_migration
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import MemberState
from penstock.groups.shard_state import ShardState
from penstock.wire.errors import ErrorCode

from .bench import ConsumerBench, Member
from .classic import ClassicClient


def joined(bench: ConsumerBench, client: ClassicClient) -> ClassicClient:
    while client.phase != "joined":
        client.step(bench)
        assert not client.errors
    return client


def test_protocols_that_no_member_supports_any_more_are_forgotten() -> None:
    bench = ConsumerBench()
    bench.join(Member("a"))
    x = joined(bench, ClassicClient("x"))
    for number in range(3):
        x.protocols, x.phase = ("range", f"other{number}"), "out"
        joined(bench, x)
        bench.group.verify()
    assert set(bench.group.classic_protocols) == {"range", "other2"}
    x.leave(bench)
    assert not bench.group.classic_protocols


def test_a_member_that_changes_to_the_new_protocol_need_not_fetch_its_assignment() -> None:
    """It joined with the classic protocol. What the coordinator expected then, it does not now."""
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    x = joined(bench, ClassicClient("x", rebalance_ms=20_000))
    assert x.member_id in bench.group.syncs_due
    new = Member(x.member_id)
    bench.join(new)
    bench.group.verify()
    for _ in range(3):
        bench.advance(10_000)
        bench.settle_members(a, new)
    assert set(bench.group.members) == {"a", x.member_id}


def test_a_member_that_changes_to_the_classic_protocol_has_its_limits_only() -> None:
    """It still has to give up partitions, and does so by joining again."""
    bench = ConsumerBench()
    a, b = Member("a", rebalance_ms=20_000), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    assert "a" in bench.group.revocations
    bench.advance(15_000)
    x = ClassicClient("x", member_id="a", owned={("orders", index) for index in range(6)})
    joined(bench, x)
    assert bench.group.current("a").state is MemberState.UNREVOKED
    bench.group.verify()
    bench.advance(5_000)
    assert set(bench.group.members) == {"a", "b"}


def test_a_member_whose_change_to_the_classic_protocol_is_undone_has_none_of_its_limits() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    ClassicClient("x", member_id="b").step(bench)
    bench.fails_log = None
    assert bench.group.members["b"].classic is None
    assert not bench.group.syncs_due
    bench.group.verify()


def test_a_member_that_changes_to_the_new_protocol_need_not_join_again() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    x = ClassicClient("x", rebalance_ms=20_000)
    while x.phase != "running" or bench.state != "Stable":
        bench.beat(a)
        x.step(bench)
    bench.join(b)
    x.step(bench)
    assert x.member_id in bench.group.rejoins_due
    new = Member(x.member_id)
    bench.join(new)
    bench.group.verify()
    for _ in range(3):
        bench.advance(10_000)
        bench.settle_members(a, b, new)
    assert set(bench.group.members) == {"a", "b", x.member_id}


def test_a_downgrade_that_does_not_fit_is_not_tried_at_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    clients = [joined(bench, ClassicClient(f"x{number}")) for number in range(8)]
    bench.batch_bytes_max = 1_000
    made: list[int] = []
    records = consumer_migration.downgrade_records

    def counted(shard: ShardState, group: ConsumerGroup, now: Now) -> list[LogRecord]:
        made.append(len(group.members))
        return records(shard, group, now)

    monkeypatch.setattr(consumer_migration, "downgrade_records", counted)
    assert bench.leave(a).error_code == 0
    assert len(bench.group.members) == 8
    made.clear()
    for number in range(16):
        client = clients[number % 8]
        client.topics, client.phase = ("orders", f"other{number}"), "out"
        joined(bench, client)
    assert len(made) <= 3, "about once when all members have changed"
    bench.batch_bytes_max = 1 << 20
    clients[0].topics, clients[0].phase = ("orders",), "out"
    clients[0].step(bench)
    assert bench.shard.state.classic("g") is not None, "with larger batches it fits"
