"""Large batches are checked on threads: a few at a time, in order, and with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from penstock.broker.partitions.large_batches import CONCURRENT_MAX, LargeBatches
from penstock.partition.record_validation import MalformedRecords, Validated
from penstock.records.batch import validate_fields
from penstock.records.record import Record, build_batch, read_records

T = TypeVar("T")


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps here")


class HandExecutor:
    """An executor whose work runs when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def run(self, work: Callable[[], T]) -> T:
        go: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(go)
        await go
        return work()


def validated() -> Validated:
    batch = build_batch([Record(0, 0, b"k", b"v")])
    return Validated(batch, validate_fields(batch))


def refused() -> Validated:
    raise MalformedRecords("why")


def test_batches_are_checked_in_order_and_those_past_their_deadline_time_out() -> None:
    async def run_case() -> None:
        clock, executor = HandClock(), HandExecutor()
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Coroutine[Any, Any, None]) -> None:
                tasks.create_task(work)

            batches = LargeBatches(clock, executor, spawn)
            outcomes = [batches.run(validated, 10.0) for _ in range(CONCURRENT_MAX)]
            outcomes.append(batches.run(refused, 10.0))
            late = batches.run(validated, 1.0)
            patient = batches.run(validated, 10.0)
            await asyncio.sleep(0)
            assert len(executor.waiting) == CONCURRENT_MAX
            assert batches.waiting == 3
            clock.now += 5.0
            executor.waiting[0].set_result(None)
            assert read_records((await outcomes[0]).batch)
            await asyncio.sleep(0)
            assert len(executor.waiting) == CONCURRENT_MAX + 1
            executor.waiting[2].set_result(None)
            with pytest.raises(MalformedRecords):
                await outcomes[2]
            with pytest.raises(TimeoutError, match="the broker is busy"):
                await late
            await asyncio.sleep(0)
            executor.waiting[3].set_result(None)
            await patient
            assert not outcomes[1].done()
            executor.waiting[1].set_result(None)
            await outcomes[1]
        assert (batches.opened, batches.waiting) == (3, 0)

    asyncio.run(run_case())


def test_a_cancelled_check_cancels_its_outcome() -> None:
    """When the broker stops, the request that waits for the outcome must not wait for ever."""

    async def run_case() -> None:
        executor = HandExecutor()
        tasks: list[asyncio.Task[None]] = []
        batches = LargeBatches(
            HandClock(), executor, lambda work: tasks.append(asyncio.ensure_future(work))
        )
        outcome = batches.run(validated, 10.0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert outcome.cancelled()

    asyncio.run(run_case())
