"""Tests the machine of the new protocol: event in, next step and news out."""

from __future__ import annotations

import pytest

from client.membership.consumer_rig import ME, ConsumerRig, owned_in, topic_id
from client.membership.machine_driver import topic_partitions
from penstock.client.errors import ApiNotServed, BrokerError, ClientError, ConnectionLost, Fenced
from penstock.client.membership.phases import Phase
from penstock.client.membership.steps import Assigned, Failed, Identity, Lost, Revoked
from penstock.wire.errors import ErrorCode

T = topic_id("t")


def test_a_member_joins_with_everything_about_itself() -> None:
    """It waits for the first poll. Then one request has its id, subscription and no partitions."""
    rig = ConsumerRig(
        group_instance_id="i", client_rack="r", remote_assignor="range", rebalance_timeout_ms=7
    )
    assert rig.waits() == 150.0
    assert rig.polls() == []
    request = rig.asks()
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", ME, 0)
    assert (request.instance_id, request.rack_id, request.server_assignor) == ("i", "r", "range")
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["t"], None)
    assert (request.rebalance_timeout_ms, request.topic_partitions) == (7, [])


def test_an_assignment_is_named_told_and_acknowledged() -> None:
    """The coordinator knows topics by id. The user is told when their names are known."""
    rig = ConsumerRig()
    rig.polls()
    rig.beats(3, {T: [0, 1]})
    assert not rig.is_in(Phase.ADOPTING)
    rig.names([(T, "t")])
    assert rig.machine.needs_poll(rig.now)
    assert rig.machine.owned == {}
    assert rig.polls() == [Assigned(topic_partitions(0, 1))]
    request = rig.beats(3)
    assert (request.member_epoch, owned_in(request)) == (3, {T: [0, 1]})
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (None, -1)
    assert rig.waits() == 5.0


def test_a_heartbeat_without_changes_is_empty() -> None:
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    request = rig.beats()
    assert (request.member_epoch, request.topic_partitions) == (1, None)
    assert (request.subscribed_topic_names, request.server_assignor) == (None, None)
    assert rig.waits() == 5.0


def test_an_empty_assignment_is_told_once() -> None:
    """A listener learns that the member has joined."""
    rig = ConsumerRig()
    rig.polls()
    rig.beats(1, {})
    assert rig.polls() == [Assigned(())]
    assert rig.waits() == 5.0


def test_partitions_are_revoked_in_a_poll_and_then_acknowledged() -> None:
    """Until the poll, heartbeats do not say what is owned. What stays is never told."""
    rig = ConsumerRig()
    rig.settle(0, 1, 2)
    rig.rests()
    rig.beats(1, {T: [0]})
    rig.rests()
    assert owned_in(rig.beats(1)) is None
    assert rig.polls() == [Revoked(topic_partitions(1, 2)), Assigned(())]
    assert owned_in(rig.beats(2)) == {T: [0]}
    assert rig.machine.generation == 2


def test_partitions_that_others_gave_up_come_without_a_new_epoch() -> None:
    rig = ConsumerRig()
    rig.settle(0, epoch=2)
    rig.rests()
    rig.beats(2, {T: [0, 1]})
    assert rig.polls() == [Assigned(topic_partitions(1))]
    assert owned_in(rig.beats(2)) == {T: [0, 1]}


def test_an_epoch_alone_is_not_told() -> None:
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    rig.beats(2)
    assert rig.polls() == []
    assert rig.machine.identity.generation == 2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_member_that_was_removed_loses_all_and_joins_again(code: ErrorCode) -> None:
    """It joins with the same id, and only after the poll that told of the loss."""
    rig = ConsumerRig()
    rig.settle(0, 1)
    rig.rests()
    rig.beats(code=code)
    assert rig.machine.generation == -1
    rig.now += 1.0
    assert rig.is_in(Phase.DUE)
    assert rig.polls() == [Lost(topic_partitions(0, 1))]
    request = rig.beats(9, {T: [1]})
    assert (request.member_epoch, request.member_id, request.topic_partitions) == (0, ME, [])
    assert request.subscribed_topic_names == ["t"]
    assert rig.polls() == [Assigned(topic_partitions(1))]


