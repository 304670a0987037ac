"""ShareGroupHeartbeat: joining, initialization, assignments, leaving, and every refusal."""

from __future__ import annotations

import pytest

from penstock.groups.config import ShareGroupConfig, ShareGroupSettings
from penstock.groups.consumer.records import TopicIdPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

from .bench import Member, ShareBench, code, heartbeat


def test_partitions_are_assigned_once_they_are_initialized() -> None:
    bench, anna = ShareBench(), Member("anna")
    first = bench.beat(anna)
    assert (first.error_code, first.member_epoch, first.heartbeat_interval_ms) == (0, 1, 500)
    assert first.assignment is not None
    assert first.assignment.topic_partitions == []
    (call,) = bench.calls
    assert [(each.state_epoch, each.start_offset) for each in call.initialize] == [(1, -1)] * 4
    assert bench.group.stored.states.initializing
    bench.beat(anna)
    assert bench.calls == [call], "a call that is under way is not repeated"
    bench.make_calls()
    second = bench.beat(anna)
    assert second.member_epoch == 2
    assert anna.assigned == bench.topics.partitions(["jobs"])
    third = bench.beat(anna)
    assert (third.assignment, third.heartbeat_interval_ms) == (None, 5_000)
    assert bench.group.state.value == "Stable"


def test_members_share_partitions_without_giving_them_up_first() -> None:
    bench, members = ShareBench({"jobs": 2}), [Member(f"m{index}") for index in range(5)]
    bench.settle_members(*members)
    assert all(len(member.assigned) >= 1 for member in members)
    assert set().union(*(member.assigned for member in members)) == bench.topics.partitions(
        ["jobs"]
    )
    bench.leave(members.pop())
    assert bench.settle_members(*members) <= 3
    assert {member.epoch for member in members} == {bench.group.target_epoch}


def test_a_member_takes_over_its_target_with_one_heartbeat() -> None:
    bench, anna, ben = ShareBench(), Member("anna"), Member("ben")
    bench.settle_members(anna)
    bench.beat(ben)
    assert len(ben.assigned) == 2
    bench.beat(anna)
    assert len(anna.assigned) == 2
    assert not anna.assigned & ben.assigned
    assert anna.epoch == ben.epoch == bench.group.epoch


def test_a_failed_initialization_is_repeated_after_a_pause() -> None:
    bench, anna = (
        ShareBench(shares=ShareGroupConfig(ShareGroupSettings(), retry_max_ms=3_000)),
        Member("anna"),
    )
    bench.beat(anna)
    for pause_ms in (1_000, 2_000, 3_000, 3_000):
        bench.make_calls(failing=True)
        answer = bench.beat(anna)
        assert (bench.calls, answer.heartbeat_interval_ms) == ([], 5_000)
        bench.advance(pause_ms - 1)
        bench.beat(anna)
        assert bench.calls == []
        bench.advance(1)
        bench.beat(anna)
        assert len(bench.calls) == 1
    bench.make_calls()
    bench.beat(anna)
    assert len(anna.assigned) == 4


def test_a_new_coordinator_repeats_the_initialization() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.beat(anna)
    bench.calls.clear()
    bench.restart()
    bench.beat(anna)
    (call,) = bench.calls
    assert len(call.initialize) == 4
    bench.make_calls()
    bench.restart()
    bench.beat(anna)
    assert bench.calls == []
    assert len(anna.assigned) == 4


def test_the_result_of_a_call_of_an_earlier_coordinator_has_no_effect() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.beat(anna)
    (call,) = bench.calls
    bench.restart()
    bench.make_call(call)
    assert not bench.group.stored.states.initialized


def test_topics_appear_and_grow() -> None:
    bench, anna = ShareBench(), Member("anna", ("jobs", "mail"))
    bench.settle_members(anna)
    assert anna.assigned == bench.topics.partitions(["jobs"])
    bench.topics.create("mail", 2)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.settle_members(anna)
    assert anna.assigned == bench.topics.partitions(["jobs", "mail"])
    bench.topics.grow("mail", 3)
    bench.shard.on_topics_changed(bench.topics.touched(), created=False)
    bench.settle_members(anna)
    assert anna.assigned == bench.topics.partitions(["jobs", "mail"])
    assert len(bench.states) == 7


