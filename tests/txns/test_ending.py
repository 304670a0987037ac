"""EndTxn: what is decided, what is repeated, what comes too late; and timeouts."""

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
def test_the_response_waits_for_the_decision_but_not_for_the_markers(commit: bool) -> None:
    """Once the decision is in the log it is final. The markers follow."""
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


def test_each_transaction_has_its_own_epoch() -> None:
    """With transaction.version 2 the response contains the epoch of the next transaction."""
    world = World()
    producer = opened(world)
    for epoch in range(1, 5):
        after = world.end("a", producer, commit=epoch % 2 == 0)
        assert after == Producer(1000, epoch)
        producer = after
        assert world.add("a", producer, "t-0", version=5) is NONE


def test_before_transaction_version_2_the_epoch_does_not_change() -> None:
    """EndTxn up to 4, or a cluster that has not finalized version 2."""
    for world, version in ((World(), OLD), (World(TransactionConfig(transaction_version=1)), 5)):
        producer = opened(world)
        world.end("a", producer, commit=True, version=version)
        assert world.transaction("a").producer_epoch == 0
        assert world.add("a", producer, "t-0") is NONE


@pytest.mark.parametrize("moment", ["preparing", "complete", "failed over"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_gets_the_same_response(commit: bool, moment: str) -> None:
    """The first response was lost, so the producer names its previous epoch. The same outcome is
    confirmed, the other one is refused."""
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
def test_a_late_end_does_not_affect_the_next_transaction(commit: bool) -> None:
    """An EndTxn from a dead connection arrives while the next transaction is open. Its old epoch
    is refused."""
    world = World()
    producer = opened(world)
    after = world.end("a", producer, commit=True)
    assert isinstance(after, Producer)
    assert world.add("a", after, "t-0", version=5) is NONE
    assert world.end("a", producer, commit=commit) is FENCED
    assert world.transaction("a").state is State.ONGOING


def test_an_end_by_another_producer_is_refused() -> None:
    """As with additions. Clients before version 2 get INVALID_PRODUCER_EPOCH."""
    world = World()
    producer = opened(world)
    assert world.end("b", producer, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end("", producer, commit=True) is ErrorCode.INVALID_REQUEST
    assert world.end("a", Producer(3, 0), commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end("a", Producer(1000, 1), commit=True) is FENCED
    old = world.end("a", Producer(1000, 1), commit=True, version=1)
    assert old is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_empty_transaction_can_be_aborted_but_not_committed() -> None:
    """A producer that knows of no added partition may abort to be sure: its batches may still be
    on their way, and the new epoch fences them."""
    world = World()
    producer = world.started("a")
    assert world.end("a", producer, commit=True) is INVALID
    assert world.end("a", producer, commit=False) == Producer(1000, 1)
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.end("a", Producer(1000, 1), commit=True) is INVALID
    assert world.end("a", Producer(1000, 1), commit=False) == Producer(1000, 2)
    assert world.end("a", Producer(1000, 2), commit=False, version=OLD) == Producer(1000, 2)


def test_a_repeated_end_before_version_5_is_judged_by_the_state() -> None:
    """Up to EndTxn 4 there is no epoch that could tell the requests apart."""
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


def test_an_end_is_refused_while_another_change_is_being_written() -> None:
    """An addition, or the same end, whose record is not committed yet."""
    world = World()
    producer = opened(world)
    world.holds_log = True
    world.send_add("a", producer, ["t-9"])
    assert world.end("a", producer, commit=True) is CONCURRENT
    world.settle_one()
    world.send_end("a", producer, commit=True)
    assert world.end("a", producer, commit=True) is CONCURRENT


def test_a_refused_append_leaves_the_transaction_open() -> None:
    """The client retries, and then the transaction ends."""
    world = World()
    producer = opened(world)
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.end("a", producer, commit=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.transaction("a").state is State.ONGOING
    world.fails_log = None
    assert world.end("a", producer, commit=True) == Producer(1000, 1)


def test_ending_at_the_last_epoch_gives_a_new_producer_id() -> None:
    """Markers carry the old id. The response, and the state once they are written, have the new
    one. A retry gets the same response before and after."""
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


def test_without_a_new_producer_id_the_transaction_stays_open() -> None:
    """The client may send the end again."""
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
    """The timeout counts from its first partition. The abort raises the epoch, so that later
    batches of its producer are refused everywhere."""
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
def test_a_producer_can_continue_after_its_transaction_timed_out(failed_over: bool) -> None:
    """A commit is refused as abortable. The abort returns the new epoch, and InitProducerId does
    too."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.advance(1000)
    if failed_over:
        world.fail_over()
    assert world.end("a", producer, commit=True) is ABORTABLE
    assert world.end("a", producer, commit=False) == Producer(1000, 1)
    assert world.init("a", producer) == Producer(1000, 1)


def test_a_timeout_fences_older_clients() -> None:
    """They have no way to learn the new epoch."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.advance(1000)
    for version in (0, 2, OLD):
        code = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else FENCED
        assert world.end("a", producer, commit=False, version=version) is code


def test_a_transaction_that_ended_in_time_does_not_time_out() -> None:
    """Its timer is canceled, and a timer that still fires does nothing."""
    world = World()
    producer = opened(world, timeout_ms=1000)
    world.end("a", producer, commit=True)
    key = TimerKey(TimerKind.TIMEOUT, "a")
    assert key not in world.timers
    assert world.shard.on_timer(key, world.now) == []


def test_a_timeout_waits_for_changes_in_flight_and_for_the_log() -> None:
    """An end in flight takes precedence. An abort that the log refused is retried."""
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


def test_a_timeout_continues_after_a_failover() -> None:
    """The new coordinator waits for the rest of the time, by the wall clock."""
    world = World()
    opened(world, timeout_ms=1000)
    world.advance(600)
    world.fail_over()
    world.advance(399)
    assert world.transaction("a").state is State.ONGOING
    world.advance(1)
    assert world.transaction("a").state is State.COMPLETE_ABORT
