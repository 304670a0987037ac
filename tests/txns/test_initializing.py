"""InitProducerId: which producer gets a transactional id, and which one it fences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.txns.config import TransactionConfig
from penstock.txns.formats import transaction_record
from penstock.txns.transaction import EPOCH_LAST_USABLE, EPOCH_MAX, Producer, State
from penstock.wire.errors import ErrorCode

from .world import World

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED


def with_epoch(world: World, transactional_id: str, epoch: int, last_epoch: int = -1) -> None:
    """Makes the world look as if the producer id had used that many epochs."""
    transaction = replace(
        world.transaction(transactional_id), producer_epoch=epoch, last_producer_epoch=last_epoch
    )
    world.log.append(transaction_record(transaction))
    world.fail_over()


def test_a_new_id_gets_a_producer_id_at_epoch_zero() -> None:
    """Each transactional id has its own producer id."""
    world = World()
    assert world.init("a") == Producer(1000, 0)
    assert world.init("b") == Producer(1001, 0)
    assert world.transaction("a").state is State.EMPTY


def test_taking_over_an_id_raises_the_epoch_and_fences_the_previous_producer() -> None:
    """The previous producer can neither write, nor end, nor continue."""
    world = World()
    before = world.started("a")
    assert world.init("a") == Producer(1000, 1)
    assert world.add("a", before, "t-0") is FENCED
    assert world.end("a", before, commit=True) is FENCED
    assert world.init("a", before) is FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    """The maximum is transaction.max.timeout.ms. A refused request changes nothing."""
    world = World()
    assert world.init("a", timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not world.log


def test_malformed_requests_are_refused() -> None:
    """An empty id, or a producer id without an epoch."""
    world = World()
    assert world.init("") is ErrorCode.INVALID_REQUEST
    assert world.init("a", Producer(5, -1)) is ErrorCode.INVALID_REQUEST
    assert world.init("a", Producer(-1, 5)) is ErrorCode.INVALID_REQUEST


def test_an_open_transaction_is_aborted_first() -> None:
    """The client must retry, and gets an epoch above the one of the markers."""
    world = World()
    before = world.started("a")
    assert world.add("a", before, "t-0") is ErrorCode.NONE
    world.holds_markers = True
    assert world.init("a") is CONCURRENT
    (sent,) = world.sent
    assert (sent.marker.producer_epoch, sent.marker.committed) == (1, False)
    assert world.init("a") is CONCURRENT
    world.holds_markers = False
    world.mark_one()
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.init("a") == Producer(1000, 2)
    assert world.end("a", before, commit=False) is FENCED


def test_a_producer_continues_after_an_error() -> None:
    """It names its id and epoch and gets the next epoch. If that response is lost, a retry gets
    the same one, also from the next coordinator (KIP-360)."""
    world = World()
    first = world.started("a")
    second = Producer(first.producer_id, 1)
    assert world.init("a", first) == second
    assert world.init("a", first) == second
    world.fail_over()
    assert world.init("a", first) == second
    assert world.init("a", second) == Producer(first.producer_id, 2)
    assert world.init("a", first) is FENCED


def test_a_producer_that_was_replaced_cannot_continue() -> None:
    """Once another producer has taken over, the previous epoch is fenced, also by the next
    coordinator."""
    world = World()
    first = world.started("a")
    assert world.init("a") == Producer(1000, 1)
    assert world.init("a", first) is FENCED
    world.fail_over()
    assert world.init("a", first) is FENCED
    assert world.init("a", Producer(77, 0)) is FENCED


def test_a_producer_that_continues_aborts_its_open_transaction() -> None:
    """The transaction is aborted first, and then the producer gets its next epoch."""
    world = World()
    first = world.started("a")
    world.add("a", first, "t-0")
    assert world.init("a", first) is CONCURRENT
    assert world.transaction("a").state is State.COMPLETE_ABORT
    assert world.init("a", first) == Producer(1000, 1)


def test_a_late_request_does_not_abort_a_newer_transaction() -> None:
    """The same request arrives from a dead connection while the next transaction is open."""
    world = World()
    first = world.started("a")
    second = world.init("a", first)
    assert isinstance(second, Producer)
    world.add("a", second, "t-0")
    assert world.init("a", first) is FENCED
    assert world.transaction("a").state is State.ONGOING


def test_a_new_producer_id_follows_the_last_epoch() -> None:
    """32767 is reserved for fencing: no producer ever gets it."""
    world = World()
    world.started("a")
    with_epoch(world, "a", EPOCH_LAST_USABLE - 1)
    assert world.init("a") == Producer(1000, EPOCH_LAST_USABLE)
    assert world.init("a") == Producer(1001, 0)


def test_a_retry_gets_the_same_new_producer_id() -> None:
    """The response with the new id was lost. A request that names the old id gets the new one
    again."""
    world = World()
    world.started("a")
    with_epoch(world, "a", EPOCH_LAST_USABLE)
    used_up = Producer(1000, EPOCH_LAST_USABLE)
    assert world.init("a", used_up) == Producer(1001, 0)
    assert world.init("a", used_up) == Producer(1001, 0)
    world.fail_over()
    assert world.init("a", used_up) == Producer(1001, 0)


def test_fencing_at_the_last_epoch() -> None:
    """The abort uses 32767, and the producer that continues gets a new id."""
    world = World()
    world.started("a")
    with_epoch(world, "a", EPOCH_LAST_USABLE)
    last = Producer(1000, EPOCH_LAST_USABLE)
    assert world.add("a", last, "t-0") is ErrorCode.NONE
    assert world.init("a", last) is CONCURRENT
    assert world.transaction("a").producer_epoch == EPOCH_MAX
    assert world.add("a", Producer(1000, EPOCH_MAX), "t-0") is FENCED
    assert world.end("a", last, commit=False) is FENCED
    assert world.init("a", last) == Producer(1001, 0)


def test_a_request_is_refused_while_another_is_in_progress() -> None:
    """While a producer id is being allocated or its record written, other requests must retry."""
    world = World()
    world.holds_ids = True
    token = world.send_init("a")
    assert world.init("a") is CONCURRENT
    world.holds_ids, world.holds_log = False, True
    world.allocate_one()
    assert world.init("a") is CONCURRENT
    world.settle_one()
    assert token in world.replies
    world.holds_log = False
    assert world.init("a") == Producer(1000, 1)


def test_a_failed_allocation_or_append_leaves_nothing_behind() -> None:
    """The client gets a coordinator error, and retries."""
    world = World()
    world.holds_ids = True
    token = world.send_init("a")
    allocation = world.allocating.pop()
    effects = world.shard.on_no_producer_ids(
        allocation.allocation_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, world.now
    )
    world.carry_out(effects)
    assert world.replies[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE  # type: ignore[union-attr]
    world.holds_ids = False
    world.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.init("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.fails_log = None
    assert world.init("a") == Producer(1001, 0)
    world.shard.verify()


def test_older_clients_get_invalid_producer_epoch() -> None:
    """PRODUCER_FENCED exists from version 4 on."""
    world = World(TransactionConfig())
    world.started("a")
    assert world.init("a", Producer(9, 9), version=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.init("a", Producer(9, 9), version=4) is FENCED
