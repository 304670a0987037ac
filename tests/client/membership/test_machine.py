"""Tests the membership machine: event in, next step and news out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from client.membership.machine_driver import ME, OTHER, Rig, cooperative, topic_partitions, wish
from penstock.client.errors import BrokerError, ConnectionLost, Fenced, NotKafka
from penstock.client.membership.assignors import (
    COOPERATIVE_STICKY,
    RANGE,
    STICKY,
    Assignment,
    Memory,
    Peer,
)
from penstock.client.membership.assignors.sticky import decode_memory
from penstock.client.membership.phases import Phase
from penstock.client.membership.protocol import Subscription, decode_assignment
from penstock.client.membership.steps import Ask, Assigned, Failed, Lost, Revoked, Wait
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)


def test_a_member_joins_on_its_first_poll() -> None:
    """Between subscribing and the first poll, no request is sent."""
    rig = Rig()
    assert isinstance(rig.step(), Wait)
    assert rig.machine.needs_poll(rig.now)
    assert rig.polls() == []
    request = rig.asks(JoinGroupRequest)
    assert (request.group_id, request.member_id, request.protocol_type) == ("g", "", "consumer")
    assert wish(request) == Subscription(("t",), (), -1)


def test_a_member_id_is_requested_and_then_used() -> None:
    """MEMBER_ID_REQUIRED assigns an id, with which the member joins again at once."""
    rig = Rig()
    rig.polls()
    rig.joins(code=ErrorCode.MEMBER_ID_REQUIRED)
    assert rig.asks(JoinGroupRequest).member_id == ME


def test_a_follower_gets_its_assignment_in_a_poll() -> None:
    """Join, sync without assignments, then the poll reports the
    assignment, then heartbeats follow."""
    rig = Rig()
    rig.polls()
    rig.joins(generation=4)
    request = rig.syncs(*topic_partitions(0, 1))
    assert (request.generation_id, request.member_id, request.assignments) == (4, ME, [])
    assert rig.machine.owned == {}
    assert rig.polls() == [Assigned(topic_partitions(0, 1))]
    assert rig.is_in(Phase.STABLE)
    assert rig.waits() == 3.0
    rig.now += 3.0
    beat = rig.asks(HeartbeatRequest)
    assert (beat.generation_id, beat.member_id) == (4, ME)


def test_a_leader_counts_partitions_and_assigns_them_to_all_members() -> None:
    """It collects the topics of all members and sends each its own share."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",))), (OTHER, Subscription(("t", "u")))])
    assert rig.counts(t=4, u=1) == ("t", "u")
    request = rig.syncs(*topic_partitions(0, 1))
    given = {a.member_id: decode_assignment(a.assignment) for a in request.assignments}
    assert given == {
        ME: topic_partitions(0, 1),
        OTHER: (*topic_partitions(2, 3), *topic_partitions(0, topic="u")),
    }


def test_a_leader_watches_the_topics_of_the_group() -> None:
    """New partitions, and topics that appear or disappear, cause a rebalance."""
    rig = Rig(metadata_max_age_ms=2_000)
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))])
    rig.counts(t=2)
    rig.syncs(*topic_partitions(0, 1))
    rig.polls()
    assert rig.waits() == 2.0
    rig.now += 2.0
    rig.counts(t=2)
    assert rig.is_in(Phase.STABLE)
    rig.now += 1.0
    rig.machine.on_answer(HeartbeatResponse(), rig.now)
    rig.now += 1.0
    rig.counts(t=3)
    assert rig.is_in(Phase.DUE)
    assert rig.polls() == [Revoked(topic_partitions(0, 1))]
    assert "partition counts" in (rig.asks(JoinGroupRequest).reason or "")


def test_partitions_must_be_missing_twice_to_count_as_deleted() -> None:
    """A broker that has just started may not know the topic yet; a deleted topic stays missing."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t", "u")))])
    rig.counts(t=2, u=1)
    rig.syncs(*topic_partitions(0, 1))
    rig.polls()
    rig.machine.on_counts({"t": 2}, rig.now)
    rig.now += 1.0
    rig.counts(t=2, u=1)
    rig.machine.on_counts({"u": 1}, rig.now)
    assert rig.is_in(Phase.STABLE)
    rig.now += 1.0
    rig.counts(u=1)
    assert rig.is_in(Phase.DUE)


def test_a_leader_checks_often_for_a_topic_that_does_not_exist_yet() -> None:
    """A new topic should be read soon, not after minutes."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))])
    rig.counts()
    rig.syncs()
    assert rig.polls() == [Assigned(())]
    assert rig.waits() == 1.0
    rig.now += 1.0
    rig.counts(t=1)
    assert rig.is_in(Phase.DUE)


