"""Committed offsets in a shard: limits, retention, and deletion."""

from __future__ import annotations

from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
)

from .shard_bench import Bench

DAY_MS = 86_400_000


def test_the_length_of_offset_metadata_is_limited() -> None:
    """For each offset separately. The length is counted in UTF-16 units, as in Kafka."""
    bench = Bench(GroupConfig(offset_metadata_max=4))
    assert bench.committed(bench.commit({0: 1}, note="four")) == [ErrorCode.NONE]
    too_long = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert bench.committed(bench.commit({0: 2}, note="fives")) == [too_long]
    assert bench.committed(bench.commit({0: 3}, note="\N{GRINNING FACE}" * 3)) == [too_long]
    assert bench.committed(bench.commit({0: 4}, note="\N{GRINNING FACE}" * 2)) == [ErrorCode.NONE]
    assert bench.offsets() == {("orders", 0): 4}


def test_a_member_cannot_commit_to_a_group_that_does_not_exist() -> None:
    """Up to version 8 the error is ILLEGAL_GENERATION, from version 9 GROUP_ID_NOT_FOUND."""
    bench = Bench()
    old = bench.commit({0: 1}, member_id="m", generation=3, version=8)
    new = bench.commit({0: 1}, member_id="m", generation=3, version=9)
    assert bench.committed(old) == [ErrorCode.ILLEGAL_GENERATION]
    assert bench.committed(new) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert bench.shard.list_groups() == []


def test_a_client_may_set_the_retention_of_its_offsets() -> None:
    """Up to version 4. It survives a restart and overrides the broker's retention, longer or
    shorter."""
    bench = Bench()
    bench.commit({0: 1}, version=4, retention_ms=3_600_000)
    bench.commit({1: 1}, version=4, retention_ms=30 * DAY_MS)
    bench.restart()
    bench.advance(2 * 3_600_000)
    assert bench.offsets() == {("orders", 1): 1}
    bench.advance(20 * DAY_MS)
    assert bench.offsets() == {("orders", 1): 1}


def test_offsets_with_a_commit_in_flight_do_not_expire() -> None:
    """Otherwise the tombstone of the old offset would follow the new offset in the log."""
    bench = Bench()
    bench.commit({0: 1})
    bench.advance(7 * DAY_MS - 1_000)
    bench.holds_log = True
    late = bench.commit({0: 2})
    bench.advance(DAY_MS)
    bench.holds_log = False
    bench.settle()
    assert bench.committed(late) == [ErrorCode.NONE]
    assert bench.offsets() == {("orders", 0): 2}


def test_offsets_set_in_an_empty_group_are_kept_for_the_whole_retention() -> None:
    """An operator resets the offsets of a group that has been empty for a long time."""
    bench = Bench()
    (name,) = bench.run_group()
    bench.commit({0: 1}, member_id=name, generation=1)
    bench.leave(LeaveGroupRequest("g", name), 2)
    bench.advance(6 * DAY_MS)
    bench.commit({0: 9})
    bench.advance(6 * DAY_MS)
    assert bench.offsets() == {("orders", 0): 9}
    bench.advance(2 * DAY_MS)
    assert bench.state() == "Dead"


def test_offset_retention_counts_from_when_the_last_member_left() -> None:
    """However long ago the offsets were committed."""
    bench = Bench(
        GroupConfig(
            initial_rebalance_delay_ms=0,
            offsets_retention_ms=60_000,
            offsets_retention_check_interval_ms=1_000,
        )
    )
    (name,) = bench.run_group()
    bench.commit({0: 1}, member_id=name, generation=1)
    for _ in range(10):
        bench.advance(9_000)
        request = HeartbeatRequest("g", 1, name)
        info = RequestInfo("c", "/127.0.0.1", 3)
        bench.carry_out(bench.shard.heartbeat(request, info, bench.token(), bench.now))
    bench.leave(LeaveGroupRequest("g", name), 2)
    bench.advance(59_000)
    assert bench.offsets() == {("orders", 0): 1}
    bench.advance(2_000)
    assert bench.offsets() == {}


def test_a_failed_expiry_is_tried_again() -> None:
    """The group exists until its tombstones are in the log."""
    bench = Bench()
    bench.commit({0: 1})
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.advance(8 * DAY_MS)
    assert bench.state() == "Empty"
    assert bench.offsets() == {("orders", 0): 1}
    bench.fails_log = None
    bench.advance(600_000)
    assert bench.state() == "Dead"
    assert bench.offsets() == {}


def test_deleting_a_group_also_deletes_offsets_in_flight() -> None:
    """Otherwise an offset would survive its group and appear in the next one with the same name."""
    bench = Bench()
    bench.commit({0: 1})
    bench.holds_log = True
    bench.commit({1: 2})
    token = bench.token()
    info = RequestInfo("admin", "/127.0.0.1", 2)
    request = DeleteGroupsRequest(["g"])
    bench.carry_out(bench.shard.delete_groups(request, info, token, bench.now))
    bench.holds_log = False
    bench.settle()
    assert token in bench.replies
    assert bench.offsets() == {}
    bench.restart()
    assert bench.shard.list_groups() == []


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    """A new topic of the same name starts without offsets."""
    bench = Bench()
    bench.commit({0: 1}, topic="orders")
    bench.commit({0: 2}, topic="payments")
    bench.carry_out(bench.shard.forget_topics({"orders"}, bench.now))
    assert bench.offsets() == {("payments", 0): 2}


def test_offsets_that_may_be_in_use_are_not_deleted() -> None:
    """A group of another protocol type keeps all its offsets while it has members. A consumer
    group whose subscription cannot be decoded may be subscribed to any topic."""
    bench = Bench()
    bench.run_group(group="workers", kind="connect")
    assert bench.delete_offset("orders", "workers").error_code == ErrorCode.NON_EMPTY_GROUP
    assert bench.delete_offset("orders", "nowhere").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    bench.run_group(group="odd", metadata=b"\x00")  # type: ignore[arg-type]
    response = bench.delete_offset("orders", "odd")
    assert response.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
