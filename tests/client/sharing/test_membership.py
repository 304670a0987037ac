"""Tests of the membership of a share group: which heartbeats are sent, and when."""

from __future__ import annotations

import pytest

from penstock.client.errors import ApiNotServed, BrokerError, ConnectionLost
from penstock.client.sharing.membership import ShareMembership, SharePart
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatResponse

TOPIC = bytes(15) + b"\x07"


def membership() -> ShareMembership:
    return ShareMembership(
        "g", "m", ["b", "a"], backoff_s=0.1, backoff_max_s=1.0, uniform=lambda: 0.5
    )


def answer(
    epoch: int = 1, partitions: list[int] | None = None, code: int = ErrorCode.NONE
) -> ShareGroupHeartbeatResponse:
    assignment = None
    if partitions is not None:
        part = ShareGroupHeartbeatResponse.TopicPartitions(TOPIC, partitions)
        assignment = ShareGroupHeartbeatResponse.Assignment([part])
    return ShareGroupHeartbeatResponse(
        error_code=code,
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval_ms=5_000,
        assignment=assignment,
    )


def test_a_member_joins_with_its_topics_and_then_sends_only_its_epoch() -> None:
    member = membership()
    joining = member.heartbeat()
    assert (joining.member_epoch, joining.subscribed_topic_names) == (0, ["a", "b"])
    member.answered(answer(3, [0, 2]), 10.0)
    alive = member.heartbeat()
    assert (alive.member_epoch, alive.subscribed_topic_names) == (3, None)
    assert member.assignment == {SharePart(TOPIC, 0), SharePart(TOPIC, 2)}
    assert member.due == 15.0


def test_a_member_without_partitions_asks_again_soon_but_not_forever_soon() -> None:
    member = membership()
    waits = []
    for _ in range(9):
        member.answered(answer(), 100.0)
        waits.append(member.due - 100.0)
    assert waits[0] == pytest.approx(0.1)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(5.0)


def test_an_answer_without_an_assignment_leaves_it_as_it_is() -> None:
    member = membership()
    member.answered(answer(1, [0]), 0.0)
    member.answered(answer(2), 5.0)
    assert member.assignment == {SharePart(TOPIC, 0)}
    member.answered(answer(3, []), 10.0)
    assert member.assignment == frozenset()


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_member_that_the_coordinator_does_not_know_joins_again(code: ErrorCode) -> None:
    """It keeps its id and its partitions: the leaders still have its locks."""
    member = membership()
    member.answered(answer(4, [0]), 0.0)
    member.answered(answer(code=code), 5.0)
    again = member.heartbeat()
    assert (again.member_epoch, again.member_id) == (0, "m")
    assert again.subscribed_topic_names == ["a", "b"]
    assert member.assignment
    assert member.error is None


def test_another_coordinator_is_looked_up_with_growing_waits() -> None:
    member = membership()
    waits = []
    for _ in range(6):
        member.answered(answer(code=ErrorCode.NOT_COORDINATOR), 0.0)
        waits.append(member.due)
    looks_up = member.find_coordinator
    assert looks_up
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    member.answered(answer(1, [0]), 0.0)
    looks_up = member.find_coordinator
    assert not looks_up
    member.failed(ConnectionLost("gone"), 0.0)
    assert member.find_coordinator
    assert member.due == pytest.approx(0.1)


def test_a_refusal_ends_the_membership() -> None:
    member = membership()
    member.answered(answer(1, [0]), 0.0)
    member.answered(answer(code=ErrorCode.GROUP_AUTHORIZATION_FAILED), 5.0)
    assert isinstance(member.error, BrokerError)
    assert "share group g" in str(member.error)
    assert member.assignment == frozenset()
    assert member.leave() is None


def test_a_broker_without_share_groups_is_named() -> None:
    member = membership()
    member.failed(ApiNotServed("no version"), 0.0)
    assert "Kafka 4.2" in str(member.error)


def test_only_a_member_leaves() -> None:
    member = membership()
    assert member.leave() is None
    member.answered(answer(1, [0]), 0.0)
    leaving = member.leave()
    assert leaving is not None
    assert leaving.member_epoch == -1
