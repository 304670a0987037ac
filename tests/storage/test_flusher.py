"""Group commit: many waiters, few flushes. The executor is released by hand, so nothing sleeps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from errno import EIO, EMFILE
from typing import Any, TypeVar

import pytest

from penstock.storage.errors import LogOffline, StorageError
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.recovery import create_log

from .bench import NOW_MS, LogBench, append, new_bench

T = TypeVar("T")


class HandExecutor:
    """Work waits until the test lets it go; as with threads, a cancelled caller waits for it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self.let_all_go = False

    async def run(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.waiting.append((work, done))
        if self.let_all_go:
            self.release()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    def release(self) -> None:
        work, done = self.waiting.popleft()
        try:
            done.set_result(work())
        except OSError as error:
            done.set_exception(error)


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)


class Stage:
    """A flusher at work on logs of one disk."""

    def __init__(self, bench: LogBench, concurrency: int) -> None:
        self.bench = bench
        self.executor = HandExecutor()
        self.flusher = Flusher(self.executor, concurrency)
        self.log = self.new_log(0)

    def new_log(self, partition: int) -> Log:
        bench = self.bench
        return create_log(
            bench.resources,
            bench.root,
            "t",
            partition,
            topic_id="id",
            config=bench.config,
            now_ms=NOW_MS,
        )

    async def release_all(self) -> int:
        """Let flushes go one after another until none is left; how many there were."""
        released = 0
        await settle()
        while self.executor.waiting:
            assert released < 1000, "the flusher never comes to rest"
            self.executor.release()
            released += 1
            await settle()
        return released

    async def stop(self, running: asyncio.Task[None]) -> None:
        running.cancel()
        self.executor.let_all_go = True
        await self.release_all()
        await asyncio.wait([running], timeout=5)
        assert running.done(), "the flusher does not stop"


def play(scene: Callable[[Stage], Awaitable[None]], concurrency: int = 4) -> None:
    """Run the scene beside a flusher, as a broker would."""

    async def main() -> None:
        stage = Stage(new_bench(), concurrency)
        running = asyncio.create_task(stage.flusher.run())
        try:
            await scene(stage)
            assert not running.done(), "the flusher ended by itself"
        finally:
            await stage.stop(running)

    asyncio.run(main())


def waiting_for(stage: Stage, offset: int, log: Log | None = None) -> asyncio.Task[None]:
    return asyncio.create_task(stage.flusher.wait_durable(log or stage.log, offset))


def test_returns_when_durable() -> None:
    """Not before the fsync has returned; at once when it already has."""

    async def scene(stage: Stage) -> None:
        append(stage.log, 3)
        waiter = waiting_for(stage, 3)
        await settle()
        assert not waiter.done()
        assert await stage.release_all() == 1
        await waiter
        assert stage.log.recovery_point == 3
        await stage.flusher.wait_durable(stage.log, 2)
        assert not stage.executor.waiting

    play(scene)


def test_many_waiters_share_few_flushes() -> None:
    """All who come while a flush is under way share the next one."""

    async def scene(stage: Stage) -> None:
        waiters = []
        for number in range(100):
            append(stage.log)
            waiters.append(waiting_for(stage, number + 1))
            if number % 50 == 0:
                await settle()
        assert await stage.release_all() <= 3
        await asyncio.gather(*waiters)
        assert stage.flusher.flushes <= 3

    play(scene)


def test_flush_under_way_does_not_serve_late_appends() -> None:
    """It began before they were written: they wait for the next."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        early = waiting_for(stage, 1)
        await settle()
        append(stage.log)
        late = waiting_for(stage, 2)
        await settle()
        stage.executor.release()
        await settle()
        assert early.done()
        assert not late.done()
        assert await stage.release_all() == 1
        await late

    play(scene)


def test_failure_reaches_all_waiters() -> None:
    """Those of the failed flush, those of the next one, and all who come later."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        waiters = [waiting_for(stage, 1) for _ in range(5)]
        await settle()
        append(stage.log)
        waiters.append(waiting_for(stage, 2))
        await settle()
        stage.bench.sim.fail_next("fsync", EIO)
        fsyncs = stage.bench.sim.counters["fsync"]
        await stage.release_all()
        for waiter in waiters:
            with pytest.raises(LogOffline, match="fsync failed"):
                await waiter
        with pytest.raises(LogOffline, match="restart the broker"):
            await stage.flusher.wait_durable(stage.log, 1)
        assert stage.bench.sim.counters["fsync"] == fsyncs + 1

    play(scene)