def test_after_a_failure_the_coordinator_is_found_and_told_everything() -> None:
    """The lost request may have been processed. Nothing is given up meanwhile."""
    rig = ConsumerRig()
    rig.settle(0, 1)
    rig.rests()
    rig.asks()
    rig.machine.on_failure(ConnectionLost("gone"), rig.now)
    assert rig.polls() == []
    rig.now += 1.0
    step = rig.step()
    assert getattr(step, "find", False)
    request = rig.beats(1, {T: [0, 1]})
    assert (request.member_epoch, owned_in(request)) == (1, {T: [0, 1]})
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (["t"], 300_000)
    assert rig.waits() == 5.0


@pytest.mark.parametrize(
    ("code", "finds"),
    [
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_a_coordinator_that_moves_is_looked_up(code: ErrorCode, finds: bool) -> None:
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    rig.beats(code=code)
    assert rig.polls() == []
    rig.now += 1.0
    assert getattr(rig.step(), "find", None) is finds


def test_a_join_whose_answer_was_lost_is_repeated() -> None:
    rig = ConsumerRig()
    rig.polls()
    rig.asks()
    rig.machine.on_failure(ConnectionLost("gone"), rig.now)
    rig.now += 1.0
    assert rig.beats(1, {}).member_epoch == 0


def test_a_changed_subscription_is_told_at_once() -> None:
    """Partitions of topics that were unsubscribed are given up in the next poll."""
    rig = ConsumerRig()
    rig.settle(0)
    rig.machine.subscribe(frozenset("u"), rig.now)
    request = rig.beats(2, {topic_id("u"): [4]})
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (["u"], -1)
    rig.names([(topic_id("u"), "u")])
    assert rig.polls() == [
        Revoked(topic_partitions(0)),
        Assigned(topic_partitions(4, topic="u")),
    ]


def test_a_regular_expression_is_sent_and_removed() -> None:
    """The empty expression removes it. A request that never had one leaves the field out, because
    version 0 lacks it."""
    rig = ConsumerRig("", "t.*")
    rig.polls()
    request = rig.beats(1, {T: [0]})
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "t.*")
    rig.names([(T, "tea")])
    assert rig.polls() == [Assigned(topic_partitions(0, topic="tea"))]
    rig.beats()
    rig.machine.subscribe(frozenset(["tea"]), rig.now)
    request = rig.beats(2)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["tea"], "")
    assert rig.polls() == []
    rig.rests()
    assert rig.beats(2).subscribed_topic_regex is None


def test_a_topic_without_a_name_is_asked_for_again() -> None:
    """Meanwhile the rest of the assignment is read, and only that is acknowledged."""
    rig = ConsumerRig("tu")
    rig.polls()
    rig.beats(1, {T: [0], topic_id("u"): [0]})
    rig.names([(T, "t")])
    assert rig.polls() == [Assigned(topic_partitions(0))]
    assert owned_in(rig.beats()) == {T: [0]}
    assert rig.waits() == 1.0
    rig.now += 1.0
    assert rig.is_asked_for_names() == [topic_id("u")]
    rig.names([(topic_id("u"), "u")])
    assert rig.polls() == [Assigned(topic_partitions(0, topic="u"))]


def test_a_topic_that_was_created_again_is_another_one() -> None:
    """Its partitions are revoked and assigned, though their names are the same."""
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    rig.beats(2, {topic_id("t", 2): [0]})
    rig.names([(topic_id("t", 2), "t")])
    assert rig.polls() == [Revoked(topic_partitions(0)), Assigned(topic_partitions(0))]
    assert owned_in(rig.beats(2)) == {topic_id("t", 2): [0]}


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_a_member_whose_consumer_does_not_poll_leaves(instance: str | None, epoch: int) -> None:
    """The next poll tells of the loss and joins again."""
    rig = ConsumerRig(max_poll_interval_ms=4_000, group_instance_id=instance)
    rig.settle(0)
    rig.now += 4.0
    assert rig.beats(epoch).member_epoch == epoch
    assert rig.machine.generation == -1
    assert rig.polls() == [Lost(topic_partitions(0))]
    assert rig.asks().member_epoch == 0


@pytest.mark.parametrize(
    ("instance", "for_good", "epoch"),
    [(None, True, -1), ("i", True, -1), ("i", False, -2), (None, False, None)],
)
def test_leaving(instance: str | None, for_good: bool, epoch: int | None) -> None:
    """A static member that is closed keeps its place, unless it leaves for good."""
    rig = ConsumerRig(group_instance_id=instance)
    rig.settle(0)
    goodbye = rig.machine.leave("closed", for_good=for_good)
    assert (goodbye and goodbye.member_epoch) == epoch
    assert (rig.machine.owned, rig.waits()) == ({}, None)