def test_the_states_of_a_deleted_topic_are_deleted() -> None:
    bench, anna = ShareBench({"jobs": 2, "mail": 1}), Member("anna", ("jobs", "mail"))
    bench.settle_members(anna)
    gone = bench.topics.known["jobs"].topic_id
    bench.topics.delete("jobs")
    bench.shard.on_topics_changed(bench.topics.touched(), created=False)
    bench.carry_out(bench.shard.on_topics_deleted([gone], bench.now))
    assert list(bench.group.stored.states.deleting) == [gone]
    bench.calls.clear()
    bench.restart()
    bench.settle_members(anna)
    assert anna.assigned == bench.topics.partitions(["mail"])
    assert bench.states.keys() == anna.assigned
    assert bench.group.listed_topics() == [bench.topics.known["mail"].topic_id]


def test_a_topic_that_is_created_again_begins_anew() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.settle_members(anna)
    gone = bench.topics.known["jobs"].topic_id
    bench.topics.create("jobs", 1)
    bench.shard.on_topics_changed(bench.topics.touched(), created=True)
    bench.carry_out(bench.shard.on_topics_deleted([gone], bench.now))
    bench.settle_members(anna)
    assert anna.assigned == bench.topics.partitions(["jobs"]) == set(bench.states)


def test_a_subscription_changes_at_once() -> None:
    bench, anna = ShareBench({"jobs": 2, "mail": 1}), Member("anna", ("jobs", "mail"))
    bench.settle_members(anna)
    answer = bench.beat(anna, subscribed_topic_names=["mail"])
    assert answer.assignment is not None
    assert anna.assigned == bench.topics.partitions(["mail"])


def test_the_target_is_not_computed_too_often() -> None:
    bench, anna, ben = ShareBench(shares=ShareGroupConfig()), Member("anna"), Member("ben")
    bench.beat(anna)
    bench.make_calls()
    early = bench.beat(anna)
    assert (len(anna.assigned), early.heartbeat_interval_ms) == (0, 500)
    assert bench.beat(ben).member_epoch == 1
    bench.advance(1_000)
    bench.beat(ben)
    bench.beat(anna)
    assert len(anna.assigned) == len(ben.assigned) == 2


def test_members_that_stay_away_are_removed() -> None:
    bench, anna, ben = ShareBench(), Member("anna"), Member("ben")
    bench.settle_members(anna, ben)
    bench.advance(30_000)
    bench.beat(anna)
    bench.advance(20_000)
    assert list(bench.group.members) == ["anna"]
    bench.beat(anna)
    assert len(anna.assigned) == 4
    assert code(bench.ask(heartbeat(ben))) is ErrorCode.UNKNOWN_MEMBER_ID
    bench.restart()
    bench.advance(45_000)
    assert bench.group.state.value == "Empty"


def test_a_group_has_its_own_settings() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.settings["g"] = ShareGroupSettings(300, 100, 0)
    bench.settle_members(anna)
    assert bench.beat(anna).heartbeat_interval_ms == 100
    bench.advance(300)
    assert not bench.group.members


def test_epochs_fence_members() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.settle_members(anna)
    bench.beat(Member("ben"))
    behind = bench.ask(heartbeat(anna))
    assert behind.member_epoch == anna.epoch + 1
    lost = bench.ask(heartbeat(anna))
    assert (lost.error_code, lost.member_epoch) == (0, anna.epoch + 1)
    assert lost.assignment is not None, "the member did not get the last answer"
    for epoch in (anna.epoch - 1, anna.epoch + 2):
        request = ShareGroupHeartbeatRequest("g", "anna", epoch)
        assert code(bench.ask(request)) is ErrorCode.FENCED_MEMBER_EPOCH
    again = ShareGroupHeartbeatRequest("g", "anna", 0, None, ["jobs"])
    assert bench.ask(again).member_epoch == anna.epoch + 1, "joining again changes nothing"