def test_failure_of_one_log_leaves_the_others_alone() -> None:
    """A bad file is no reason to stop acknowledging for the rest of the broker."""

    async def scene(stage: Stage) -> None:
        other = stage.new_log(1)
        append(stage.log)
        append(other)
        bad, good = waiting_for(stage, 1), waiting_for(stage, 1, other)
        stage.bench.sim.fail_next("fsync", EIO, path_contains="t-0")
        await stage.release_all()
        with pytest.raises(LogOffline):
            await bad
        await good
        append(other)
        again = waiting_for(stage, 2, other)
        await stage.release_all()
        await again

    play(scene)


def test_a_flush_without_a_free_descriptor_is_retried() -> None:
    """Who waits goes on waiting, and is served by a later try; other logs are not held up."""

    async def scene(stage: Stage) -> None:
        other = stage.new_log(1)
        append(stage.log)
        append(other)
        stage.bench.resources.pool.close()
        stage.bench.sim.fail_next("open", EMFILE, path_contains="t-0/", times=2)
        waiter, good = waiting_for(stage, 1), waiting_for(stage, 1, other)
        await stage.release_all()
        await good
        assert not waiter.done()
        stage.executor.let_all_go = True
        await asyncio.wait_for(waiter, 30)
        assert stage.log.recovery_point == 1
        assert stage.flusher.retried == 2

    play(scene)


def test_a_flush_nobody_waits_for_is_retried_too() -> None:
    """A leader does not wait here: it is told by `on_flushed` once the data is on disk."""

    async def scene(stage: Stage) -> None:
        flushed = asyncio.Event()
        stage.flusher._on_flushed = lambda _: flushed.set()
        append(stage.log)
        stage.bench.resources.pool.close()
        stage.bench.sim.fail_next("open", EMFILE, path_contains="t-0/")
        stage.executor.let_all_go = True
        stage.flusher.request(stage.log)
        await asyncio.wait_for(flushed.wait(), 30)
        assert stage.log.recovery_point == 1

    play(scene)


def test_a_checkpoint_without_a_free_descriptor_is_retried() -> None:
    """The thread cannot open the checkpoint's file: the log stays in use, and the next try makes
    everything durable that the first was to."""

    async def scene(stage: Stage) -> None:
        append(stage.log, 3)
        stage.log.roll(NOW_MS)
        append(stage.log)
        stage.bench.sim.fail_next("open", EMFILE, path_contains="checkpoint")
        stage.executor.let_all_go = True
        await asyncio.wait_for(waiting_for(stage, 4), 30)
        assert stage.log.failure is None
        assert (stage.log.recovery_point, stage.log.noted_point) == (4, 4)
        durable = stage.bench.sim.durable_files()
        for path, data in stage.bench.sim.files().items():
            assert durable[path] == data

    play(scene)


def test_a_flush_that_cannot_open_a_file_for_another_reason_is_told() -> None:
    """Its waiters learn, the flusher goes on."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        stage.bench.resources.pool.close()
        stage.bench.sim.fail_next("open", EIO, path_contains="t-0/")
        waiter = waiting_for(stage, 1)
        await stage.release_all()
        assert waiter.done()
        assert isinstance(waiter.exception(), StorageError)

    play(scene)


def test_logs_are_flushed_side_by_side_a_few_at_a_time() -> None:
    """As many as there are threads for; the rest take their turn."""

    async def scene(stage: Stage) -> None:
        logs = [stage.new_log(number) for number in range(1, 6)]
        for log in logs:
            append(log)
        waiters = [waiting_for(stage, 1, log) for log in logs]
        await settle()
        assert len(stage.executor.waiting) == 2
        assert await stage.release_all() == 5
        await asyncio.gather(*waiters)

    play(scene, concurrency=2)


def test_cancelled_waiter_harms_nobody() -> None:
    """Its client is gone; the others are served and nothing is left behind."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        gone, there = waiting_for(stage, 1), waiting_for(stage, 1)
        await settle()
        gone.cancel()
        await settle()
        assert gone.cancelled()
        await stage.release_all()
        await there
        append(stage.log)
        last = waiting_for(stage, 2)
        await stage.release_all()
        await last

    play(scene)


