"""An addition that comes while the transaction before is being ended waits for it, with an end."""

from __future__ import annotations

import pytest

from penstock.txns.effects import Token
from penstock.txns.transaction import Producer, State
from penstock.wire.errors import ErrorCode

from .world import NONE, OFFSETS, World, at

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
AFTER = Producer(1000, 1)


def ending() -> World:
    """A transaction that is decided, its markers under way; additions wait."""
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


def test_it_goes_on_when_the_markers_are_written() -> None:
    """In one batch with the record that completes the transaction before."""
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


def test_offsets_wait_as_partitions_do() -> None:
    """AddOffsetsToTxn, and the transaction has the partition of the offsets then."""
    world = ending()
    token = world.send_add_offsets("a", AFTER)
    assert token not in world.replies
    world.mark_one()
    assert world.transaction("a").partitions == {OFFSETS}
    assert token in world.replies


def test_it_may_come_while_the_last_record_is_written() -> None:
    """The record that completes the transaction is on its way to the log: the next one follows."""
    world = ending()
    world.holds_log = True
    world.mark_one()
    token = waiting(world, "t-0")
    world.holds_log = False
    world.settle_one()
    assert world.added(token) == {at("t-0"): NONE}
    assert world.transaction("a").state is State.ONGOING
    world.shard.verify()


def test_the_transaction_it_begins_has_its_timeout() -> None:
    """It is aborted like any other when nobody ends it."""
    world = ending()
    waiting(world, "t-0")
    world.holds_markers = False
    world.mark_one()
    world.advance(60_000)
    assert world.transaction("a").state is State.COMPLETE_ABORT


def test_patience_ends() -> None:
    """A leader that does not answer for its marker: who waits is sent to ask again."""
    world = ending()
    token = waiting(world, "t-0")
    world.advance(world.config.ending_patience_ms - 1)
    assert token not in world.replies
    world.advance(1)
    assert world.added(token) == {at("t-0"): CONCURRENT}
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    world.shard.verify()


def test_a_marker_that_must_be_sent_again_is_not_waited_for() -> None:
    """Neither by who waits already nor by who comes now."""
    world = ending()
    token = waiting(world, "t-0")
    world.answers_markers = lambda where: ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.mark_one()
    assert world.added(token) == {at("t-0"): CONCURRENT}
    assert world.add("a", AFTER, "t-0", version=5) is CONCURRENT
    world.shard.verify()


def test_a_log_that_refuses_completes_nothing_and_adds_nothing() -> None:
    """Both records are in one batch: who waits is told to ask again, and may."""
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


def test_who_waits_is_sent_to_the_next_coordinator() -> None:
    """The shard goes away: every token is answered."""
    world = ending()
    token = waiting(world, "t-0")
    world.carry_out(world.shard.unload())
    assert world.added(token) == {at("t-0"): ErrorCode.NOT_COORDINATOR}
    assert not world.timers


def test_a_crash_between_leaves_what_the_batch_says() -> None:
    """The next coordinator finds the transaction open, and has no marker of the last to send."""
    world = ending()
    waiting(world, "t-0")
    world.mark_one()
    world.fail_over()
    assert world.transaction("a").state is State.ONGOING
    assert not world.sent
    world.shard.verify()


@pytest.mark.parametrize("producer", [Producer(1000, 0), Producer(1000, 7), Producer(5, 0)])
def test_only_the_one_who_goes_on_waits(producer: Producer) -> None:
    """A late request of the transaction before, and a stranger's, are refused at once."""
    world = ending()
    assert world.add("a", producer, "t-0", version=5) not in (NONE, CONCURRENT)
