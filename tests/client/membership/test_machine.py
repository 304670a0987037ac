"""The membership machine: event in, next step and news out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from client.membership.machine_rig import ME, OTHER, Rig, cooperative, places, wish
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
from penstock.client.membership.machine import Phase
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


def test_a_member_joins_when_it_is_polled_and_not_before() -> None:
    """Between subscribing and the first poll nothing is asked of anyone."""
    rig = Rig()
    assert isinstance(rig.step(), Wait)
    assert rig.machine.needs_poll(rig.now)
    assert rig.polls() == []
    request = rig.asks(JoinGroupRequest)
    assert (request.group_id, request.member_id, request.protocol_type) == ("g", "", "consumer")
    assert wish(request) == Subscription(("t",), (), -1)


def test_a_member_id_is_asked_for_and_then_used() -> None:
    """MEMBER_ID_REQUIRED brings an id, with which it joins again at once."""
    rig = Rig()
    rig.polls()
    rig.joins(code=ErrorCode.MEMBER_ID_REQUIRED)
    assert rig.asks(JoinGroupRequest).member_id == ME


def test_a_follower_gets_its_assignment_in_a_poll() -> None:
    """Join, sync without assignments of its own, then the user hears, then heartbeats."""
    rig = Rig()
    rig.polls()
    rig.joins(generation=4)
    request = rig.syncs(*places(0, 1))
    assert (request.generation_id, request.member_id, request.assignments) == (4, ME, [])
    assert rig.machine.owned == {}
    assert rig.polls() == [Assigned(places(0, 1))]
    assert rig.is_in(Phase.STABLE)
    assert rig.waits() == 3.0
    rig.now += 3.0
    beat = rig.asks(HeartbeatRequest)
    assert (beat.generation_id, beat.member_id) == (4, ME)


def test_a_leader_counts_assigns_and_tells_everyone() -> None:
    """It knows the topics of all members, and sends each its own share."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",))), (OTHER, Subscription(("t", "u")))])
    assert rig.counts(t=4, u=1) == ("t", "u")
    request = rig.syncs(*places(0, 1))
    given = {a.member_id: decode_assignment(a.assignment) for a in request.assignments}
    assert given == {ME: places(0, 1), OTHER: (*places(2, 3), *places(0, topic="u"))}


def test_a_leader_watches_the_topics_of_the_group() -> None:
    """New partitions, or a topic that appears or goes, mean that the group must meet again."""
    rig = Rig(metadata_max_age_ms=2_000)
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))])
    rig.counts(t=2)
    rig.syncs(*places(0, 1))
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
    assert rig.polls() == [Revoked(places(0, 1))]
    assert "partitions" in (rig.asks(JoinGroupRequest).reason or "")


def test_partitions_that_vanish_must_vanish_twice() -> None:
    """A broker that has just started may not know the topic yet; a deleted one stays away."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t", "u")))])
    rig.counts(t=2, u=1)
    rig.syncs(*places(0, 1))
    rig.polls()
    rig.machine.on_counts({"t": 2}, rig.now)
    rig.now += 1.0
    rig.counts(t=2, u=1)
    rig.machine.on_counts({"u": 1}, rig.now)
    assert rig.is_in(Phase.STABLE)
    rig.now += 1.0
    rig.counts(u=1)
    assert rig.is_in(Phase.DUE)


def test_a_leader_looks_often_for_a_topic_that_does_not_exist_yet() -> None:
    """Whoever creates it should not wait for minutes until it is read."""
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


def test_a_static_leader_that_returns_does_not_assign() -> None:
    """It is told to leave the assignment alone, but still watches; what it sees first counts."""
    rig = Rig(group_instance_id="i")
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",)))], skip=True)
    assert rig.syncs(*places(0)).assignments == []
    rig.polls()
    rig.counts(t=1)
    assert rig.is_in(Phase.STABLE)


def test_an_eager_member_gives_up_everything_before_it_joins() -> None:
    """Rebalance, poll, revoked, join with nothing in hand; then all it was given is new."""
    rig = Rig()
    rig.settle(*places(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.machine.needs_poll(rig.now)
    assert rig.machine.owned.keys() == set(places(0, 1))
    assert rig.polls() == [Revoked(places(0, 1))]
    assert wish(rig.joins(generation=2)) == Subscription(("t",), (), 1)
    rig.syncs(*places(1, 2))
    assert rig.polls() == [Assigned(places(1, 2))]


def test_a_cooperative_member_keeps_what_it_has_through_a_rebalance() -> None:
    """It joins with its partitions in hand and hears only of what is new."""
    rig = cooperative()
    rig.settle(*places(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == []
    request = rig.joins(generation=2)
    assert wish(request).owned == places(0, 1)
    assert wish(request).generation == 1
    rig.syncs(*places(0, 1, 2))
    assert rig.polls() == [Assigned(places(2))]
    assert rig.is_in(Phase.STABLE)
    assert rig.machine.held_since(places(0)[0], 1)
    assert not rig.machine.held_since(places(2)[0], 1)


def test_a_cooperative_member_gives_up_what_moves_and_joins_again() -> None:
    """So that, now that nobody holds it, it can be given to another."""
    rig = cooperative()
    rig.settle(*places(0, 1))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    rig.joins(generation=2)
    rig.syncs(*places(0))
    assert rig.polls() == [Revoked(places(1)), Assigned(())]
    request = rig.joins(generation=3)
    assert wish(request).owned == places(0)
    assert wish(request).generation == 2
    rig.syncs(*places(0))
    assert rig.polls() == [Assigned(())]
    assert rig.is_in(Phase.STABLE)


def test_one_eager_assignor_makes_an_eager_member() -> None:
    """Which of its assignors the group will use cannot be known when it must let go."""
    rig = Rig((RANGE, COOPERATIVE_STICKY))
    rig.settle(*places(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Revoked(places(0))]
    request = rig.asks(JoinGroupRequest)
    assert [protocol.name for protocol in request.protocols] == ["range", "cooperative-sticky"]
    assert wish(request, 1).owned == ()


def test_a_sticky_member_remembers_what_it_gave_up() -> None:
    """The leader learns it from the assignor's own bytes."""
    rig = Rig((STICKY,))
    rig.polls()
    assert wish(rig.joins(generation=7)).user_data is None
    rig.syncs(*places(0, 1))
    rig.polls()
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    user_data = wish(rig.asks(JoinGroupRequest)).user_data
    assert decode_memory(user_data) == Memory(places(0, 1), 7)


