"""A slow log: members that cannot be answered meanwhile are not taken for dead.

While an append is late, requests are refused, so that clients do not wait for too long. They are
the only way for members to make contact.
"""

from __future__ import annotations

import pytest

from penstock.groups.consumer.records import MemberState
from penstock.wire.errors import ErrorCode

from .bench import ConsumerBench, Member, code, join_request
from .classic import ClassicClient, send

SESSION_MS = 45_000
CLASSIC_SESSION_MS = 10_000


def stall(bench: ConsumerBench, newcomer: Member) -> int:
    """Lets the append of a join be late. Returns the token of the join."""
    bench.holds_log = True
    token = bench.send(join_request(newcomer))
    bench.advance(5_000)
    bench.carry_out(bench.shard.on_append_late(bench.waiting[0].append_id))
    return token


def end_stall(bench: ConsumerBench, *, failing: bool = False) -> None:
    bench.holds_log = False
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if failing else None
    while bench.waiting:
        bench.settle_one()
        bench.fails_log = None
    bench.group.verify()


def group_with_classic_members() -> tuple[ConsumerBench, Member, list[ClassicClient]]:
    bench = ConsumerBench()
    member = Member("m")
    bench.join(member)
    clients = [ClassicClient("x"), ClassicClient("y")]
    for _ in range(12):
        bench.beat(member)
        for client in clients:
            client.step(bench)
        bench.advance(1_000)
    assert bench.state == "Stable"
    assert len(bench.group.members) == 3
    return bench, member, clients


@pytest.mark.parametrize("failing", [False, True])
def test_members_that_send_heartbeats_all_the_time_stay(failing: bool) -> None:
    bench, _, clients = group_with_classic_members()
    before = set(bench.group.members)
    stall(bench, Member("new"))
    for _ in range(4):
        bench.advance(3_000)
        for client in clients:
            token = send(bench, client.beats(), 4)
            assert bench.replies[token].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE  # type: ignore[attr-defined]
    end_stall(bench, failing=failing)
    assert set(bench.group.members) - {"new"} == before
    for client in clients:
        token = send(bench, client.beats(), 4)
        expected = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)[not failing]
        assert bench.replies[token].error_code == expected  # type: ignore[attr-defined]


def test_a_member_that_died_is_removed_when_its_session_ends_after_the_stall() -> None:
    bench, member, clients = group_with_classic_members()
    dead = {client.member_id for client in clients}
    stall(bench, Member("new"))
    bench.advance(20_000)
    end_stall(bench)
    bench.advance(CLASSIC_SESSION_MS - 1)
    assert dead <= set(bench.group.members)
    bench.advance(1)
    assert not dead & set(bench.group.members)
    bench.advance(SESSION_MS)
    assert not bench.group.members, "they have not made contact either"
    assert member.member_id not in bench.group.sessions


def test_a_member_that_could_not_say_what_it_gave_up_stays() -> None:
    bench = ConsumerBench()
    a, b = Member("a", rebalance_ms=10_000), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    assert bench.group.current("a").state is MemberState.UNREVOKED
    stall(bench, Member("c"))
    bench.advance(6_000)
    end_stall(bench)
    assert "a" in bench.group.members
    assert code(bench.beat(a)) is ErrorCode.NONE
    bench.group.verify()


def test_a_member_that_never_gives_up_its_partitions_is_removed_after_the_stall() -> None:
    bench = ConsumerBench()
    a, b = Member("a", rebalance_ms=10_000), Member("b")
    bench.join(a)
    bench.join(b)
    bench.beat(a)
    stall(bench, Member("c"))
    bench.advance(6_000)
    end_stall(bench)
    bench.advance(10_000)
    assert "a" not in bench.group.members


@pytest.mark.parametrize("phase", ["joined", "out"])
def test_a_classic_member_gets_its_time_to_join_and_sync_again(phase: str) -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    x = ClassicClient("x", rebalance_ms=8_000)
    while x.phase != "joined":
        x.step(bench)
    if phase == "out":
        while x.phase != "running" or bench.state != "Stable":
            bench.beat(a)
            x.step(bench)
        bench.join(Member("b"))
        x.step(bench)
        assert x.member_id in bench.group.rejoins_due
    stall(bench, Member("c"))
    bench.advance(4_000)
    end_stall(bench)
    assert x.member_id in bench.group.members
    bench.advance(8_000)
    assert x.member_id not in bench.group.members
