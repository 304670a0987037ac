"""A broker that ends because one of its tasks failed, while clients still send requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.harness import TIMEOUT_S, BrokerHarness, open_harness
from penstock.testing.slowness import patient
from penstock.wire.codec import encode_request
from penstock.wire.messages import CreateTopicsRequest


class TaskFailed(Exception):
    """Raised by the task that ends the broker."""


class StubbornTask:
    """Fails when told to. Its neighbour keeps the task group from ending until `let_end`."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.fail, self.let_end = asyncio.Event(), asyncio.Event()
        self.is_cancelled = asyncio.Event()
        harness.services.spawn(self._fail())
        harness.services.spawn(self._stay())

    async def _fail(self) -> None:
        await self.fail.wait()
        raise TaskFailed

    async def _stay(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled.set()
            await self.let_end.wait()
            raise


def create_request() -> bytes:
    """A request whose handler runs a coroutine in the broker's task group."""
    request = CreateTopicsRequest([CreateTopicsRequest.Topic("late", 1, 1)])
    return b"".join(encode_request(request, 7, 1, "test"))[4:]


@pytest.mark.filterwarnings("error")
def test_a_request_while_a_failed_broker_ends_is_cancelled(tmp_path: Path) -> None:
    """The task group accepts no coroutine any more. That is not an error of the request: nothing is
    logged as one, and no coroutine is left that was never awaited.
    """

    async def run_case() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), open_harness(tmp_path) as harness:
            task = StubbornTask(harness)
            await asyncio.sleep(0)
            task.fail.set()
            await task.is_cancelled.wait()
            try:
                with pytest.raises(asyncio.CancelledError):
                    await harness.exchange(create_request())
            finally:
                task.let_end.set()
            await harness.until(lambda: harness.broker._tasks is None)
            with pytest.raises(asyncio.CancelledError):
                await harness.exchange(create_request())

    with pytest.raises(TaskFailed):
        asyncio.run(run_case())


def test_a_broker_that_ends_by_an_error_resigns_before_it_closes_its_logs(tmp_path: Path) -> None:
    """Its connections stay open until the process ends. A record that it accepted now could miss
    the last flush, although the record of a clean stop says that nothing does.
    """
    led_at_close: list[bool] = []

    async def run_case() -> None:
        async with asyncio.timeout(patient(TIMEOUT_S)), open_harness(tmp_path) as harness:
            await harness.create("t")
            await harness.broker.replicas.settled()
            await harness.produce("t", [b"one"])
            hosted, close_logs = harness.hosted("t"), harness.broker._close_logs
            assert hosted.leadership is not None

            async def note_and_close() -> None:
                led_at_close.append(hosted.leadership is not None)
                await close_logs()

            harness.broker._close_logs = note_and_close  # type: ignore[method-assign]
            task = StubbornTask(harness)
            await asyncio.sleep(0)
            task.let_end.set()
            task.fail.set()
            await harness.until(lambda: bool(led_at_close))

    with pytest.raises(TaskFailed):
        asyncio.run(run_case())
    assert led_at_close == [False]
