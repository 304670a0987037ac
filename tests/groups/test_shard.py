"""What the transcripts do not show: limits, races with the log, and the shapes of old versions."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import Now, Reply, SetTimer
from penstock.coordination.invariants import InvariantViolated
from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo, TimerKind
from penstock.groups.formats import OffsetValue, group_record, offset_record
from penstock.groups.group import Group, State
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from penstock.wire.messages.base import Response

from .shard_bench import SUBSCRIPTION, Bench

DAY_MS = 86_400_000


# Joining


def test_a_group_needs_a_name() -> None:
    """All membership requests refuse the empty group id."""
    bench = Bench()
    assert bench.joined(bench.join(group="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert bench.synced(bench.sync(SyncGroupRequest())).error_code == ErrorCode.INVALID_GROUP_ID
    assert bench.leave(LeaveGroupRequest(), 4).error_code == ErrorCode.INVALID_GROUP_ID


def test_a_first_member_without_protocols_is_refused() -> None:
    """It must name its protocol type and its protocols. A refused member leaves no group behind."""
    bench = Bench()
    for token in (bench.join(kind=""), bench.join(protocols=())):
        assert bench.joined(token).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bench.shard.list_groups() == []


def test_unknown_member_ids_are_refused() -> None:
    """A member id that the coordinator did not assign is unknown, whether the group exists or
    not."""
    bench = Bench()
    assert bench.joined(bench.join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    bench.run_group()
    assert bench.joined(bench.join("ghost")).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_version_0_rebalances_within_the_session_timeout() -> None:
    """JoinGroup v0 has no separate rebalance timeout."""
    bench = Bench()
    bench.join(version=0, rebalance_ms=-1)
    assert bench.shard.state.require_classic("g").rebalance_timeout_ms == 10_000


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    """The first one counts."""
    bench = Bench()
    token = bench.join(protocols=("range", "range", "sticky"))
    bench.advance(1)
    assert bench.joined(token).protocol_name == "range"
    assert bench.joined(token).members[0].metadata == SUBSCRIPTION


def test_the_oldest_members_vote_breaks_a_tie() -> None:
    """With one vote each, the protocol of the member that joined first wins."""
    bench = Bench()
    first = bench.join(protocols=("sticky", "range"))
    bench.join(protocols=("range", "sticky"))
    bench.advance(1)
    assert bench.joined(first).protocol_name == "sticky"


def test_a_first_join_waits_five_minutes_at_most() -> None:
    """A member that cannot send heartbeats yet may wait longer than a session, but not forever."""
    bench = Bench()
    (old,) = bench.run_group()
    token = bench.join(rebalance_ms=900_000)
    for _ in range(299):
        bench.advance(1_000)
        request = HeartbeatRequest("g", 1, old)
        info = RequestInfo("c", "/127.0.0.1", 3)
        bench.carry_out(bench.shard.heartbeat(request, info, bench.token(), bench.now))
    assert token not in bench.replies
    bench.advance(1_000)
    assert bench.joined(token).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_join_replaces_the_first() -> None:
    """Both are answered, the first one at once, so that no connection waits forever."""
    bench = Bench()
    (leader, _) = bench.run_group(2)
    first = bench.join(leader)
    second = bench.join(leader)
    assert bench.joined(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second not in bench.replies


def test_a_static_member_can_return_to_a_full_group() -> None:
    """It replaces itself, so the group does not grow."""
    bench = Bench(GroupConfig(initial_rebalance_delay_ms=0, group_size_max=1))
    first = bench.join(version=5, instance="one")
    bench.advance(1)
    name = bench.joined(first).member_id
    bench.sync(SyncGroupRequest("g", 1, name, "one"))
    again = bench.join(version=5, instance="one")
    assert bench.joined(again).error_code == ErrorCode.NONE
    stranger = bench.join(version=5, instance="two")
    assert bench.joined(stranger).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.joined(stranger).member_id == ""


def test_a_static_member_that_is_replaced_while_it_joins_may_wait() -> None:
    """It is not a new member, and a member that waits for its join response cannot send
    heartbeats, so its session does not expire."""
    bench = Bench(GroupConfig(initial_rebalance_delay_ms=30_000))
    first = bench.join(version=5, instance="one")
    second = bench.join(version=5, instance="one")
    assert bench.joined(first).error_code == ErrorCode.FENCED_INSTANCE_ID
    bench.advance(30_000)
    assert bench.joined(second).error_code == ErrorCode.NONE


def test_a_replacement_that_is_replaced_before_it_is_stored_is_fenced() -> None:
    """Two processes with one instance id race through the log. The later one wins."""
    bench = Bench()
    bench.run_group(instance="one", version=5)  # type: ignore[arg-type]
    bench.holds_log = True
    second = bench.join(version=5, instance="one")
    third = bench.join(version=5, instance="one")
    bench.holds_log = False
    bench.settle()
    assert bench.joined(second).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert bench.joined(third).error_code == ErrorCode.NONE
    assert bench.shard.state.image.groups["g"].members[0].member_id == bench.joined(third).member_id


def test_a_replacement_that_leaves_before_it_is_stored_is_unknown() -> None:
    bench = Bench()
    bench.run_group(instance="one", version=5)  # type: ignore[arg-type]
    bench.holds_log = True
    token = bench.join(version=5, instance="one")
    bench.leave(LeaveGroupRequest("g", members=[LeaveGroupRequest.Member("", "one")]), 3)
    bench.holds_log = False
    bench.settle()
    assert bench.joined(token).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.state() == "Empty"


# Sync, heartbeat, leave


def test_sync_must_name_the_protocol_from_version_5() -> None:
    """Without it, or with another one, the member does not know what it joined."""
    bench = Bench()
    (name,) = bench.run_group()
    refused = [
        SyncGroupRequest("g", 1, name),
        SyncGroupRequest("g", 1, name, protocol_type="consumer"),
        SyncGroupRequest("g", 1, name, protocol_type="connect", protocol_name="range"),
        SyncGroupRequest("g", 1, name, protocol_type="consumer", protocol_name="sticky"),
    ]
    for request in refused:
        response = bench.synced(bench.sync(request, 5))
        assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    good = SyncGroupRequest("g", 1, name, protocol_type="consumer", protocol_name="range")
    response = bench.synced(bench.sync(good, 5))
    assert (response.error_code, response.assignment) == (0, name.encode())
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


def test_the_leader_assigns_only_to_members() -> None:
    """Assignments to unknown members are dropped before they are written to the log."""
    bench = Bench()
    token = bench.join()
    bench.advance(1)
    name = bench.joined(token).member_id
    shares = [
        SyncGroupRequest.Assignment("stranger", b"x"),
        SyncGroupRequest.Assignment(name, b"y"),
    ]
    bench.sync(SyncGroupRequest("g", 1, name, assignments=shares))
    members = bench.shard.state.image.groups["g"].members
    assert [(member.member_id, member.assignment) for member in members] == [(name, b"y")]


def test_heartbeats_set_no_timers() -> None:
    """There are far too many of them. When the timer fires, it computes how much time is left."""
    bench = Bench()
    (name,) = bench.run_group()
    bench.advance(5_000)
    request = HeartbeatRequest("g", 1, name)
    info = RequestInfo("c", "/127.0.0.1", 3)
    effects = bench.shard.heartbeat(request, info, bench.token(), bench.now)
    assert [type(effect) for effect in effects] == [Reply]
    bench.advance(5_001)
    assert bench.state() == "Stable"
    bench.advance(5_000)
    assert bench.state() == "Empty"


def test_a_jump_of_the_wall_clock_ends_no_session() -> None:
    """Sessions use the monotonic clock. A change of the wall clock must not remove every member."""
    bench = Bench()
    bench.run_group()
    due = next(key for key in bench.timers if key.kind is TimerKind.SESSION)
    bench.shard.on_timer(due, Now(bench.ticks_ms, bench.now.wall_ms + DAY_MS))
    assert bench.state() == "Stable"


def test_leave_before_version_3_names_one_member() -> None:
    """Its error is the error of the response."""
    bench = Bench()
    (name,) = bench.run_group()
    unknown = bench.leave(LeaveGroupRequest("g", "ghost"), 2)
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.leave(LeaveGroupRequest("nowhere", name), 2).error_code == unknown.error_code
    assert bench.leave(LeaveGroupRequest("g", name), 2).error_code == ErrorCode.NONE
    assert bench.state() == "Empty"


def test_several_members_leave_in_one_request() -> None:
    """Each member has its own error, and together they cause one rebalance."""
    bench = Bench()
    first, second, third = bench.run_group(3)
    leaving = [LeaveGroupRequest.Member(name) for name in (first, "ghost", second)]
    leaving.append(LeaveGroupRequest.Member(third, "no-instance"))
    response = bench.leave(LeaveGroupRequest("g", members=leaving), 3)
    assert response.error_code == ErrorCode.NONE
    assert [member.error_code for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert list(bench.shard.state.groups["g"].members) == [third]


def test_a_pending_member_may_leave() -> None:
    """The group does not rebalance because of it, and a rebalance does not wait for it any
    longer."""
    bench = Bench()
    (leader,) = bench.run_group()
    pending = bench.joined(bench.join(version=5)).member_id
    waiting = bench.join(leader)
    assert waiting not in bench.replies
    response = bench.leave(LeaveGroupRequest("g", members=[LeaveGroupRequest.Member(pending)]), 3)
    assert response.members[0].error_code == ErrorCode.NONE
    assert bench.joined(waiting).generation_id == 2


# Loading and unloading


def test_a_loaded_group_above_the_size_limit_rebalances() -> None:
    """A lowered limit takes effect, and the members that join first stay."""
    bench = Bench()
    first, second = bench.run_group(2)
    bench.config = GroupConfig(initial_rebalance_delay_ms=0, group_size_max=1)
    bench.restart()
    assert bench.state() == "PreparingRebalance"
    stays = bench.join(second)
    goes = bench.join(first)
    assert bench.joined(goes).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bench.joined(stays).leader == second


def test_groups_in_old_formats_are_loaded() -> None:
    """Groups stored without timestamps and rebalance timeouts continue."""
    bench = Bench()
    (name,) = bench.run_group()
    value = bench.shard.state.image.groups["g"]
    value.current_state_timestamp = value.members[0].rebalance_timeout = -1
    group = Group.from_value("g", value)
    assert (group.state, group.state_since_ms) == (State.STABLE, -1)
    assert group.members[name].rebalance_timeout_ms == 10_000


def test_unload_cancels_timers_and_answers_requests() -> None:
    bench = Bench()
    bench.run_group(2)
    bench.join(version=5)
    waiting = bench.join(group="other")
    bench.carry_out(bench.shard.unload())
    assert bench.timers == {}
    assert bench.joined(waiting).error_code == ErrorCode.NOT_COORDINATOR


def test_an_idle_shard_checks_for_expired_offsets() -> None:
    """From the start, and again after each check."""
    bench = Bench()
    assert {key.kind for key in bench.timers} == {TimerKind.EXPIRY}
    (key,) = bench.timers
    effects = bench.shard.on_timer(key, bench.now)
    assert effects == [SetTimer(key, bench.ticks_ms + 600_000)]


def test_stale_timers_do_nothing() -> None:
    """They fire late, early, or for a member that has left."""
    bench = Bench()
    (name,) = bench.run_group()
    due = next(key for key in bench.timers if key.kind is TimerKind.SESSION)
    bench.leave(LeaveGroupRequest("g", name), 2)
    for kind in (TimerKind.JOIN, TimerKind.SYNC, TimerKind.SESSION, TimerKind.PENDING):
        assert bench.shard.on_timer(due._replace(kind=kind), bench.now) == []
        assert bench.shard.on_timer(due._replace(kind=kind, group_id="x"), bench.now) == []


def test_append_results_must_be_reported_in_order() -> None:
    """Otherwise the image would differ from the log. This is a bug, so it stops the shard."""
    bench = Bench()
    bench.holds_log = True
    bench.commit({0: 1})
    bench.commit({0: 2})
    with pytest.raises(InvariantViolated):
        bench.shard.on_committed(bench.waiting[1].append_id, bench.now)


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    """InvariantViolated stops the shard."""
    group = Group("g", 0)
    with pytest.raises(InvariantViolated):
        group.transition(State.STABLE, 1)


def test_replay_skips_records_of_other_group_types() -> None:
    bench = Bench()
    bench.shard.replay(b"\x00\x0b\x00\x01g", b"share group metadata")
    bench.shard.replay(*offset_record("g", "orders", 0, OffsetValue(5)))
    bench.shard.replay(*group_record("other", None))
    assert bench.offsets() == {("orders", 0): 5}


@pytest.mark.parametrize(
    "settings",
    [
        {"initial_rebalance_delay_ms": -1},
        {"session_timeout_min_ms": 10, "session_timeout_max_ms": 9},
        {"group_size_max": 0},
        {"offsets_retention_check_interval_ms": 0},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    """They are refused at startup, not when they first cause trouble."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        GroupConfig(**settings)


