"""Tests runs under simultaneous failures, rebalances, refused commits and crashes.

Every commit is checked: each record below a committed offset has been handled. Every handled record
is checked: the records before it in its lane have been handled. At the end, no record is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, get_args

import pytest

from client.processing.fake_consumer import LIMIT_S, FakeConsumer, Text, log_of, until
from penstock.client.errors import CommitFailed, ConnectionLost
from penstock.client.processing.contracts import Ordering
from penstock.client.processing.run import run
from penstock.client.processing.run_options import RunOptions
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition

TOPIC_PARTITIONS = [TopicPartition("t", number) for number in range(3)]
RECORDS = 60
KEYS = 5


class BadLuck(Exception):
    """The error that the handler raises at random."""


class CheckedConsumer(FakeConsumer):
    """Fails the test on a commit that covers a record that was not handled."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(
            {
                topic_partition: log_of(topic_partition, RECORDS, "abcde"[:KEYS])
                for topic_partition in TOPIC_PARTITIONS
            }
        )
        self.handled: dict[TopicPartition, set[int]] = defaultdict(set)
        self.chance = chance
        self.calm = False

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        assert offsets is not None
        for topic_partition, offset in offsets.items():
            missing = set(range(offset)) - self.handled[topic_partition]
            assert not missing, f"{topic_partition}: {offset} committed, but {missing} not handled"
        roll = self.chance.random()
        if not self.calm and roll < 0.2:
            raise ConnectionLost("gone") if roll < 0.1 else CommitFailed("moved on")
        await super().commit(offsets)


def drawn_options(chance: random.Random, ordering: Ordering) -> RunOptions:
    return RunOptions(
        ordering=ordering,
        concurrency=chance.choice([1, 2, 5]),
        retries=chance.choice([0, 2, 50]),
        retry_backoff_ms=1,
        retry_backoff_max_ms=3,
        commit_interval_ms=3,
        in_progress_max=chance.choice([3, 10, 1000]),
        drain_timeout_ms=chance.choice([0, 2, 1000]),
    )


async def rebalance_at_random(consumer: CheckedConsumer, chance: random.Random) -> None:
    for _ in range(chance.randrange(6)):
        await asyncio.sleep(chance.random() * 0.01)
        topic_partition = chance.choice(TOPIC_PARTITIONS)
        if topic_partition in consumer.assigned:
            consumer.rebalance(chance.choice(["revoked", "lost"]), topic_partition)
        else:
            consumer.rebalance("assigned", topic_partition)


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_and_no_commit_covers_unhandled_records(
    seed: int, kind: Literal["async", "threads"]
) -> None:
    """Through crashes, rebalances and failures, every record is handled and then committed."""
    chance = random.Random(seed)
    ordering: Ordering = get_args(Ordering)[seed % 3]

    def outcome(consumer: CheckedConsumer, record: Text) -> None:
        if not consumer.calm and chance.random() < 0.1:
            raise BadLuck
        if ordering != "none":
            step = KEYS if ordering == "key" else 1
            earlier = set(range(record.offset % step, record.offset, step))
            assert earlier <= consumer.handled[record.topic_partition], "a record was overtaken"
        consumer.handled[record.topic_partition].add(record.offset)

    async def one_life(consumer: CheckedConsumer) -> None:
        async def handle(record: Text) -> None:
            await asyncio.sleep(chance.random() * 0.002)
            outcome(consumer, record)

        def handle_plainly(record: Text) -> None:
            outcome(consumer, record)

        options = drawn_options(chance, ordering)
        handler = handle if kind == "async" else handle_plainly
        running = asyncio.ensure_future(run(consumer, handler, options))
        await rebalance_at_random(consumer, chance)
        running.cancel()
        with suppress(asyncio.CancelledError, BadLuck):
            await running
        assert consumer.held == 0

    async def main() -> None:
        consumer = CheckedConsumer(chance)
        for _ in range(6):
            await one_life(consumer)
            # A crash: the next run starts from the committed offsets.
            consumer.news.clear()
            consumer.assigned = set(TOPIC_PARTITIONS)
            consumer.own_pauses.clear()
            consumer.positions = dict.fromkeys(TOPIC_PARTITIONS, 0) | consumer.committed
        consumer.calm = True
        stop = asyncio.Event()

        async def handle(record: Text) -> None:
            outcome(consumer, record)

        running = asyncio.ensure_future(
            run(consumer, handle, RunOptions(commit_interval_ms=3, stop=stop))
        )
        await until(lambda: consumer.committed == dict.fromkeys(TOPIC_PARTITIONS, RECORDS))
        stop.set()
        async with asyncio.timeout(patient(LIMIT_S)):
            await running
        for topic_partition in TOPIC_PARTITIONS:
            assert consumer.handled[topic_partition] == set(range(RECORDS))

    asyncio.run(main())
