"""Tests the accumulator and its lanes, in the simulated world of `model` and alone."""

from __future__ import annotations

import gc
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.producing.model import LEADER, World
from penstock.client.errors import RecordTooLarge
from penstock.client.producing.accumulator_config import AccumulatorConfig
from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import Identity
from penstock.records.batch import NO_PRODUCER_ID
from penstock.records.record import Record as PackedRecord
from penstock.records.record import build_batch
from penstock.wire.errors import ErrorCode

CONFIG = AccumulatorConfig(
    batch_size=400,
    linger_s=0.01,
    buffer_memory=60_000,
    max_request_size=2_000,
    delivery_timeout_s=30.0,
)


def world_of(**changes: object) -> World:
    return World(Random(1), replace(CONFIG, **changes), partitions=1)  # type: ignore[arg-type]


def identified(**changes: object) -> World:
    world = world_of(**changes)
    world.accumulator.identify(Identity(7, 0))
    return world


def confirmed(**changes: object) -> World:
    """Returns a world whose broker knows the producer, because one record was written."""
    world = identified(**changes)
    world.send()
    world.finish()
    world.requests_made.clear()
    return world


@settings(deadline=None, max_examples=100)
@given(
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([400, 1 << 30]),
)
def test_nothing_is_lost_duplicated_or_reordered_under_faults(
    random: Random, takes_any_first: bool, expires: bool, linger_s: float, too_large: int
) -> None:
    """Requests are lost before or after they are processed, refused temporarily or for
    good, split, or timed out. Every acknowledged record is in the log once, at its
    offset, in the order of sending."""
    config = replace(
        CONFIG,
        linger_s=linger_s,
        batch_size=800,
        delivery_timeout_s=1.0 if expires else 1e6,
    )
    world = World(random, config)
    for partition in world.partitions.values():
        partition.takes_any_first = takes_any_first
        partition.batch_bytes_max = too_large
    for _ in range(random.randrange(20, 120)):
        step = random.random()
        if step < 0.45:
            for _ in range(random.randrange(1, 20)):
                world.send()
        elif step < 0.6:
            world.now += random.choice((0.001, 0.02, 0.2))
        elif step < 0.85 and world.requests:
            fate = random.choice(("written", "written", "written", "refused", "bad", "deposed"))
            world.answer_next(fate)
        elif step < 0.93 and world.requests:
            world.lose_connection(random.randrange(len(world.requests) + 1))
        world.pump()
    world.finish()
    world.check_log()


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False))
def test_without_idempotence_the_order_holds_but_duplicates_may_occur(random: Random) -> None:
    """Each partition has one batch in flight, so no batch overtakes another, whatever is lost."""
    world = World(random, replace(CONFIG, idempotent=False, linger_s=0.0), partitions=1)
    for _ in range(60):
        for _ in range(random.randrange(0, 15)):
            world.send()
        world.pump()
        if world.requests and random.random() < 0.6:
            world.answer_next(random.choice(("written", "refused")))
        elif world.requests:
            world.lose_connection(random.randrange(2))
        world.now += random.choice((0.0, 0.2))
    world.finish()
    values = world.partitions[world.topic_partitions[0]].values
    first_seen = list(dict.fromkeys(values))
    assert first_seen == [item.value for item in world.sent]
    assert all(item.error() is None for item in world.sent)


def test_a_batch_lingers_unless_it_is_full() -> None:
    world = confirmed()
    world.send()
    world.pump()
    assert not world.requests
    world.now += CONFIG.linger_s / 2
    world.pump()
    assert not world.requests
    world.now += CONFIG.linger_s / 2
    world.pump()
    assert [batch.count for batch in world.requests[0]] == [1]
    while not world.accumulator.has_filled:
        world.send()
    world.pump()
    assert len(world.requests) == 2
    assert world.requests[1][0].count > 1


