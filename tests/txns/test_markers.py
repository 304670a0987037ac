"""Markers reach every partition, whatever happens to leaders and coordinators."""

from __future__ import annotations

import pytest

from penstock.txns.effects import Marker, SendMarkers
from penstock.txns.transaction import Producer, State
from penstock.wire.errors import ErrorCode

from .world import NONE, World, at

LOST = ErrorCode.NOT_LEADER_OR_FOLLOWER


def decided(*, commit: bool = True, version: int = 5) -> World:
    """Returns a world with a decided transaction on three partitions whose markers are not
    written."""
    world = World(coordinator_epoch=4)
    producer = world.started("a")
    world.add("a", producer, "t-0", "t-1", "t-2")
    world.holds_markers = True
    world.end("a", producer, commit=commit, version=version)
    return world


def answer(world: World, sent: SendMarkers, **codes: ErrorCode) -> None:
    answers = {at(name.replace("_", "-")): code for name, code in codes.items()}
    world.carry_out(world.shard.on_markers("a", sent.marker, answers, world.now))


def test_the_contents_of_a_marker() -> None:
    """With the raised epoch and version 2, or in the older protocol with the producer's epoch."""
    topic_partitions = (at("t-0"), at("t-1"), at("t-2"))
    assert decided().sent == [SendMarkers("a", Marker(1000, 1, True, 4, 2), topic_partitions)]
    older = decided(commit=False, version=3)
    assert older.sent == [SendMarkers("a", Marker(1000, 0, False, 4, 0), topic_partitions)]


def test_a_transaction_is_complete_when_all_markers_are_written() -> None:
    """Responses come in any order and any number."""
    world = decided()
    (sent,) = world.sent
    answer(world, sent, t_1=NONE)
    answer(world, sent, t_0=NONE)
    assert world.transaction("a").state is State.PREPARE_COMMIT
    answer(world, sent, t_2=NONE)
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    assert not world.transaction("a").partitions
    world.shard.verify()


@pytest.mark.parametrize(
    "code",
    [
        LOST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_marker_that_was_not_written_is_sent_again(code: ErrorCode) -> None:
    """After a delay, and only to the partitions that lack it."""
    world = decided()
    (sent,) = world.sent
    world.sent.clear()
    answer(world, sent, t_0=NONE, t_1=code, t_2=NONE)
    world.shard.verify()
    assert not world.sent
    world.advance(world.config.retry_ms)
    assert [again.partitions for again in world.sent] == [(at("t-1"),)]
    assert world.transaction("a").state is State.PREPARE_COMMIT
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT


def test_a_slow_response_does_not_delay_the_retry_of_another_partition() -> None:
    """Two failures share a timer. A partition that has not answered yet is not asked again."""
    world = decided()
    (sent,) = world.sent
    world.sent.clear()
    answer(world, sent, t_0=LOST)
    answer(world, sent, t_1=LOST)
    world.advance(world.config.retry_ms)
    assert [again.partitions for again in world.sent] == [(at("t-0"), at("t-1"))]
    answer(world, sent, t_2=NONE)
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
)
def test_a_partition_that_cannot_have_the_transaction_counts_as_done(code: ErrorCode) -> None:
    """It has a newer epoch, or its format never supported transactions."""
    world = decided()
    (sent,) = world.sent
    answer(world, sent, t_0=NONE, t_1=code, t_2=NONE)
    assert world.transaction("a").state is State.COMPLETE_COMMIT


def test_deleted_partitions_need_no_marker() -> None:
    """Whether their marker was in flight or waiting for a retry."""
    world = decided()
    (sent,) = world.sent
    answer(world, sent, t_0=NONE, t_1=LOST)
    world.carry_out(world.shard.on_partitions_gone([at("t-1"), at("t-2")], world.now))
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    answer(world, sent, t_2=NONE)
    world.advance(world.config.retry_ms)
    world.shard.verify()


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_continues(commit: bool) -> None:
    """It finds the decision in the log and sends all markers again, with its own coordinator
    epoch."""
    world = decided(commit=commit)
    (sent,) = world.sent
    answer(world, sent, t_0=NONE)
    world.fail_over()
    (again,) = world.sent
    assert again.marker == Marker(1000, 1, commit, 5, 2)
    assert len(again.partitions) == 3
    answer(world, sent, t_0=NONE, t_1=NONE, t_2=NONE)
    assert world.transaction("a").state.is_preparing
    world.mark_one()
    assert world.transaction("a").state.is_complete


def test_a_late_response_does_not_complete_the_next_transaction() -> None:
    world = decided()
    (before,) = world.sent
    world.sent.clear()
    answer(world, before, t_0=NONE, t_1=NONE, t_2=NONE)
    producer = Producer(1000, 1)
    world.add("a", producer, "t-0", version=5)
    world.end("a", producer, commit=False)
    answer(world, before, t_0=NONE)
    assert world.transaction("a").state is State.PREPARE_ABORT


def test_the_append_of_the_completing_record_is_retried() -> None:
    """While the log refuses it, other requests for the transactional id get
    CONCURRENT_TRANSACTIONS."""
    world = decided()
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    world.mark_one()
    world.shard.verify()
    world.advance(1000)
    assert world.transaction("a").state is State.PREPARE_COMMIT
    assert world.init("a") is ErrorCode.CONCURRENT_TRANSACTIONS
    world.fails_log = None
    world.advance(world.config.retry_ms)
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    assert world.init("a") == Producer(1000, 2)