def test_every_answer_is_a_response() -> None:
    """Effects contain wire messages, ready to be encoded."""
    bench = Bench()
    bench.run_group()
    assert all(isinstance(response, Response) for response in bench.replies.values())


# Appends that take long


def test_a_slow_commit_is_answered_once_and_takes_effect_when_committed() -> None:
    """The client gets a retriable error. If the records are committed afterwards, the offset
    counts."""
    world = Bench()
    world.holds_log = True
    token = world.commit({0: 7})
    append_id = world.waiting[0].append_id
    world.carry_out(world.shard.on_append_late(append_id))
    assert world.committed(token) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.carry_out(world.shard.on_append_late(append_id))
    world.settle()
    asked = OffsetFetchRequest.Group("g", topics=None)
    found = world.shard.fetch_offsets(asked, require_stable=False)
    assert found.topics[0].partitions[0].committed_offset == 7
    world.holds_log = False
    assert world.committed(world.commit({0: 8})) == [ErrorCode.NONE]


def test_members_do_not_wait_for_a_slow_assignment() -> None:
    """They may retry meanwhile, and get the assignment once the log has committed it."""
    world = Bench()
    joining = world.join()
    world.advance(1)
    member_id = world.joined(joining).member_id
    world.holds_log = True
    share = [SyncGroupRequest.Assignment(member_id, b"all")]
    first = world.sync(SyncGroupRequest("g", 1, member_id, assignments=share))
    world.carry_out(world.shard.on_append_late(world.waiting[0].append_id))
    assert world.synced(first).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = world.sync(SyncGroupRequest("g", 1, member_id, assignments=share))
    world.settle()
    assert world.synced(again).assignment == b"all"


def test_a_member_whose_sync_timed_out_still_has_a_session() -> None:
    """Its session continued while it waited, and expires if the member sends nothing more."""
    world = Bench()
    joining = world.join()
    world.advance(1)
    member_id = world.joined(joining).member_id
    world.holds_log = True
    world.sync(SyncGroupRequest("g", 1, member_id))
    world.advance(25_000)
    assert member_id in world.shard.state.groups["g"].members
    world.carry_out(world.shard.on_append_late(world.waiting[0].append_id))
    world.advance(11_000)
    assert member_id not in world.shard.state.groups["g"].members