def test_exclusive_excludes_flushes() -> None:
    """Surgery waits for the flush under way, and the next flush waits for the surgery."""

    async def scene(stage: Stage) -> None:
        append(stage.log, 5)
        first = waiting_for(stage, 5)
        await settle()
        held = asyncio.Event()
        leave = asyncio.Event()

        async def surgery() -> None:
            async with stage.flusher.exclusive(stage.log):
                held.set()
                stage.log.truncate_to(3)
                await leave.wait()

        cutting = asyncio.create_task(surgery())
        await settle()
        assert not held.is_set()
        stage.executor.release()
        await settle()
        assert held.is_set()
        await first
        append(stage.log, 4)
        waiter = waiting_for(stage, 7)
        await settle()
        assert not stage.executor.waiting
        leave.set()
        await cutting
        assert await stage.release_all() == 1
        await waiter

    play(scene)


def test_surgery_on_some_logs_does_not_hold_up_others() -> None:
    """However many logs are held, one that is free is flushed."""

    async def scene(stage: Stage) -> None:
        held = [stage.new_log(number) for number in (1, 2)]
        async with stage.flusher.exclusive(held[0]), stage.flusher.exclusive(held[1]):
            for log in (*held, stage.log):
                append(log)
                stage.flusher.request(log)
            waiter = waiting_for(stage, 1)
            await stage.release_all()
            assert waiter.done()
        await stage.release_all()
        assert all(log.recovery_point == 1 for log in held)

    play(scene, concurrency=2)


def test_waiter_for_truncated_records_is_told() -> None:
    """What it waited for is no more: it must neither hang nor keep the flusher spinning."""

    async def scene(stage: Stage) -> None:
        append(stage.log, 5)
        async with stage.flusher.exclusive(stage.log):
            waiter = waiting_for(stage, 5)
            await settle()
            stage.log.truncate_to(3)
        await stage.release_all()
        assert waiter.done()
        assert isinstance(waiter.exception(), StorageError)

    play(scene)


def test_request_flushes_though_nobody_waits() -> None:
    """A timer asks, and asking twice is asking once."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        stage.flusher.request(stage.log)
        stage.flusher.request(stage.log)
        assert await stage.release_all() == 1
        assert stage.log.recovery_point == 1
        stage.flusher.request(stage.log)
        assert await stage.release_all() == 0

    play(scene)


def test_forgotten_log_tells_its_waiters() -> None:
    """A partition that is deleted leaves nobody waiting."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        waiter = waiting_for(stage, 1)
        await settle()
        stage.flusher.forget(stage.log)
        with pytest.raises(LogOffline, match="was closed"):
            await waiter
        await stage.release_all()

    play(scene)


def test_stopped_flusher_leaves_logs_closable() -> None:
    """Flushes under way are finished first: the log can be closed cleanly right afterwards."""

    async def main() -> None:
        stage = Stage(new_bench(), 4)
        running = asyncio.create_task(stage.flusher.run())
        append(stage.log, 3)
        waiter = waiting_for(stage, 3)
        await settle()
        running.cancel()
        await settle()
        assert not running.done()
        await stage.stop(running)
        assert stage.log.recovery_point == 3
        stage.log.close()
        assert stage.bench.open().end_offset == 3
        assert stage.bench.report.clean
        waiter.cancel()

    asyncio.run(main())
