"""Decisions about share groups whose records need several batches, cut after each of them.

The members that are left soon read all partitions, and one that joined gets its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest

from .bench import Member, ShareBench, code, heartbeat

JOIN_AGAIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
BATCH_BYTES = 150
FAILS, DIES = "the next batch fails", "the coordinator dies"

Cut = tuple[ShareBench, list[Member]]


def one_leaves() -> tuple[ShareBench, list[Member], ShareGroupHeartbeatRequest]:
    bench, members = ShareBench({"jobs": 6}), [Member(name) for name in "abc"]
    bench.settle_members(*members)
    return bench, members[:2], ShareGroupHeartbeatRequest("g", "c", -1)


def one_joins() -> tuple[ShareBench, list[Member], ShareGroupHeartbeatRequest]:
    bench, members = ShareBench({"jobs": 6}), [Member(name) for name in "abc"]
    bench.settle_members(*members[:2])
    return bench, members, heartbeat(members[2])


def cuts(
    make: Callable[[], tuple[ShareBench, list[Member], ShareGroupHeartbeatRequest]], how: str
) -> Iterator[Cut]:
    for batches in range(1, 100):
        bench, members, request = make()
        bench.holds_log = True
        bench.batch_bytes_max = BATCH_BYTES
        bench.send(request)
        for _ in range(batches):
            bench.settle_one()
        if not bench.waiting:
            assert batches > 1, "the records of the decision are in one batch"
            return
        bench.holds_log = False
        if how == FAILS:
            bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
            bench.settle_one()
            bench.fails_log = None
        else:
            bench.restart()
        bench.batch_bytes_max = 1 << 20
        yield bench, members


@pytest.mark.parametrize("how", [FAILS, DIES])
@pytest.mark.parametrize("make", [one_leaves, one_joins])
def test_the_members_that_are_left_read_all_partitions(
    make: Callable[[], tuple[ShareBench, list[Member], ShareGroupHeartbeatRequest]], how: str
) -> None:
    for bench, members in cuts(make, how):
        for _ in range(12):
            bench.advance(5_000)
            bench.make_calls()
            for member in members:
                answer = code(bench.beat(member))
                assert answer in (ErrorCode.NONE, *JOIN_AGAIN)
                if answer is not ErrorCode.NONE:
                    member.epoch, member.assigned = 0, set()
            bench.shard.verify()
        read = set().union(*(member.assigned for member in members))
        assert read == bench.topics.partitions(["jobs"])
        assert all(member.assigned for member in members)