def test_a_changed_subscription_is_joined_with() -> None:
    """A cooperative member gives up the topics it no longer wants, and only those."""
    rig = cooperative(topics="tu")
    rig.settle(*places(0), *places(0, topic="u"))
    rig.machine.subscribe(frozenset("uv"), rig.now)
    assert rig.polls() == [Revoked(places(0))]
    request = rig.asks(JoinGroupRequest)
    assert wish(request) == Subscription(
        ("u", "v"), places(0, topic="u"), 1, wish(request).user_data
    )


def test_a_subscription_that_changes_meanwhile_is_joined_with_next() -> None:
    """What was assigned for the old one is not adopted."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.machine.subscribe(frozenset("u"), rig.now)
    rig.syncs(*places(0))
    assert rig.polls() == [Assigned(())]
    assert wish(rig.asks(JoinGroupRequest)).topics == ("u",)


def test_the_same_subscription_again_changes_nothing() -> None:
    """A pattern that matches what it matched costs no rebalance."""
    rig = Rig()
    rig.settle(*places(0))
    rig.machine.subscribe(frozenset("t"), rig.now)
    assert rig.is_in(Phase.STABLE)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_disowned_member_has_lost_its_partitions(code: ErrorCode) -> None:
    """It may not commit any more, hears that they are lost, and joins anew."""
    rig = cooperative()
    rig.settle(*places(0, 1))
    rig.beats(code)
    assert rig.machine.identity.generation == -1
    assert not rig.machine.held_since(places(0)[0], 1)
    assert rig.polls() == [Lost(places(0, 1))]
    rig.now += 1.0
    request = rig.asks(JoinGroupRequest)
    assert request.member_id == (ME if code == ErrorCode.ILLEGAL_GENERATION else "")
    assert wish(request).owned == ()


def test_a_cooperative_member_disowned_while_it_joins_waits_for_a_poll() -> None:
    """It still reads, so the user must hear before it joins with empty hands."""
    rig = cooperative()
    rig.settle(*places(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.polls()
    rig.joins(code=ErrorCode.UNKNOWN_MEMBER_ID)
    rig.now += 1.0
    assert isinstance(rig.step(), Wait)
    assert rig.polls() == [Lost(places(0))]
    rig.asks(JoinGroupRequest)


def test_an_eager_member_disowned_while_it_joins_starts_over_by_itself() -> None:
    """It holds nothing, so there is nobody to ask; but it takes a breath."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.waits() == 0.1
    rig.now += 0.1
    assert rig.asks(JoinGroupRequest).member_id == ""