def test_a_returning_static_leader_does_not_assign() -> None:
    """The coordinator tells it to keep the assignment. It still watches the topics; the first
    counts it sees are its baseline."""
    rig = Rig(group_instance_id="i")
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))], skip=True)
    assert rig.syncs(*topic_partitions(0)).assignments == []
    rig.polls()
    rig.counts(t=1)
    assert rig.is_in(Phase.STABLE)


def test_an_eager_member_revokes_everything_before_it_joins() -> None:
    """Rebalance, poll, revocation, then a join without owned partitions. All
    assigned partitions are then new."""
    rig = Rig()
    rig.settle(*topic_partitions(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.machine.needs_poll(rig.now)
    assert rig.machine.owned.keys() == set(topic_partitions(0, 1))
    assert rig.polls() == [Revoked(topic_partitions(0, 1))]
    assert wish(rig.joins(generation=2)) == Subscription(("t",), (), 1)
    rig.syncs(*topic_partitions(1, 2))
    assert rig.polls() == [Assigned(topic_partitions(1, 2))]


def test_a_cooperative_member_keeps_its_partitions_through_a_rebalance() -> None:
    """It joins with its owned partitions, and polls report only new ones."""
    rig = cooperative()
    rig.settle(*topic_partitions(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == []
    request = rig.joins(generation=2)
    assert wish(request).owned == topic_partitions(0, 1)
    assert wish(request).generation == 1
    rig.syncs(*topic_partitions(0, 1, 2))
    assert rig.polls() == [Assigned(topic_partitions(2))]
    assert rig.is_in(Phase.STABLE)
    assert rig.machine.held_since(topic_partitions(0)[0], 1)
    assert not rig.machine.held_since(topic_partitions(2)[0], 1)


def test_a_cooperative_member_revokes_what_moves_and_joins_again() -> None:
    """Now that no member owns the partition, it can be assigned to another."""
    rig = cooperative()
    rig.settle(*topic_partitions(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    rig.joins(generation=2)
    rig.syncs(*topic_partitions(0))
    assert rig.polls() == [Revoked(topic_partitions(1)), Assigned(())]
    request = rig.joins(generation=3)
    assert wish(request).owned == topic_partitions(0)
    assert wish(request).generation == 2
    rig.syncs(*topic_partitions(0))
    assert rig.polls() == [Assigned(())]
    assert rig.is_in(Phase.STABLE)


def test_a_member_with_one_eager_assignor_is_eager() -> None:
    """When it must revoke, it cannot know yet which of its assignors the group will use."""
    rig = Rig((RANGE, COOPERATIVE_STICKY))
    rig.settle(*topic_partitions(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Revoked(topic_partitions(0))]
    request = rig.asks(JoinGroupRequest)
    assert [protocol.name for protocol in request.protocols] == ["range", "cooperative-sticky"]
    assert wish(request, 1).owned == ()


def test_a_sticky_member_remembers_what_it_revoked() -> None:
    """The leader reads it from the assignor's user data."""
    rig = Rig((STICKY,))
    rig.polls()
    assert wish(rig.joins(generation=7)).user_data is None
    rig.syncs(*topic_partitions(0, 1))
    rig.polls()
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    user_data = wish(rig.asks(JoinGroupRequest)).user_data
    assert decode_memory(user_data) == Memory(topic_partitions(0, 1), 7)


def test_a_changed_subscription_triggers_a_join() -> None:
    """A cooperative member revokes the topics that it no longer subscribes to, and only those."""
    rig = cooperative(topics="tu")
    rig.settle(*topic_partitions(0), *topic_partitions(0, topic="u"))
    rig.machine.subscribe(frozenset("uv"), rig.now)
    assert rig.polls() == [Revoked(topic_partitions(0))]
    request = rig.asks(JoinGroupRequest)
    assert wish(request) == Subscription(
        ("u", "v"), topic_partitions(0, topic="u"), 1, wish(request).user_data
    )


def test_a_subscription_changed_during_a_rebalance_triggers_another_join() -> None:
    """The assignment for the old subscription is not adopted."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.machine.subscribe(frozenset("u"), rig.now)
    rig.syncs(*topic_partitions(0))
    assert rig.polls() == [Assigned(())]
    assert wish(rig.asks(JoinGroupRequest)).topics == ("u",)


def test_an_unchanged_subscription_causes_no_rebalance() -> None:
    """For example a pattern that matches the same topics as before."""
    rig = Rig()
    rig.settle(*topic_partitions(0))
    rig.machine.subscribe(frozenset("t"), rig.now)
    assert rig.is_in(Phase.STABLE)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_member_removed_by_the_coordinator_loses_its_partitions(code: ErrorCode) -> None:
    """It may no longer commit. The poll reports the loss, and the member joins again."""
    rig = cooperative()
    rig.settle(*topic_partitions(0, 1))
    rig.beats(code)
    assert rig.machine.identity.generation == -1
    assert not rig.machine.held_since(topic_partitions(0)[0], 1)
    assert rig.polls() == [Lost(topic_partitions(0, 1))]
    rig.now += 1.0
    request = rig.asks(JoinGroupRequest)
    assert request.member_id == (ME if code == ErrorCode.ILLEGAL_GENERATION else "")
    assert wish(request).owned == ()


def test_a_cooperative_member_removed_while_joining_waits_for_a_poll() -> None:
    """It still reads, so the user must learn of the loss before it joins without partitions."""
    rig = cooperative()
    rig.settle(*topic_partitions(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    rig.joins(code=ErrorCode.UNKNOWN_MEMBER_ID)
    rig.now += 1.0
    assert isinstance(rig.step(), Wait)
    assert rig.polls() == [Lost(topic_partitions(0))]
    rig.asks(JoinGroupRequest)


def test_an_eager_member_removed_while_joining_starts_over_by_itself() -> None:
    """It owns nothing, so it needs no poll, but it waits for the backoff."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.waits() == 0.1
    rig.now += 0.1
    assert rig.asks(JoinGroupRequest).member_id == ""


def test_a_member_joins_again_if_another_rebalance_begins() -> None:
    """The sync returns REBALANCE_IN_PROGRESS instead of an assignment
    because another member joined."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.asks(JoinGroupRequest).member_id == ME


def test_a_rebalance_while_an_assignment_waits_for_a_poll_is_not_lost() -> None:
    """The assignment is adopted first, then the member joins again."""
    rig = cooperative()
    rig.polls()
    rig.joins()
    rig.syncs(*topic_partitions(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Assigned(topic_partitions(0))]
    assert wish(rig.asks(JoinGroupRequest)).owned == topic_partitions(0)


def test_a_fenced_member_stays_out() -> None:
    """The poll reports that its partitions are lost, and from then on only the reason."""
    rig = cooperative(group_instance_id="i")
    rig.settle(*topic_partitions(0))
    rig.beats(ErrorCode.FENCED_INSTANCE_ID)
    assert rig.machine.poll(rig.now) == Lost(topic_partitions(0))
    rig.machine.told(Lost(topic_partitions(0)), rig.now)
    for _ in range(2):
        news = rig.machine.poll(rig.now)
        assert isinstance(news, Failed)
        assert isinstance(news.error, Fenced)
        rig.machine.told(news, rig.now)
        assert rig.step() == Wait(None)


def test_a_refused_member_reports_the_error_and_retries_on_the_next_poll() -> None:
    """The error is raised once for each attempt."""
    rig = Rig()
    rig.polls()
    rig.joins(code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert isinstance(rig.step(), Wait)
    news = rig.machine.poll(rig.now)
    assert isinstance(news, Failed)
    assert isinstance(news.error, BrokerError)
    assert news.error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    rig.machine.told(news, rig.now)
    assert rig.polls() == []
    rig.asks(JoinGroupRequest)


def test_a_missing_coordinator_is_searched_with_growing_backoff() -> None:
    """The partitions stay assigned until a coordinator says otherwise."""
    rig = cooperative(retry_backoff_ms=100, retry_backoff_max_ms=300)
    rig.settle(*topic_partitions(0))
    rig.now += 3.0
    for pause in (0.1, 0.2, 0.3, 0.3):
        rig.asks(HeartbeatRequest)
        rig.machine.on_failure(ConnectionLost("gone"), rig.now)
        assert rig.waits() == pause
        rig.now += pause
    step = rig.step()
    assert isinstance(step, Ask)
    assert step.find
    rig.machine.on_answer(HeartbeatResponse(), rig.now)
    assert rig.machine.owned.keys() == set(topic_partitions(0))
    assert rig.waits() == 3.0


@pytest.mark.parametrize(
    ("code", "find"),
    [
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_the_request_is_repeated_after_the_coordinator_moved(code: ErrorCode, find: bool) -> None:
    """A coordinator that is only loading is asked again. SyncGroup is
    repeated, not the whole join."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=code)
    rig.now += 1.0
    step = rig.step()
    assert isinstance(step, Ask)
    assert isinstance(step.request, SyncGroupRequest)
    assert step.find is find


def test_an_error_that_no_retry_can_fix_is_reported_at_once() -> None:
    """For example a port on which no Kafka broker listens."""
    rig = Rig()
    rig.polls()
    rig.asks(JoinGroupRequest)
    rig.machine.on_failure(NotKafka("no"), rig.now)
    news = rig.machine.poll(rig.now)
    assert isinstance(news, Failed)
    assert isinstance(news.error, NotKafka)


def test_a_member_that_is_not_polled_leaves_the_group() -> None:
    """Heartbeats do not prove that the application reads. When it polls
    again, its partitions are lost."""
    rig = Rig(max_poll_interval_ms=10_000)
    rig.settle(*topic_partitions(0))
    for _ in range(3):
        rig.now += 3.0
        rig.asks(HeartbeatRequest)
        rig.machine.on_answer(HeartbeatResponse(), rig.now)
    assert rig.machine.needs_poll(rig.now)
    assert rig.waits() == 1.0
    rig.now += 1.0
    assert rig.asks(LeaveGroupRequest).members[0].member_id == ME
    rig.machine.on_answer(LeaveGroupResponse(), rig.now)
    assert rig.step() == Wait(None)
    assert rig.polls() == [Lost(topic_partitions(0))]
    assert rig.asks(JoinGroupRequest).member_id == ""


def test_a_static_member_that_is_not_polled_only_stops_its_heartbeats() -> None:
    """Its partitions are kept until its session ends, as if it had crashed."""
    rig = Rig(max_poll_interval_ms=5_000, group_instance_id="i")
    rig.settle(*topic_partitions(0))
    rig.now += 6.0
    assert rig.step() == Wait(None)
    assert rig.polls() == [Lost(topic_partitions(0))]


def test_polls_keep_a_member_in_the_group() -> None:
    rig = Rig(max_poll_interval_ms=10_000)
    rig.settle(*topic_partitions(0))
    for _ in range(10):
        rig.now += 3.0
        rig.polls()
        rig.asks(HeartbeatRequest)
        rig.machine.on_answer(HeartbeatResponse(), rig.now)
    assert rig.is_in(Phase.STABLE)


def test_heartbeats_continue_while_a_rebalance_waits_for_a_poll() -> None:
    """An application that is busy for longer than the session timeout stays a member."""
    rig = Rig()
    rig.settle(*topic_partitions(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    for _ in range(5):
        rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Revoked(topic_partitions(0))]


def test_leaving_sends_a_request_only_with_a_member_id() -> None:
    """Without a member id, the coordinator does not know the member."""
    rig = Rig()
    assert rig.machine.leave("closed", for_good=True) is None
    rig = Rig()
    rig.settle(*topic_partitions(0))
    goodbye = rig.machine.leave("closed", for_good=True)
    assert goodbye is not None
    assert (goodbye.members[0].member_id, goodbye.members[0].reason) == (ME, "closed")
    assert rig.step() == Wait(None)
    assert rig.machine.identity.generation == -1


def test_an_error_of_an_assignor_is_raised_by_poll() -> None:
    """In the poll of the group's leader, which runs the user's assignor."""

    class Broken:
        name = "broken"
        cooperative = False

        def user_data(self, memory: Memory) -> bytes | None:
            return None

        def assign(self, counts: Mapping[str, int], members: Sequence[Peer]) -> Assignment:
            raise ZeroDivisionError("mine")

    rig = Rig((Broken(),))
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))])
    rig.counts(t=1)
    news = rig.machine.poll(rig.now)
    assert isinstance(news, Failed)
    assert isinstance(news.error, ZeroDivisionError)
    rig.machine.told(news, rig.now)
    rig.polls()
    rig.asks(JoinGroupRequest)


def test_a_member_with_an_unreadable_subscription_gets_nothing() -> None:
    """One broken client must not stop the group."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",))), (OTHER, b"?")])
    assert rig.counts(t=2) == ("t",)
    given = {
        assignment.member_id: decode_assignment(assignment.assignment)
        for assignment in rig.asks(SyncGroupRequest).assignments
    }
    assert given == {ME: topic_partitions(0, 1), OTHER: ()}