def test_a_member_that_never_joined_has_nothing_to_leave() -> None:
    rig = ConsumerRig()
    rig.polls()
    assert rig.machine.leave("closed", for_good=True) is None


def test_a_member_that_may_have_joined_leaves() -> None:
    rig = ConsumerRig()
    rig.polls()
    rig.asks()
    assert rig.machine.leave("closed", for_good=True) is not None


def test_a_fenced_static_member_stops_for_good() -> None:
    rig = ConsumerRig(group_instance_id="i")
    rig.settle(0)
    rig.rests()
    rig.beats(code=ErrorCode.FENCED_INSTANCE_ID)
    assert rig.waits() is None
    news = rig.machine.poll(rig.now)
    assert news == Lost(topic_partitions(0))
    rig.machine.told(news, rig.now)
    for _ in range(2):
        failed = rig.machine.poll(rig.now)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, Fenced)
        rig.machine.told(failed, rig.now)


def test_a_static_member_waits_for_the_end_of_its_former_session() -> None:
    """After a minute another member must be using the instance id, which is an error."""
    rig = ConsumerRig(group_instance_id="i")
    rig.polls()
    began = rig.now
    while rig.now < began + 60.0:
        rig.beats(code=ErrorCode.UNRELEASED_INSTANCE_ID)
        assert rig.polls() == []
        pause = rig.waits()
        assert pause is not None
        rig.now += pause
    rig.beats(code=ErrorCode.UNRELEASED_INSTANCE_ID)
    (failed,) = rig.polls()
    assert isinstance(failed, Failed)
    assert "group_instance_id 'i'" in str(failed.error)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ],
)
def test_an_error_that_stays_is_raised_by_a_poll_and_tried_again(code: ErrorCode) -> None:
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    rig.beats(code=code)
    lost, failed = rig.polls()
    assert lost == Lost(topic_partitions(0))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BrokerError)
    assert failed.error.code == code
    assert rig.polls() == []
    assert rig.asks().member_epoch == 0


def test_a_topic_that_may_not_be_read_does_not_end_the_membership() -> None:
    rig = ConsumerRig()
    rig.settle(0)
    rig.rests()
    rig.beats(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    (failed,) = rig.polls()
    assert isinstance(failed, Failed)
    assert list(rig.machine.owned) == list(topic_partitions(0))
    rig.now += 1.0
    assert rig.asks().member_epoch == 1


@pytest.mark.parametrize("answered", [True, False])
def test_a_broker_without_the_protocol_is_an_error_that_says_what_to_do(answered: bool) -> None:
    """Kafka answers UNSUPPORTED_VERSION if the feature is off. Older brokers lack the API."""
    rig = ConsumerRig()
    rig.polls()
    if answered:
        rig.beats(code=ErrorCode.UNSUPPORTED_VERSION)
    else:
        rig.asks()
        rig.machine.on_failure(ApiNotServed("no version of ConsumerGroupHeartbeat"), rig.now)
    (failed,) = rig.polls()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ClientError)
    assert "group_protocol='classic'" in str(failed.error)


def test_commits_are_signed_anew_only_for_what_was_kept() -> None:
    """The epoch grows with every change of the group. It proves nothing about partitions that were
    given up and came back."""
    rig = ConsumerRig()
    rig.settle(0, 1)
    rig.rests()
    rig.beats(2, {T: [0]})
    rig.polls()
    rig.beats(3, {T: [0, 1]})
    rig.polls()
    kept, returned = topic_partitions(0, 1)
    assert rig.machine.held_since(kept, 1)
    assert not rig.machine.held_since(returned, 2)
    assert rig.machine.held_since(returned, 3)


def test_a_transaction_uses_the_new_epoch_if_nothing_was_given_up() -> None:
    """After a loss it uses the old one, which the coordinator refuses."""
    rig = ConsumerRig()
    rig.settle(0, 1)
    read_as = rig.machine.identity
    rig.beats_later(4)
    assert rig.machine.renewed(read_as) == Identity(4, ME)
    read_as = rig.machine.identity
    rig.rests()
    rig.beats(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert rig.machine.renewed(read_as) == read_as
    rig.now += 1.0
    rig.polls()
    rig.beats(9, {T: [0, 1]})
    rig.polls()
    assert rig.machine.renewed(read_as) == read_as