def test_a_group_that_rebalances_again_is_joined_again() -> None:
    """REBALANCE_IN_PROGRESS instead of an assignment: somebody came in between."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.asks(JoinGroupRequest).member_id == ME


def test_a_rebalance_while_an_assignment_waits_for_a_poll_is_not_forgotten() -> None:
    """It is adopted first, then the group is joined again."""
    rig = cooperative()
    rig.polls()
    rig.joins()
    rig.syncs(*places(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Assigned(places(0))]
    assert wish(rig.asks(JoinGroupRequest)).owned == places(0)


def test_a_fenced_member_is_out_for_good() -> None:
    """It hears that its partitions are lost, and then of nothing but the reason."""
    rig = cooperative(group_instance_id="i")
    rig.settle(*places(0))
    rig.beats(ErrorCode.FENCED_INSTANCE_ID)
    assert rig.machine.poll(rig.now) == Lost(places(0))
    rig.machine.told(Lost(places(0)), rig.now)
    for _ in range(2):
        news = rig.machine.poll(rig.now)
        assert isinstance(news, Failed)
        assert isinstance(news.error, Fenced)
        rig.machine.told(news, rig.now)
        assert rig.step() == Wait(None)


def test_a_refused_member_says_so_and_tries_again_with_the_next_poll() -> None:
    """The error is raised once per attempt, not swallowed and not for ever."""
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


def test_a_coordinator_that_is_gone_is_looked_for_with_growing_patience() -> None:
    """Nothing is lost by it: the partitions stay until somebody says otherwise."""
    rig = cooperative(retry_backoff_ms=100, retry_backoff_max_ms=300)
    rig.settle(*places(0))
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
    assert rig.machine.owned.keys() == set(places(0))
    assert rig.waits() == 3.0


@pytest.mark.parametrize(
    ("code", "find"),
    [
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_a_coordinator_that_has_moved_is_found_and_the_same_asked_again(
    code: ErrorCode, find: bool
) -> None:
    """One that only loads is asked again itself. SyncGroup is repeated, not the whole join."""
    rig = Rig()
    rig.polls()
    rig.joins()
    rig.syncs(code=code)
    rig.now += 1.0
    step = rig.step()
    assert isinstance(step, Ask)
    assert isinstance(step.request, SyncGroupRequest)
    assert step.find is find


def test_what_no_retry_can_mend_is_told_at_once() -> None:
    """The wrong port is no Kafka today and will be none in a second."""
    rig = Rig()
    rig.polls()
    rig.asks(JoinGroupRequest)
    rig.machine.on_failure(NotKafka("no"), rig.now)
    news = rig.machine.poll(rig.now)
    assert isinstance(news, Failed)
    assert isinstance(news.error, NotKafka)


def test_a_member_that_is_not_polled_leaves() -> None:
    """Heartbeats alone do not prove that anyone reads; what it held is lost when it returns."""
    rig = Rig(max_poll_interval_ms=10_000)
    rig.settle(*places(0))
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
    assert rig.polls() == [Lost(places(0))]
    assert rig.asks(JoinGroupRequest).member_id == ""


def test_a_static_member_that_is_not_polled_only_falls_silent() -> None:
    """Its place is kept until its session ends, as if it had crashed."""
    rig = Rig(max_poll_interval_ms=5_000, group_instance_id="i")
    rig.settle(*places(0))
    rig.now += 6.0
    assert rig.step() == Wait(None)
    assert rig.polls() == [Lost(places(0))]


def test_polls_keep_a_member_in() -> None:
    """However long each of them takes."""
    rig = Rig(max_poll_interval_ms=10_000)
    rig.settle(*places(0))
    for _ in range(10):
        rig.now += 3.0
        rig.polls()
        rig.asks(HeartbeatRequest)
        rig.machine.on_answer(HeartbeatResponse(), rig.now)
    assert rig.is_in(Phase.STABLE)


def test_heartbeats_go_on_while_a_rebalance_waits_for_a_poll() -> None:
    """A user who is busy for longer than the session timeout is still a member."""
    rig = Rig()
    rig.settle(*places(0))
    rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    for _ in range(5):
        rig.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert rig.polls() == [Revoked(places(0))]


def test_leaving_forgets_everything_but_says_goodbye_only_if_known() -> None:
    """Who has no member id has nobody to say it to."""
    rig = Rig()
    assert rig.machine.leave("closed") is None
    rig = Rig()
    rig.settle(*places(0))
    goodbye = rig.machine.leave("closed")
    assert goodbye is not None
    assert (goodbye.members[0].member_id, goodbye.members[0].reason) == (ME, "closed")
    assert rig.step() == Wait(None)
    assert rig.machine.identity.generation == -1


def test_an_assignor_that_fails_is_heard_of() -> None:
    """The user's own assignor raises in the leader's poll, not into the void."""

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


def test_a_member_whose_wishes_cannot_be_read_gets_nothing() -> None:
    """One broken client must not stop the group."""
    rig = Rig()
    rig.polls()
    rig.joins(leader=ME, members=[(ME, Subscription(("t",))), (OTHER, b"?")])
    assert rig.counts(t=2) == ("t",)
    given = {
        assignment.member_id: decode_assignment(assignment.assignment)
        for assignment in rig.asks(SyncGroupRequest).assignments
    }
    assert given == {ME: places(0, 1), OTHER: ()}
