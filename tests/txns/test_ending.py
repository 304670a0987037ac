"""EndTxn: what is decided, what is said again, what comes too late; and timeouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.txns.config import TransactionConfig
from penstock.txns.effects import TimerKey, TimerKind
from penstock.txns.formats import transaction_record
from penstock.txns.transaction import EPOCH_LAST_USABLE, EPOCH_MAX, Producer, State
from penstock.wire.errors import ErrorCode

from .world import NONE, World

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
INVALID = ErrorCode.INVALID_TXN_STATE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
OLD = 4


def opened(world: World, timeout_ms: int = 60_000) -> Producer:
    producer = world.started("a", timeout_ms=timeout_ms)
    assert world.add("a", producer, "t-0", "t-1") is NONE
    return producer


@pytest.mark.parametrize("commit", [True, False])
def test_the_answer_waits_for_the_decision_not_for_the_markers(commit: bool) -> None:
    """Once the decision is in the log it will be so; the markers follow."""
    world = World()
    producer = opened(world)
    world.holds_log = world.holds_markers = True
    token = world.send_end("a", producer, commit=commit)
    assert token not in world.replies
    world.settle_one()
    assert world.ended(token) == Producer(1000, 1)
    assert world.transaction("a").state.is_preparing
    assert world.transaction("a").state.is_committed == commit
    world.holds_log = False
    world.mark_one()
    assert world.transaction("a").state.is_complete
    assert world.transaction("a").state.is_committed == commit


def test_each_transaction_has_an_epoch_of_its_own() -> None:
    """transaction.version 2: the answer carries the epoch of the next."""
    world = World()
    producer = opened(world)
    for epoch in range(1, 5):
        after = world.end("a", producer, commit=epoch % 2 == 0)
        assert after == Producer(1000, epoch)
        producer = after
        assert world.add("a", producer, "t-0", version=5) is NONE


def test_before_version_two_the_epoch_stays() -> None:
    """EndTxn up to 4, or a cluster that has not finalized version 2."""
    for world, version in ((World(), OLD), (World(TransactionConfig(transaction_version=1)), 5)):
        producer = opened(world)
        world.end("a", producer, commit=True, version=version)
        assert world.transaction("a").producer_epoch == 0
        assert world.add("a", producer, "t-0") is NONE


@pytest.mark.parametrize("moment", ["preparing", "complete", "failed over"])
@pytest.mark.parametrize("commit", [True, False])
def test_an_answer_that_was_lost_is_given_again(commit: bool, moment: str) -> None:
    """With the epoch before, the same result is done, and the other one is not possible."""
    world = World()
    producer = opened(world)
    world.holds_markers = moment == "preparing"
    world.end("a", producer, commit=commit)
    if moment == "failed over":
        world.fail_over()
    written = len(world.log)
    assert world.end("a", producer, commit=commit) == Producer(1000, 1)
    assert world.end("a", producer, commit=not commit) is (INVALID if commit else ABORTABLE)
    assert len(world.log) == written


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_does_not_touch_the_next_transaction(commit: bool) -> None:
    """An EndTxn on a dead connection arrives when the next transaction is open: refused by its
    epoch."""
    world = World()
    producer = opened(world)
    after = world.end("a", producer, commit=True)
    assert isinstance(after, Producer)
    assert world.add("a", after, "t-0", version=5) is NONE
    assert world.end("a", producer, commit=commit) is FENCED
    assert world.transaction("a").state is State.ONGOING


def test_strangers_are_refused() -> None:
    """As with additions; clients before version 2 hear of an invalid epoch."""
    world = World()
    producer = opened(world)
    assert world.end("b", producer, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end("", producer, commit=True) is ErrorCode.INVALID_REQUEST
    assert world.end("a", Producer(3, 0), commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end("a", Producer(1000, 1), commit=True) is FENCED
    old = world.end("a", Producer(1000, 1), commit=True, version=1)
    assert old is ErrorCode.INVALID_PRODUCER_EPOCH


def test_ending_nothing() -> None:
    """A producer that added no partition, as far as it knows, may abort to be sure: what it sent
    may be on its way still, and is fenced so. It cannot commit."""
    world = World()
    producer = world.started("a")
    assert world.end("a", producer, commit=True) is INVALID
    assert world.end("a", producer, commit=False) == Producer(1000, 1)
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.end("a", Producer(1000, 1), commit=True) is INVALID
    assert world.end("a", Producer(1000, 1), commit=False) == Producer(1000, 2)
    assert world.end("a", Producer(1000, 2), commit=False, version=OLD) == Producer(1000, 2)


def test_the_older_way_of_saying_it_again() -> None:
    """Up to EndTxn 4 the state alone tells."""
    world = World()
    producer = world.started("a")
    assert world.end("a", producer, commit=False, version=OLD) is INVALID
    world.add("a", producer, "t-0")
    world.holds_markers = True
    assert world.end("a", producer, commit=True, version=OLD) == producer
    assert world.end("a", producer, commit=True, version=OLD) == producer
    assert world.end("a", producer, commit=False, version=OLD) is INVALID
    world.mark_one()
    assert world.end("a", producer, commit=True, version=OLD) == producer
    assert world.end("a", producer, commit=False, version=OLD) is INVALID


def test_while_something_is_under_way_another_end_waits() -> None:
    """An addition, or the same end, whose record is on its way."""
    world = World()
    producer = opened(world)
    world.holds_log = True
    world.send_add("a", producer, ["t-9"])
    assert world.end("a", producer, commit=True) is CONCURRENT
    world.settle_one()
    world.send_end("a", producer, commit=True)
    assert world.end("a", producer, commit=True) is CONCURRENT


def test_a_log_that_says_no_leaves_the_transaction_open() -> None:
    """The client asks again and then it is done."""
    world = World()
    producer = opened(world)
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.end("a", producer, commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.transaction("a").state is State.ONGOING
    world.fails_log = None
    assert world.end("a", producer, commit=True) == Producer(1000, 1)


def test_the_last_epoch_ends_with_a_new_producer_id() -> None:
    """Markers go out for the old id; the answer, and the state when they are written, have the
    new one. The answer is given again, before and after."""
    world = World()
    world.started("a")
    used_up = Producer(1000, EPOCH_LAST_USABLE)
    raised = replace(world.transaction("a"), producer_epoch=EPOCH_LAST_USABLE)
    world.log.append(transaction_record(raised))
    world.fail_over()
    world.add("a", used_up, "t-0")
    world.holds_markers = True
    after = world.end("a", used_up, commit=True)
    assert after == Producer(1001, 0)
    marker = world.sent[0].marker
    assert (marker.producer_id, marker.producer_epoch) == (1000, EPOCH_MAX)
    assert world.end("a", used_up, commit=True) == after
    assert world.add("a", Producer(1001, 0), "t-0", version=5) is CONCURRENT
    assert world.init("a", Producer(1001, 0)) is CONCURRENT
    world.fail_over()
    world.mark_one()
    assert world.end("a", used_up, commit=True) == after
    world.fail_over()
    assert world.end("a", used_up, commit=True) == after
    assert world.add("a", Producer(1001, 0), "t-0", version=5) is NONE
    assert world.end("a", used_up, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_no_producer_id_to_be_had() -> None:
    """The transaction stays open, and the end may be asked for again."""
    world = World()
    world.started("a")
    raised = replace(world.transaction("a"), producer_epoch=EPOCH_LAST_USABLE)
    world.log.append(transaction_record(raised))
    world.fail_over()
    used_up = Producer(1000, EPOCH_LAST_USABLE)
    world.add("a", used_up, "t-0")
    world.holds_ids = True
    token = world.send_end("a", used_up, commit=True)
    assert world.end("a", used_up, commit=True) is CONCURRENT
    asked = world.allocating.pop()
    no = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.carry_out(world.shard.on_no_producer_ids(asked.allocation_id, no, world.now))
    assert world.ended(token) is no
    world.holds_ids = False
    assert world.end("a", used_up, commit=True) == Producer(1001, 0)


# Timeouts


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    """At its timeout, counted from its first partition; with a raised epoch, so that what its
    producer still sends is refused everywhere."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.advance(500)
    world.add("a", producer, "t-2")
    world.holds_markers = True
    world.advance(499)
    assert world.transaction("a").state is State.ONGOING
    world.advance(1)
    assert world.transaction("a").state is State.PREPARE_ABORT
    (sent,) = world.sent
    assert (sent.marker.producer_epoch, sent.marker.committed) == (1, False)
    assert len(sent.partitions) == 3
    world.shard.verify()


