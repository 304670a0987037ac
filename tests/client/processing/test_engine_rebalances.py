"""Tests runs with an in-memory consumer: rebalances and seeks while records are handled."""

from __future__ import annotations

import asyncio
import threading

from client.processing.fake_consumer import LIMIT_S, FakeConsumer, Text, log_of, until
from client.processing.test_engine import A, B, finish_all


def test_a_revocation_waits_for_the_record_being_handled() -> None:
    """That record is finished and committed; the records behind it are dropped."""

    async def main() -> None:
        handed: list[str] = []
        in_hand, gate = asyncio.Event(), asyncio.Event()

        async def handle(record: Text) -> None:
            handed.append(record.value)
            if record.value == "t-0:2":
                in_hand.set()
                await gate.wait()

        consumer = FakeConsumer({A: log_of(A, 20), B: log_of(B, 5)})
        stop = asyncio.Event()
        running = asyncio.ensure_future(finish_all(consumer, handle, concurrency=2, stop=stop))
        await in_hand.wait()
        consumer.rebalance("revoked", A)
        await asyncio.sleep(0.01)
        assert A in consumer.assigned
        gate.set()
        await until(lambda: A not in consumer.assigned and consumer.committed.get(B) == 5)
        assert consumer.committed[A] == 3
        assert "t-0:3" not in handed
        consumer.rebalance("assigned", A)
        await until(lambda: consumer.committed[A] == 20)
        stop.set()
        await running
        assert [value for value in handed if value.startswith("t-0")] == [
            record.value for record in consumer.logs[A]
        ]

    asyncio.run(main())


def test_a_revocation_does_not_wait_forever() -> None:
    """A handler that exceeds the drain timeout is canceled. Its record is not
    committed, and is delivered again."""

    async def main() -> None:
        cancelled = 0
        in_hand = asyncio.Event()

        async def handle(record: Text) -> None:
            nonlocal cancelled
            if record.offset == 2 and not cancelled:
                in_hand.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled += 1
                    raise

        consumer = FakeConsumer({A: log_of(A, 10)})
        running = asyncio.ensure_future(finish_all(consumer, handle, drain_timeout_ms=20))
        await in_hand.wait()
        consumer.rebalance("revoked", A)
        consumer.rebalance("assigned", A)
        summary = await running
        assert cancelled == 1
        assert summary.processed == 10
        assert {A: 2} in consumer.commits

    asyncio.run(main())


def test_a_revocation_does_not_wait_for_a_retry() -> None:
    """A record that waits for its next attempt is dropped at once."""

    async def main() -> None:
        failed = asyncio.Event()
        stop = asyncio.Event()

        async def handle(record: Text) -> None:
            if record.offset == 2:
                failed.set()
                raise ValueError("later")

        consumer = FakeConsumer({A: log_of(A, 10)})
        running = asyncio.ensure_future(
            finish_all(
                consumer,
                handle,
                stop=stop,
                retry_backoff_ms=60_000,
                retry_backoff_max_ms=60_000,
                drain_timeout_ms=60_000,
            )
        )
        await failed.wait()
        consumer.rebalance("revoked", A)
        await until(lambda: A not in consumer.assigned)
        assert consumer.committed == {A: 2}
        stop.set()
        await running

    asyncio.run(main())


def test_lost_partitions_are_neither_waited_for_nor_committed() -> None:
    """Other members own them already."""

    async def main() -> None:
        in_hand, stop = asyncio.Event(), asyncio.Event()

        async def handle(record: Text) -> None:
            if record.offset == 2:
                in_hand.set()
                await asyncio.Event().wait()

        consumer = FakeConsumer({A: log_of(A, 10)})
        running = asyncio.ensure_future(
            finish_all(
                consumer, handle, stop=stop, drain_timeout_ms=60_000, commit_interval_ms=60_000
            )
        )
        await in_hand.wait()
        consumer.rebalance("lost", A)
        await until(lambda: A not in consumer.assigned)
        stop.set()
        await running
        assert consumer.commits == []

    asyncio.run(main())


def test_a_lane_waits_for_a_thread_that_outlived_its_partition() -> None:
    """A plain function cannot be canceled. When its partition is assigned
    again, its lane waits for it."""
    handed: list[int] = []
    gate = threading.Event()
    in_hand = threading.Event()

    def handle(record: Text) -> None:
        handed.append(record.offset)
        if record.offset == 2 and handed.count(2) == 1:
            in_hand.set()
            assert gate.wait(LIMIT_S)

    async def main() -> None:
        consumer = FakeConsumer({A: log_of(A, 6)})
        running = asyncio.ensure_future(
            finish_all(consumer, handle, concurrency=2, drain_timeout_ms=10)
        )
        assert await asyncio.to_thread(in_hand.wait, LIMIT_S)
        consumer.rebalance("revoked", A)
        consumer.rebalance("assigned", A)
        await until(lambda: consumer.positions[A] == 6)
        await asyncio.sleep(0.02)
        assert handed == [0, 1, 2]
        gate.set()
        await running
        assert handed == [0, 1, 2, 2, 3, 4, 5]

    asyncio.run(main())
