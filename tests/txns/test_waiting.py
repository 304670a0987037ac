"""An addition that arrives while the previous transaction is ending waits for it, for a limited
time."""

from __future__ import annotations

import pytest

from penstock.coordination.effects import Token
from penstock.txns.transaction import Producer, State
from penstock.wire.errors import ErrorCode

from .world import NONE, OFFSETS, World, at

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
AFTER = Producer(1000, 1)


def ending() -> World:
    """Returns a world with a decided transaction whose markers are in flight. Additions wait."""
    world = World()
    world.additions_wait = True
    producer = world.started("a")
    world.add("a", producer, "t-0", "t-1")
    world.holds_markers = True
    assert world.end("a", producer, commit=True) == AFTER
    return world


def waiting(world: World, *partitions: str) -> Token:
    token = world.send_add("a", AFTER, partitions, version=5)
    assert token not in world.replies
    world.shard.verify()
    return token


def test_an_addition_continues_when_the_markers_are_written() -> None:
    """It is written in one batch with the record that completes the previous transaction."""
    world = ending()
    first, second = waiting(world, "t-0"), waiting(world, "t-1", "s-0")
    world.mark_one()
    assert world.added(first) == {at("t-0"): NONE}
    assert world.added(second) == {at("s-0"): NONE, at("t-1"): NONE}
    assert len(world.batches[-1]) == 2
    now = world.transaction("a")
    assert now.state is State.ONGOING
    assert now.partitions == {at("t-0"), at("t-1"), at("s-0")}
    world.shard.verify()
    assert world.end("a", AFTER, commit=True) == Producer(1000, 2)


def test_offsets_wait_like_partitions() -> None:
    """AddOffsetsToTxn then adds the partition of the offsets."""
    world = ending()
    token = world.send_add_offsets("a", AFTER)
    assert token not in world.replies
    world.mark_one()
    assert world.transaction("a").partitions == {OFFSETS}
    assert token in world.replies


def test_an_addition_may_arrive_while_the_completing_record_is_written() -> None:
    """It is added as soon as that record is committed."""
    world = ending()
    world.holds_log = True
    world.mark_one()
    token = waiting(world, "t-0")
    world.holds_log = False
    world.settle_one()
    assert world.added(token) == {at("t-0"): NONE}
    assert world.transaction("a").state is State.ONGOING
    world.shard.verify()


def test_a_transaction_opened_by_a_waiting_addition_has_a_timeout() -> None:
    """It is aborted like any other if its producer does not end it."""
    world = ending()
    waiting(world, "t-0")
    world.holds_markers = False
    world.mark_one()
    world.advance(60_000)
    assert world.transaction("a").state is State.COMPLETE_ABORT


def test_an_addition_does_not_wait_longer_than_the_limit() -> None:
    """If a leader does not answer for its marker, the client gets CONCURRENT_TRANSACTIONS."""
    world = ending()
    token = waiting(world, "t-0")
    world.advance(world.config.ending_patience_ms - 1)
    assert token not in world.replies
    world.advance(1)
    assert world.added(token) == {at("t-0"): CONCURRENT}
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    world.shard.verify()


def test_no_addition_waits_for_a_marker_that_must_be_sent_again() -> None:
    """Neither one that waits already nor one that arrives now."""
    world = ending()
    token = waiting(world, "t-0")
    world.answers_markers = lambda where: ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.mark_one()
    assert world.added(token) == {at("t-0"): CONCURRENT}
    assert world.add("a", AFTER, "t-0", version=5) is CONCURRENT
    world.shard.verify()


def test_a_refused_append_neither_completes_nor_adds() -> None:
    """Both records are in one batch. The client must retry, and then succeeds."""
    world = ending()
    token = waiting(world, "t-0")
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    world.mark_one()
    assert world.added(token) == {at("t-0"): CONCURRENT}
    assert world.transaction("a").state is State.PREPARE_COMMIT
    world.fails_log = None
    world.advance(world.config.retry_ms)
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    assert world.add("a", AFTER, "t-0", version=5) is NONE


def test_unloading_sends_a_waiting_client_to_the_next_coordinator() -> None:
    """Every token gets a response."""
    world = ending()
    token = waiting(world, "t-0")
    world.carry_out(world.shard.unload())
    assert world.added(token) == {at("t-0"): ErrorCode.NOT_COORDINATOR}
    assert not world.timers


def test_a_crash_after_the_batch_leaves_the_next_transaction_open() -> None:
    """The next coordinator finds it open, and has no marker of the previous one to send."""
    world = ending()
    waiting(world, "t-0")
    world.mark_one()
    world.fail_over()
    assert world.transaction("a").state is State.ONGOING
    assert not world.sent
    world.shard.verify()


@pytest.mark.parametrize("producer", [Producer(1000, 0), Producer(1000, 7), Producer(5, 0)])
def test_only_the_producer_with_the_next_epoch_waits(producer: Producer) -> None:
    """A late request of the previous transaction, and one of another producer, are refused at
    once."""
    world = ending()
    assert world.add("a", producer, "t-0", version=5) not in (NONE, CONCURRENT)