@pytest.mark.parametrize("failed_over", [False, True])
def test_its_producer_learns_of_it_and_goes_on(failed_over: bool) -> None:
    """A commit is refused as abortable, the abort gives the new epoch; or it asks for its id."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.advance(1000)
    if failed_over:
        world.fail_over()
    assert world.end("a", producer, commit=True) is ABORTABLE
    assert world.end("a", producer, commit=False) == Producer(1000, 1)
    assert world.init("a", producer) == Producer(1000, 1)


def test_older_clients_are_fenced_by_a_timeout() -> None:
    """They could not be told the new epoch."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.advance(1000)
    for version in (0, 2, OLD):
        code = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else FENCED
        assert world.end("a", producer, commit=False, version=version) is code


def test_a_transaction_that_ended_in_time_is_left_alone() -> None:
    """Its timer is gone, and one that fires all the same does nothing."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.end("a", producer, commit=True)
    key = TimerKey(TimerKind.TIMEOUT, "a")
    assert key not in world.timers
    assert world.shard.on_timer(key, world.now) == []


def test_a_timeout_waits_for_what_is_under_way_and_for_the_log() -> None:
    """An end on its way wins; an abort that the log refused is tried again."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.holds_log = True
    world.send_end("a", producer, commit=True)
    world.advance(1050)
    assert len(world.waiting) == 1
    world.holds_log = False
    world.settle_one()
    assert world.transaction("a").state is State.COMPLETE_COMMIT
    after = Producer(1000, 1)
    world.add("a", after, "t-0")
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    world.advance(5000)
    assert world.transaction("a").state is State.ONGOING
    world.fails_log = None
    world.advance(world.config.retry_ms)
    assert world.transaction("a").state is State.COMPLETE_ABORT


def test_timeouts_go_on_where_another_coordinator_left_off() -> None:
    """What is left of the time, by the wall clock."""
    world = World()
    opened(world, timeout_ms=1000)
    world.advance(600)
    world.fail_over()
    world.advance(399)
    assert world.transaction("a").state is State.ONGOING
    world.advance(1)
    assert world.transaction("a").state is State.COMPLETE_ABORT
