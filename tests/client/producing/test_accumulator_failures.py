"""Tests what the accumulator does with batches that failed: backoff, retries, sequences, epochs."""

from __future__ import annotations

import pytest

from client.producing.model import LEADER
from client.producing.test_accumulator import confirmed, identified, world_of
from penstock.client.errors import DeliveryTimedOut
from penstock.client.producing.sequences import EPOCH_MAX, Identity


def test_after_a_failure_nothing_is_sent_until_all_requests_are_answered() -> None:
    """Then all failed batches are sent again, in order, with the same sequences."""
    world = confirmed(linger_s=0.0, batch_size=0)
    for _ in range(5):
        world.send()
    world.pump()
    world.answer_next("refused")
    world.now += 10
    world.send()
    world.pump()
    assert len(world.requests) == 4
    while world.requests:
        world.answer_next()
    world.now += 10
    world.pump()
    assert [batches[0].sequence for batches in world.requests] == [1, 2, 3, 4, 5]
    assert [batches[0].attempts for batches in world.requests] == [2, 2, 2, 2, 2]
    world.finish()
    world.check_log()


def test_a_lane_waits_for_its_backoff() -> None:
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("refused")
    world.pump()
    assert not world.requests
    assert world.accumulator.next_at() == pytest.approx(0.1)
    world.now = 0.1
    world.pump()
    assert len(world.requests) == 1


def test_a_lane_waits_for_the_old_leader_before_it_uses_the_new_one() -> None:
    """Two brokers could answer in any order."""
    world = confirmed(linger_s=0.0, batch_size=0)
    world.send()
    world.pump()
    world.send()
    lanes = world.accumulator.ready(world.now)
    assert world.accumulator.drain(lanes, LEADER + 1, world.now) == []
    assert len(world.accumulator.drain(lanes, LEADER, world.now)) == 1


def test_retries_end_at_the_limit() -> None:
    """`retries` counts the attempts after the first."""
    world = identified(linger_s=0.0, attempts_max=3)
    world.send()
    for _ in range(3):
        world.now += 1
        world.pump()
        world.answer_next("refused")
    assert world.sent[0].settled
    assert world.sent[0].error() is not None
    assert world.accumulator.buffered_bytes == 0


def test_a_batch_fails_after_its_delivery_timeout_in_any_state() -> None:
    """Whether it is open, waiting or in flight."""
    world = identified(linger_s=1000.0, delivery_timeout_s=1.0)
    world.send()
    world.now = 1.0
    world.pump()
    error = world.sent[0].error()
    assert isinstance(error, DeliveryTimedOut)
    assert "delivery_timeout_ms=1000" in str(error)
    assert world.accumulator.buffered_bytes == 0


def test_memory_of_a_request_in_flight_is_freed_when_it_ends() -> None:
    """Even if the batch timed out, the request still refers to its bytes."""
    world = identified(linger_s=0.0, delivery_timeout_s=1.0)
    world.send()
    world.pump()
    world.now = 1.0
    world.pump()
    assert isinstance(world.sent[0].error(), DeliveryTimedOut)
    assert world.accumulator.buffered_bytes > 0
    world.lose_connection(0)
    assert world.accumulator.buffered_bytes == 0


def test_a_timed_out_batch_that_was_written_needs_no_new_epoch() -> None:
    """The answer to the next batch shows whether it was written; only a gap begins a new epoch."""
    for processed, epoch in ((1, 0), (0, 1)):
        world = identified(linger_s=0.0, delivery_timeout_s=1.0)
        world.send()
        world.pump()
        world.finish()
        world.send()
        world.pump()
        world.lose_connection(processed)
        world.now = 5.0
        world.pump()
        world.send()
        world.finish()
        world.check_log()
        assert isinstance(world.sent[1].error(), DeliveryTimedOut)
        assert world.lanes[world.topic_partitions[0]].numbering.epoch == epoch
        assert len(world.partitions[world.topic_partitions[0]].values) == 2 + processed


def test_a_refused_batch_returns_its_sequences() -> None:
    """If no later batch was numbered, no new epoch is needed."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    numbering = world.lanes[world.topic_partitions[0]].numbering
    assert (numbering.epoch, numbering.next_sequence) == (0, 1)


def test_sequences_that_may_have_been_written_are_not_reused() -> None:
    """A batch that may have been written keeps its sequences even if it is refused later. Otherwise
    the next batch would look like its duplicate and be lost."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.lose_connection(processed=1)
    world.now += 1
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    assert len(world.partitions[world.topic_partitions[0]].values) == 2


def test_a_deposed_leader_may_have_written_the_batch_it_refused() -> None:
    """The sequences of such a batch are not reused either."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("deposed")
    world.now += 1
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    assert len(world.partitions[world.topic_partitions[0]].values) == 2


def test_an_exhausted_epoch_requests_a_new_producer_id() -> None:
    """Epochs end at 32767. The lane then waits for another producer id and begins at sequence 0."""
    world = world_of(linger_s=0.0, batch_size=0)
    world.accumulator.identify(Identity(7, EPOCH_MAX))
    for _ in range(3):
        world.send()
    world.pump()
    world.answer_next()
    world.pump()
    world.answer_next("bad")
    world.answer_next()
    assert world.accumulator.wants_identity
    world.now += 1
    assert world.accumulator.drain(world.accumulator.ready(world.now), LEADER, world.now) == []
    world.accumulator.identify(Identity(8, 0))
    world.finish()
    assert world.partitions[world.topic_partitions[0]].producer == (8, 0)
    world.check_log()