def test_sent_batches_are_not_kept_while_others_linger() -> None:
    """A lane with a long linger does not keep the batches of other lanes in memory."""
    world = World(Random(1), replace(CONFIG, linger_s=1000.0), partitions=2)
    world.accumulator.identify(Identity(7, 0))
    world.send(topic_partition=world.topic_partitions[0])
    written = 0
    for _ in range(200):
        world.send(topic_partition=world.topic_partitions[1])
        world.pump()
        while world.requests:
            written += 1
            world.answer_next()
    world.requests_made.clear()
    assert written > 10
    alive = [item for item in gc.get_objects() if isinstance(item, Batch)]
    assert sum(batch.topic_partition is world.topic_partitions[1] for batch in alive) <= 1
    assert world.accumulator.next_at() == pytest.approx(CONFIG.delivery_timeout_s)


def test_next_at_is_the_earliest_timer() -> None:
    """First the end of the linger, then the deadline of the batch in flight."""
    world = identified()
    assert world.accumulator.next_at() is None
    world.send()
    assert world.accumulator.next_at() == pytest.approx(CONFIG.linger_s)
    world.now = CONFIG.linger_s
    world.pump()
    assert world.accumulator.next_at() == pytest.approx(CONFIG.delivery_timeout_s)


def test_batches_grow_while_the_brokers_are_slow() -> None:
    """A batch that is due is filled further until it is sent."""
    world = identified(linger_s=0.0, batch_size=10_000, idempotent=False)
    world.send()
    world.pump()
    for _ in range(50):
        world.send()
        world.pump()
    assert len(world.requests) == 1
    world.answer_next()
    world.pump()
    assert [batch.count for batch in world.requests[0]] == [50]


def test_hurry_makes_lingering_batches_ready() -> None:
    """A flush does this."""
    world = identified(linger_s=1000.0)
    world.send()
    world.pump()
    assert not world.requests
    world.accumulator.hurry()
    world.pump()
    assert len(world.requests) == 1


def test_requests_respect_max_request_size() -> None:
    """Batches of several partitions share a request up to this size."""
    world = World(Random(1), replace(CONFIG, max_request_size=1000), partitions=10)
    world.accumulator.identify(Identity(7, 0))
    for topic_partition in world.topic_partitions:
        for _ in range(10):
            world.send(topic_partition=topic_partition)
    world.accumulator.hurry()
    world.pump()
    for batches in world.requests:
        assert sum(batch.size for batch in batches) <= 1000
        assert len({batch.topic_partition for batch in batches}) == len(batches)
    assert len(world.requests[0]) > 1


def test_the_buffer_stays_within_its_memory() -> None:
    """Appending stops at the limit and works again once a batch is acknowledged."""
    world = identified(buffer_memory=5_000)
    while world.send():
        pass
    assert world.accumulator.buffered_bytes <= 5_000
    count = len(world.sent)
    assert count > 20
    world.accumulator.hurry()
    world.pump()
    assert not world.send()
    world.answer_next()
    assert world.send()
    world.finish()
    world.check_log()


def test_a_record_that_can_never_be_sent_is_refused_at_once() -> None:
    """It is larger than a request or than the whole buffer."""
    with pytest.raises(RecordTooLarge, match="max_request_size"):
        identified().send(size=2_000)
    with pytest.raises(RecordTooLarge, match="buffer_memory"):
        identified(buffer_memory=3_000, max_request_size=10_000).send(size=2_500)


def test_a_record_larger_than_a_batch_gets_its_own_batch() -> None:
    """`batch_size` limits batches, not records."""
    world = identified()
    world.send()
    world.send(size=1_000)
    world.send()
    world.finish()
    world.check_log()
    assert [batch.count for batches in world.requests_made for batch in batches] == [1, 1, 1]


def test_a_partition_has_at_most_five_batches_in_flight() -> None:
    """The broker recognizes duplicates only among the last five batches."""
    world = confirmed(linger_s=0.0, batch_size=0)
    world.in_flight_max = 100
    for _ in range(20):
        world.send()
    world.pump()
    assert len(world.requests) == 5
    assert [batches[0].sequence for batches in world.requests] == [1, 2, 3, 4, 5]


