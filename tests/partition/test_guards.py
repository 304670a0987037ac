"""The guard that the first batch of a transaction needs: its transaction is verified."""

from __future__ import annotations

import pytest

from penstock.partition.guards import Guards, Verification
from penstock.partition.producer_errors import InvalidTransactionState, OutOfOrderSequence
from penstock.partition.producers import ProducerStates
from penstock.records.batch import BatchHeader
from penstock.records.record import (
    ControlType,
)

from .test_producers import batch, marker, transactional


def verified(states: ProducerStates, header: BatchHeader) -> Verification:
    guard = states.begin_verification(header, 0)
    assert guard is not None
    return Verification(guard, numbers_from_zero=True)


def test_the_first_batch_of_a_transaction_needs_a_guard() -> None:
    """Without one it is refused. Once the transaction is open, no more verification is needed."""
    states = ProducerStates()
    first = transactional(0, 0)
    with pytest.raises(InvalidTransactionState, match="not verified"):
        states.check(first, verification=Verification())
    proof = verified(states, first)
    assert states.check(first, verification=proof) is None
    states.update(first)
    second = transactional(1, 1)
    assert states.begin_verification(second, 0) is None
    assert states.check(second, verification=Verification()) is None


def test_a_marker_invalidates_the_guard() -> None:
    """The transaction ended while the coordinator's confirmation was on its way. The batch comes
    too late and would leave a hanging transaction. This holds also if the marker had nothing to
    end."""
    states = ProducerStates()
    late = transactional(1, 0)
    proof = verified(states, late)
    states.on_control(marker(0), ControlType.COMMIT, 0)
    with pytest.raises(InvalidTransactionState):
        states.check(late, verification=proof)
    again = verified(states, late)
    assert again.guard != proof.guard
    assert states.check(late, verification=again) is None


def test_batches_of_one_producer_share_a_guard_and_keep_their_order() -> None:
    """While sequence 0 is being verified, sequence 1 cannot be accepted before it."""
    states = ProducerStates()
    second = transactional(0, 1)
    proof = verified(states, second)
    first = transactional(0, 0)
    assert verified(states, first) == proof
    with pytest.raises(OutOfOrderSequence):
        states.check(second, verification=proof._replace(numbers_from_zero=False))
    assert states.check(first, verification=proof) is None
    states.update(first)
    assert states.check(transactional(1, 1), verification=Verification()) is None


def test_a_newer_epoch_resets_the_order() -> None:
    """Its sequences start at 0 again, and the older epoch does not count any more."""
    guards = Guards()
    number = guards.begin(7, 1, 5, 0)
    assert guards.begin(7, 2, 3, 0) == number
    assert guards.lowest_sequence(7, 2) == 3
    assert guards.lowest_sequence(7, 1) is None
    guards.begin(7, 1, 0, 0)
    assert guards.lowest_sequence(7, 2) == 3


def test_unused_guards_expire() -> None:
    """They expire like idle producers, and are cleared when the partition is truncated."""
    guards = Guards()
    number = guards.begin(7, 0, 0, 100)
    guards.expire(199, 100)
    assert guards.holds(7, number)
    guards.expire(200, 100)
    assert not guards.holds(7, number)
    guards.begin(7, 0, 0, 100)
    guards.clear()
    assert len(guards) == 0


def test_a_new_epoch_cannot_continue_the_transaction_of_an_older_one() -> None:
    """The marker of the older epoch is still to come. It must not end the newer epoch's data."""
    states = ProducerStates()
    states.update(transactional(0, 0, epoch=1))
    newer = transactional(1, 0, epoch=2)
    proof = verified(states, newer)
    with pytest.raises(InvalidTransactionState, match="end that one first"):
        states.check(newer, verification=proof)
    states.on_control(marker(1, epoch=2), ControlType.ABORT, 0)
    proof = verified(states, newer)
    assert states.check(newer, verification=proof) is None


def test_an_older_epoch_is_not_verified() -> None:
    """It is fenced here, whatever the coordinator says."""
    states = ProducerStates()
    states.update(batch(0, 0, epoch=3))
    assert states.begin_verification(transactional(1, 0, epoch=2), 0) is None


def test_a_transaction_with_a_new_epoch_begins_at_sequence_zero() -> None:
    """An unknown producer that starts at another sequence has lost a batch. In the older protocol
    sequences continue from transaction to transaction, so it is accepted there."""
    states = ProducerStates()
    header = transactional(0, 4)
    proof = verified(states, header)
    with pytest.raises(OutOfOrderSequence, match="must begin with sequence 0"):
        states.check(header, verification=proof)
    assert states.check(header, verification=proof._replace(numbers_from_zero=False)) is None
    assert states.check(header) is None


def test_retries_need_no_guard() -> None:
    """They are recognized, also after the transaction has ended."""
    states = ProducerStates()
    header = transactional(0, 0)
    states.update(header)
    states.on_control(marker(1), ControlType.COMMIT, 0)
    found = states.check(header, verification=Verification())
    assert found is not None
    assert found.base_offset == 0
