"""Consumer groups and classic groups under one roof: listing, describing, converting."""

from __future__ import annotations

from penstock.groups.effects import RequestInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from penstock.wire.messages.base import Request, Response

from .bench import ConsumerBench, Member, code


def ask(bench: ConsumerBench, request: Request, version: int) -> Response:
    bench.tokens += 1
    info = RequestInfo("c", "/127.0.0.1", version)
    method = {
        JoinGroupRequest: bench.shard.join_group,
        SyncGroupRequest: bench.shard.sync_group,
        HeartbeatRequest: bench.shard.heartbeat,
        LeaveGroupRequest: bench.shard.leave_group,
    }[type(request)]
    bench.carry_out(method(request, info, bench.tokens, bench.now))  # type: ignore[operator]
    bench.advance(3_000)
    return bench.replies[bench.tokens]


def join_classic(bench: ConsumerBench, member_id: str = "") -> JoinGroupResponse:
    protocol = JoinGroupRequest.Protocol("range", b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00")
    request = JoinGroupRequest("g", 10_000, 60_000, member_id, None, "consumer", [protocol])
    response = ask(bench, request, 3)
    assert isinstance(response, JoinGroupResponse)
    return response


def test_groups_are_listed_by_type_and_state() -> None:
    bench = ConsumerBench()
    bench.join(Member("a"))
    bench.join(Member("a"), group="h")
    listed = bench.shard.list_groups()
    assert [(each.group_id, each.group_type) for each in listed] == [
        ("g", "consumer"),
        ("h", "consumer"),
    ]
    assert {each.protocol_type for each in listed} == {"consumer"}
    assert bench.shard.list_groups(types_filter=["classic"]) == []
    assert len(bench.shard.list_groups(types_filter=["Consumer"])) == 2
    assert len(bench.shard.list_groups(states_filter=["stable"])) == 2
    assert bench.shard.list_groups(states_filter=["Reconciling"]) == []


def test_a_consumer_group_is_described() -> None:
    bench = ConsumerBench({"orders": 2})
    a, b = Member("a", instance="one"), Member("b")
    bench.join(a)
    bench.join(b)
    found = bench.shard.describe_consumer_group("g")
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Reconciling", 2, 2)
    first, second = found.members
    assert (first.member_id, first.instance_id, first.member_epoch) == ("a", "one", 1)
    assert (first.client_id, first.client_host) == ("c", "/127.0.0.1")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["orders"], None)
    assert first.member_type == 1
    (topic,) = first.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("orders", [0, 1])
    assert [len(each.partitions) for each in first.target_assignment.topic_partitions] == [1]
    assert second.assignment.topic_partitions == []


def test_each_type_is_described_by_its_own_request() -> None:
    bench = ConsumerBench()
    bench.join(Member("a"))
    (found,) = bench.shard.describe_groups(["g"], 6)
    assert (found.error_code, found.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    (found,) = bench.shard.describe_groups(["g"], 5)
    assert (found.error_code, found.group_state) == (0, "Dead")
    other = ConsumerBench()
    join_classic(other)
    missing = other.shard.describe_consumer_group("g")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_classic_requests_of_members_of_the_new_protocol_are_refused() -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    beat = ask(bench, HeartbeatRequest("g", 1, "a"), 3)
    assert isinstance(beat, HeartbeatResponse)
    assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    sync = ask(bench, SyncGroupRequest("g", 1, "a"), 3)
    assert isinstance(sync, SyncGroupResponse)
    assert sync.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.beat(a).error_code == 0


def test_members_whose_subscription_is_unreadable_cannot_share_a_group() -> None:
    bench = ConsumerBench()
    bench.join(Member("a"))
    assert join_classic(bench).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    bench = ConsumerBench()
    join_classic(bench)
    response = bench.join(Member("a"))
    assert code(response) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "unreadable" in (response.error_message or "")


def test_an_empty_classic_group_is_converted_with_its_offsets() -> None:
    bench = ConsumerBench()
    bench.commit("", -1, {0: 42})
    joined = join_classic(bench)
    ask(bench, LeaveGroupRequest("g", joined.member_id), 2)
    a = Member("a")
    assert bench.join(a).error_code == 0
    assert "g" not in bench.shard.state.image.groups
    bench.restart()
    assert bench.beat(a).error_code == 0
    assert [value.offset for value in bench.shard.state.image.offsets_of("g").values()] == [42]


def test_a_classic_group_is_restored_if_its_conversion_fails() -> None:
    bench = ConsumerBench()
    bench.commit("", -1, {0: 42})
    joined = join_classic(bench)
    ask(bench, LeaveGroupRequest("g", joined.member_id), 2)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(bench.join(Member("a"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.fails_log = None
    group = bench.shard.state.require_classic("g")
    assert (group.state.value, group.generation) == ("Empty", 2)
    assert join_classic(bench).generation_id == 3


def test_an_empty_consumer_group_becomes_a_classic_one() -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    bench.commit("a", 1, {0: 42})
    bench.leave(a)
    epoch = bench.group.epoch
    joined = join_classic(bench)
    assert (joined.error_code, joined.generation_id) == (0, epoch + 1)
    assert "g" not in bench.shard.state.image.consumer_groups
    assert [each.group_type for each in bench.shard.list_groups()] == ["classic"]
    assert [value.offset for value in bench.shard.state.image.offsets_of("g").values()] == [42]


def test_an_operator_removes_members() -> None:
    bench = ConsumerBench()
    a, b = Member("a", instance="one"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    leaving = [
        LeaveGroupRequest.Member("", "one"),
        LeaveGroupRequest.Member("x"),
        LeaveGroupRequest.Member("", "two"),
        LeaveGroupRequest.Member("b", "one"),
    ]
    response = ask(bench, LeaveGroupRequest("g", members=leaving), 4)
    assert isinstance(response, LeaveGroupResponse)
    assert [each.error_code for each in response.members] == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert list(bench.group.members) == ["b"]
    response = ask(bench, LeaveGroupRequest("g", "b"), 1)
    assert isinstance(response, LeaveGroupResponse)
    assert (response.error_code, bench.state) == (0, "Empty")
