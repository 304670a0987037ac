"""Group commit: many waiters, few flushes. Tests release the executor by hand, so nothing
sleeps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from errno import EIO, EMFILE
from typing import Any, TypeVar

import pytest

from penstock.storage.creation import create_log
from penstock.storage.errors import LogOffline, StorageError
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log

from .log_bench import NOW_MS, LogBench, append, new_bench

T = TypeVar("T")


class HandExecutor:
    """Work waits until the test releases it. As with threads, a canceled caller waits for its
    work."""

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
    """Lets every task run until it waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)


class Stage:
    """A flusher and the logs of one disk."""

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
        """Releases flushes one after another until none is left. Returns their number."""
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
    """Runs the scene next to a running flusher, as in a broker."""

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


def test_wait_durable_returns_once_the_data_is_synced() -> None:
    """Not before the fsync has returned, and at once if it already has."""

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
    """All waiters that arrive during a flush share the next one."""

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


def test_a_running_flush_does_not_cover_later_appends() -> None:
    """It began before they were written, so they wait for the next one."""

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


def test_a_failure_reaches_all_waiters() -> None:
    """Those of the failed flush, those of the next one, and all later ones."""

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


def test_the_failure_of_one_log_does_not_affect_the_others() -> None:
    """A bad file is no reason to stop acknowledging records of other logs."""

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
    """Its waiters keep waiting and are served by a later attempt. Other logs are not delayed."""

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


def test_a_flush_without_waiters_is_retried_too() -> None:
    """A leader does not wait here: `on_flushed` notifies it once the data is on disk."""

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
    """The thread cannot open the checkpoint's file. The log stays usable, and the next attempt
    makes everything durable that the first one should have."""

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


def test_a_flush_that_cannot_open_a_file_for_another_reason_fails() -> None:
    """Its waiters get the error, and the flusher continues."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        stage.bench.resources.pool.close()
        stage.bench.sim.fail_next("open", EIO, path_contains="t-0/")
        waiter = waiting_for(stage, 1)
        await stage.release_all()
        assert waiter.done()
        assert isinstance(waiter.exception(), StorageError)

    play(scene)


def test_logs_are_flushed_concurrently_up_to_a_limit() -> None:
    """The number of threads is the limit. The other logs wait."""

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


def test_a_canceled_waiter_affects_no_others() -> None:
    """Its client is gone. The other waiters are served, and nothing is left behind."""

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


def test_exclusive_access_excludes_flushes() -> None:
    """A truncation waits for the running flush, and the next flush waits for the truncation."""

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


def test_exclusive_access_to_some_logs_does_not_delay_others() -> None:
    """However many logs are held exclusively, another one is still flushed."""

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


def test_a_waiter_for_truncated_records_gets_an_error() -> None:
    """Its records no longer exist: it must neither hang nor keep the flusher busy."""

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


def test_a_request_flushes_without_waiters() -> None:
    """A timer requests flushes. Two requests cause one flush."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        stage.flusher.request(stage.log)
        stage.flusher.request(stage.log)
        assert await stage.release_all() == 1
        assert stage.log.recovery_point == 1
        stage.flusher.request(stage.log)
        assert await stage.release_all() == 0

    play(scene)


def test_a_forgotten_log_fails_its_waiters() -> None:
    """No request waits for a deleted partition."""

    async def scene(stage: Stage) -> None:
        append(stage.log)
        waiter = waiting_for(stage, 1)
        await settle()
        stage.flusher.forget(stage.log)
        with pytest.raises(LogOffline, match="was closed"):
            await waiter
        await stage.release_all()

    play(scene)


def test_after_the_flusher_stops_logs_can_be_closed() -> None:
    """Running flushes are completed first, so the log can be closed cleanly right afterwards."""

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