def test_until_the_broker_knows_the_producer_one_batch_is_in_flight() -> None:
    """The broker accepts any first sequence from an unknown producer: it could accept the second
    batch after it refused the first."""
    world = identified(linger_s=0.0, batch_size=0)
    world.partitions[world.topic_partitions[0]].takes_any_first = True
    for _ in range(5):
        world.send()
    world.pump()
    assert len(world.requests) == 1
    world.answer_next("refused")
    world.finish()
    world.check_log()
    assert len(world.partitions[world.topic_partitions[0]].values) == 5


def test_a_batch_that_is_too_large_is_split_and_later_ones_are_smaller() -> None:
    """Down to single records if necessary; the records keep their order and sequences."""
    world = identified(linger_s=0.0, batch_size=2_000, max_request_size=4_000)
    partition = world.partitions[world.topic_partitions[0]]
    partition.batch_bytes_max = 300
    for _ in range(40):
        world.send()
    world.pump()
    world.finish()
    world.check_log()
    assert world.meter.splits >= 3
    assert all(item.error() is None for item in world.sent)
    assert partition.producer == (7, 0)
    assert world.accumulator.batch_limit("topic") < 2_000
    assert world.accumulator.batch_limit("another") == 4_000


def test_a_single_record_that_is_too_large_for_the_topic_fails_alone() -> None:
    """The other records of its batch are written."""
    world = identified(linger_s=0.0, batch_size=2_000)
    world.partitions[world.topic_partitions[0]].batch_bytes_max = 300
    for size in (20, 20, 400, 20, 20):
        world.send(size=size)
    world.finish()
    world.check_log()
    errors = [item.error() for item in world.sent]
    assert isinstance(errors[2], RecordTooLarge)
    assert "max.message.bytes" in str(errors[2])
    assert [error is None for error in errors] == [True, True, False, True, True]


def test_sealed_batches_are_sent_after_earlier_records() -> None:
    """A table's batch closes the open one, so that the order holds between both ways to send."""
    world = confirmed(linger_s=1000.0)
    world.send()
    lane = world.lanes[world.topic_partitions[0]]
    data = build_batch([PackedRecord(n, 5, None, b"table") for n in range(3)])
    batch = world.accumulator.append_sealed(lane, data, 3, world.now)
    world.send()
    world.accumulator.hurry()
    world.pump()
    order = [(item.count, item.sequence) for batches in world.requests for item in batches]
    assert order == [(1, 1), (3, 2), (1, 5)]
    while world.requests:
        world.answer_next()
    assert batch.outcome.base_offset == 2
    assert world.accumulator.buffered_bytes == 0


def test_an_idempotent_producer_sends_nothing_without_a_producer_id() -> None:
    """Without idempotence, batches need no producer id."""
    world = world_of(linger_s=0.0)
    world.send()
    lanes = world.accumulator.ready(0.0)
    assert world.accumulator.wants_identity
    assert world.accumulator.drain(lanes, LEADER, 0.0) == []
    anonymous = world_of(linger_s=0.0, idempotent=False)
    anonymous.send()
    taken = anonymous.accumulator.drain(anonymous.accumulator.ready(0.0), LEADER, 0.0)
    assert [batch.producer_id for batch in taken] == [NO_PRODUCER_ID]


def test_another_producer_with_the_same_id_is_fatal() -> None:
    """INVALID_PRODUCER_EPOCH is fatal, because this producer's sequences are no longer valid."""
    world = identified(linger_s=0.0)
    world.partitions[world.topic_partitions[0]].producer = (7, 3)
    world.send()
    world.pump()
    world.answer_next()
    assert world.fatal is not None
    assert ErrorCode.INVALID_PRODUCER_EPOCH.message in str(world.fatal)


def test_fail_all_removes_every_batch() -> None:
    """A producer does this when it closes."""
    world = identified(linger_s=0.0, batch_size=0)
    for _ in range(10):
        world.send()
    world.pump()
    assert len(world.accumulator.fail_all()) == 10
    world.lose_connection(0)
    assert world.accumulator.buffered_bytes == 0
    world.pump()
    assert not world.requests
