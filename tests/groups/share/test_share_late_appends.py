"""A slow log: members of share groups that cannot be answered meanwhile are not taken for dead."""

from __future__ import annotations

import pytest

from penstock.wire.errors import ErrorCode

from .bench import Member, ShareBench, code, heartbeat

SESSION_MS = 45_000


def stalled() -> tuple[ShareBench, Member]:
    """A group of one member, and a late append of its log."""
    bench = ShareBench()
    a = Member("a")
    bench.settle_members(a)
    bench.holds_log = True
    bench.send(heartbeat(Member("b")))
    bench.carry_out(bench.shard.on_append_late(bench.waiting[0].append_id))
    return bench, a


@pytest.mark.parametrize("failing", [False, True])
def test_members_that_send_heartbeats_all_the_time_stay(failing: bool) -> None:
    bench, a = stalled()
    for _ in range(20):
        bench.advance(5_000)
        assert code(bench.ask(heartbeat(a))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.holds_log = False
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS if failing else None
    bench.settle_one()
    bench.fails_log = None
    bench.settle()
    assert "a" in bench.group.members
    bench.advance(SESSION_MS - 1)
    assert code(bench.beat(a)) is ErrorCode.NONE


def test_a_member_that_died_is_removed_when_its_session_ends_after_the_stall() -> None:
    bench, _ = stalled()
    bench.advance(100_000)
    bench.holds_log = False
    bench.settle()
    assert bench.group.members.keys() == {"a", "b"}
    bench.advance(SESSION_MS)
    assert not bench.group.members
