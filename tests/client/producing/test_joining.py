"""Tests how partitions join a transaction: with their first batch, or by a request before it."""

from __future__ import annotations

from random import Random

import pytest

from client.producing.model import World
from penstock.client.producing.accumulator import JOINING_BYTES
from penstock.client.producing.accumulator_config import AccumulatorConfig
from penstock.client.producing.sequences import Identity

BATCH_SIZE = 4 * JOINING_BYTES
VALUE_BYTES = 200


def begun(*, by_request: bool = False) -> World:
    """Returns a world with three partitions and an open, empty transaction."""
    config = AccumulatorConfig(batch_size=BATCH_SIZE, linger_s=1000.0, transactional=True)
    world = World(Random(1), config, partitions=3)
    world.accumulator.joins_by_request = by_request
    world.accumulator.adopt(Identity(7, 0))
    world.accumulator.begin_transaction()
    return world


def fill_until_news(world: World) -> int:
    """Sends to the first partition until the accumulator reports a filled batch;
    returns the number of records."""
    world.accumulator.has_filled = False
    for number in range(1000):
        world.send(VALUE_BYTES, world.topic_partitions[0])
        if world.accumulator.has_filled:
            return number + 1
    raise AssertionError("no batch became full")


def topic_partitions(world: World) -> list[set[int]]:
    return [
        {batch.topic_partition.partition for batch in batches} for batches in world.requests_made
    ]


def test_the_first_batches_of_a_transaction_are_small() -> None:
    """When one partition has a few KiB, all partitions with records join in one request. Later
    records are gathered into full batches."""
    world = begun()
    world.send(VALUE_BYTES, world.topic_partitions[1])
    world.pump()
    assert not world.requests_made
    assert fill_until_news(world) <= JOINING_BYTES // VALUE_BYTES + 1
    world.pump()
    assert topic_partitions(world) == [{0, 1}]
    world.answer_next()
    assert fill_until_news(world) > 3 * JOINING_BYTES // VALUE_BYTES
    world.finish()
    world.check_log()


def test_each_transaction_begins_with_small_batches() -> None:
    """A transaction that stays small is sent at its end, in one batch per partition."""
    world = begun()
    for _ in range(3):
        fill_until_news(world)
        world.finish()
        world.accumulator.begin_transaction()
    world.requests_made.clear()
    for topic_partition in world.topic_partitions:
        world.send(VALUE_BYTES, topic_partition)
    world.finish()
    assert topic_partitions(world) == [{0, 1, 2}]
    world.check_log()


def test_nothing_is_sent_to_a_partition_that_has_not_joined() -> None:
    """Each partition that wants to join is reported once. Partitions that have
    joined send, the others wait."""
    world = begun(by_request=True)
    for topic_partition in world.topic_partitions:
        world.send(VALUE_BYTES, topic_partition)
    world.accumulator.hurry()
    for _ in range(2):
        world.pump()
    assert not world.requests_made
    assert sorted(world.accumulator.take_outside()) == world.topic_partitions
    assert not world.accumulator.outside
    world.accumulator.joined(world.topic_partitions[:2])
    world.pump()
    assert topic_partitions(world) == [{0, 1}]
    assert world.accumulator.take_outside() == [world.topic_partitions[2]]
    world.accumulator.joined(world.topic_partitions[2:])
    world.finish()
    world.check_log()


@pytest.mark.parametrize("by_request", [True, False])
def test_partitions_join_each_transaction_separately(by_request: bool) -> None:
    """Where joining needs a request. The sequences of batches continue across transactions."""
    world = begun(by_request=by_request)
    for _ in range(3):
        world.send(VALUE_BYTES, world.topic_partitions[0])
        world.accumulator.hurry()
        world.pump()
        assert world.accumulator.take_outside() == (
            world.topic_partitions[:1] if by_request else []
        )
        world.accumulator.joined(world.topic_partitions[:1])
        world.finish()
        world.accumulator.begin_transaction()
    world.check_log()
    assert world.partitions[world.topic_partitions[0]].next_sequence == 3