def test_a_lost_group_makes_members_join_again() -> None:
    """GROUP_ID_NOT_FOUND would end the client."""
    bench = ShareBench()
    for epoch in (1, -1):
        request = ShareGroupHeartbeatRequest("g", "anna", epoch)
        assert code(bench.ask(request)) is ErrorCode.UNKNOWN_MEMBER_ID
    bench.beat(Member("anna"))
    assert code(bench.leave(Member("ben"))) is ErrorCode.UNKNOWN_MEMBER_ID
    left = bench.leave(Member("anna"))
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_a_full_group_refuses_members() -> None:
    bench = ShareBench(shares=ShareGroupConfig(group_size_max=1))
    anna = Member("anna")
    bench.beat(anna)
    assert code(bench.beat(Member("ben"))) is ErrorCode.GROUP_MAX_SIZE_REACHED
    anna.epoch = 0
    assert bench.beat(anna).error_code == 0


@pytest.mark.parametrize(
    "request_",
    [
        ShareGroupHeartbeatRequest("", "anna", 0, None, ["jobs"]),
        ShareGroupHeartbeatRequest("g", "", 0, None, ["jobs"]),
        ShareGroupHeartbeatRequest("g", "a" * 37, 0, None, ["jobs"]),
        ShareGroupHeartbeatRequest("g", "anna", 0, "", ["jobs"]),
        ShareGroupHeartbeatRequest("g", "anna", 0, None, None),
        ShareGroupHeartbeatRequest("g", "anna", 0, None, []),
        ShareGroupHeartbeatRequest("g", "anna", -2, None, ["jobs"]),
        ShareGroupHeartbeatRequest("g" * 40_000, "anna", 0, None, ["jobs"]),
    ],
)
def test_invalid_requests_are_refused(request_: ShareGroupHeartbeatRequest) -> None:
    bench = ShareBench()
    assert code(bench.ask(request_)) is ErrorCode.INVALID_REQUEST
    assert bench.log == []


def test_a_subscription_that_fits_no_record_is_refused() -> None:
    bench = ShareBench()
    bench.batch_bytes_max = 1_000
    request = ShareGroupHeartbeatRequest("g", "anna", 0, None, ["t" * 400, "u" * 400])
    assert code(bench.ask(request)) is ErrorCode.INVALID_REQUEST


def test_records_that_cannot_be_appended_change_nothing() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(bench.beat(anna)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (bench.shard.state.share_groups, bench.calls) == ({}, [])
    assert not [key for key in bench.timers if key.group_id]
    bench.fails_log = None
    bench.settle_members(anna)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(bench.beat(Member("ben"))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(45_000)
    assert list(bench.group.members) == ["anna"], "the removal could not be stored"
    bench.fails_log = None
    bench.advance(45_000)
    assert not bench.group.members


def test_initialization_begins_when_it_is_listed() -> None:
    """A coordinator that crashes before that has called nothing."""
    bench, anna = ShareBench(), Member("anna")
    bench.holds_log = True
    bench.send(heartbeat(anna))
    assert bench.calls == []
    bench.settle()
    assert len(bench.calls) == 1
    bench.holds_log = False
    bench.make_calls()
    assert bench.states.keys() == bench.topics.partitions(["jobs"])


def test_unloading_answers_waiting_heartbeats() -> None:
    bench, anna = ShareBench(), Member("anna")
    bench.holds_log = True
    token, later = bench.send(heartbeat(anna)), bench.send(heartbeat(Member("ben")))
    bench.carry_out(bench.shard.unload())
    for each in (token, later):
        response = bench.replies[each]
        assert isinstance(response, ShareGroupHeartbeatResponse)
        assert code(response) is ErrorCode.NOT_COORDINATOR


def test_racks_and_clients_are_stored() -> None:
    bench = ShareBench()
    bench.send(ShareGroupHeartbeatRequest("g", "anna", 0, "r1", ["jobs"]), client="worker")
    member = bench.group.members["anna"]
    assert (member.rack_id, member.client_id, member.client_host) == ("r1", "worker", "/127.0.0.1")
    bench.send(ShareGroupHeartbeatRequest("g", "anna", 1), client="worker 2")
    member = bench.group.members["anna"]
    assert (member.rack_id, member.client_id) == ("r1", "worker 2")


def test_a_partition_is_not_assigned_before_the_log_says_that_it_is_initialized() -> None:
    bench, anna = ShareBench({"jobs": 1}), Member("anna")
    bench.beat(anna)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    bench.make_calls()
    bench.fails_log = None
    bench.beat(anna)
    assert anna.assigned == set()
    bench.make_calls()
    bench.beat(anna)
    assert anna.assigned == {TopicIdPartition(bench.topics.known["jobs"].topic_id, 0)}
