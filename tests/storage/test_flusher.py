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
from penstock.storage.errors import LogOffline
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.testing.slowness import patient

from .flush_waits import FlushWaits
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


class Bench:
    """A flusher and the logs of one disk."""

    def __init__(self, bench: LogBench, concurrency: int) -> None:
        self.bench = bench
        self.executor = HandExecutor()
        self.waits = FlushWaits()
        self.flusher = Flusher(self.executor, concurrency, self.waits.on_flushed)
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
        await asyncio.wait([running], timeout=patient(30))
        assert running.done(), "the flusher does not stop"


def run_case(case: Callable[[Bench], Awaitable[None]], concurrency: int = 4) -> None:
    """Runs the case next to a running flusher, as in a broker."""

    async def main() -> None:
        bench = Bench(new_bench(), concurrency)
        running = asyncio.create_task(bench.flusher.run())
        try:
            await case(bench)
            assert not running.done(), "the flusher ended by itself"
        finally:
            await bench.stop(running)

    asyncio.run(main())


def waiting_for(bench: Bench, offset: int, log: Log | None = None) -> asyncio.Task[None]:
    return asyncio.create_task(bench.waits.until_synced(bench.flusher, log or bench.log, offset))


def test_on_flushed_is_called_once_the_data_is_synced() -> None:
    """Not before the fsync has returned."""

    async def case(bench: Bench) -> None:
        append(bench.log, 3)
        waiter = waiting_for(bench, 3)
        await settle()
        assert not waiter.done()
        assert await bench.release_all() == 1
        await waiter
        assert bench.log.recovery_point == 3

    run_case(case)


def test_many_waiters_share_few_flushes() -> None:
    """All waiters that arrive during a flush share the next one."""

    async def case(bench: Bench) -> None:
        waiters = []
        for number in range(100):
            append(bench.log)
            waiters.append(waiting_for(bench, number + 1))
            if number % 50 == 0:
                await settle()
        assert await bench.release_all() <= 3
        await asyncio.gather(*waiters)
        assert bench.flusher.flushes <= 3

    run_case(case)


def test_a_running_flush_does_not_cover_later_appends() -> None:
    """It began before they were written, so they wait for the next one."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        early = waiting_for(bench, 1)
        await settle()
        append(bench.log)
        late = waiting_for(bench, 2)
        await settle()
        bench.executor.release()
        await settle()
        assert early.done()
        assert not late.done()
        assert await bench.release_all() == 1
        await late

    run_case(case)


def test_a_failure_reaches_all_waiters() -> None:
    """Those of the failed flush and those of the next one. Later ones flush nothing any more."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        waiters = [waiting_for(bench, 1) for _ in range(5)]
        await settle()
        append(bench.log)
        waiters.append(waiting_for(bench, 2))
        await settle()
        bench.bench.sim.fail_next("fsync", EIO)
        fsyncs = bench.bench.sim.counters["fsync"]
        await bench.release_all()
        for waiter in waiters:
            with pytest.raises(LogOffline, match="fsync failed"):
                await waiter
        bench.flusher.request(bench.log)
        assert await bench.release_all() == 0
        assert bench.bench.sim.counters["fsync"] == fsyncs + 1

    run_case(case)


def test_the_failure_of_one_log_does_not_affect_the_others() -> None:
    """A bad file is no reason to stop acknowledging records of other logs."""

    async def case(bench: Bench) -> None:
        other = bench.new_log(1)
        append(bench.log)
        append(other)
        bad, good = waiting_for(bench, 1), waiting_for(bench, 1, other)
        bench.bench.sim.fail_next("fsync", EIO, path_contains="t-0")
        await bench.release_all()
        with pytest.raises(LogOffline):
            await bad
        await good
        append(other)
        again = waiting_for(bench, 2, other)
        await bench.release_all()
        await again

    run_case(case)


def test_a_flush_without_a_free_descriptor_is_retried() -> None:
    """Its waiters keep waiting and are served by a later attempt. Other logs are not delayed."""

    async def case(bench: Bench) -> None:
        other = bench.new_log(1)
        append(bench.log)
        append(other)
        bench.bench.resources.pool.close()
        bench.bench.sim.fail_next("open", EMFILE, path_contains="t-0/", times=2)
        waiter, good = waiting_for(bench, 1), waiting_for(bench, 1, other)
        await bench.release_all()
        await good
        assert not waiter.done()
        bench.executor.let_all_go = True
        await asyncio.wait_for(waiter, patient(30))
        assert bench.log.recovery_point == 1
        assert bench.flusher.retried == 2

    run_case(case)


def test_a_flush_without_waiters_is_retried_too() -> None:
    """A leader does not wait here: `on_flushed` notifies it once the data is on disk."""

    async def case(bench: Bench) -> None:
        flushed = asyncio.Event()
        bench.flusher._on_flushed = lambda _: flushed.set()
        append(bench.log)
        bench.bench.resources.pool.close()
        bench.bench.sim.fail_next("open", EMFILE, path_contains="t-0/")
        bench.executor.let_all_go = True
        bench.flusher.request(bench.log)
        await asyncio.wait_for(flushed.wait(), patient(30))
        assert bench.log.recovery_point == 1

    run_case(case)


def test_a_checkpoint_without_a_free_descriptor_is_retried() -> None:
    """The thread cannot open the checkpoint's file. The log stays usable, and the next attempt
    makes everything durable that the first one should have."""

    async def case(bench: Bench) -> None:
        append(bench.log, 3)
        bench.log.roll(NOW_MS)
        append(bench.log)
        bench.bench.sim.fail_next("open", EMFILE, path_contains="checkpoint")
        bench.executor.let_all_go = True
        await asyncio.wait_for(waiting_for(bench, 4), patient(30))
        assert bench.log.failure is None
        assert (bench.log.recovery_point, bench.log.noted_point) == (4, 4)
        durable = bench.bench.sim.durable_files()
        for path, data in bench.bench.sim.files().items():
            assert durable[path] == data

    run_case(case)


def test_a_flush_that_cannot_open_a_file_for_another_reason_is_retried_too() -> None:
    """Otherwise a producer that sends the same batch again would wait until another one writes."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        bench.bench.resources.pool.close()
        bench.bench.sim.fail_next("open", EIO, path_contains="t-0/")
        waiter = waiting_for(bench, 1)
        bench.executor.let_all_go = True
        await asyncio.wait_for(waiter, patient(30))
        assert bench.flusher.retried == 1
        assert bench.log.failure is None

    run_case(case)


def test_logs_are_flushed_concurrently_up_to_a_limit() -> None:
    """The number of threads is the limit. The other logs wait."""

    async def case(bench: Bench) -> None:
        logs = [bench.new_log(number) for number in range(1, 6)]
        for log in logs:
            append(log)
        waiters = [waiting_for(bench, 1, log) for log in logs]
        await settle()
        assert len(bench.executor.waiting) == 2
        assert await bench.release_all() == 5
        await asyncio.gather(*waiters)

    run_case(case, concurrency=2)


def test_a_canceled_waiter_affects_no_others() -> None:
    """Its client is gone. The other waiters are served, and nothing is left behind."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        gone, there = waiting_for(bench, 1), waiting_for(bench, 1)
        await settle()
        gone.cancel()
        await settle()
        assert gone.cancelled()
        await bench.release_all()
        await there
        append(bench.log)
        last = waiting_for(bench, 2)
        await bench.release_all()
        await last

    run_case(case)


def test_exclusive_access_excludes_flushes() -> None:
    """A truncation waits for the running flush, and the next flush waits for the truncation."""

    async def case(bench: Bench) -> None:
        append(bench.log, 5)
        first = waiting_for(bench, 5)
        await settle()
        held = asyncio.Event()
        leave = asyncio.Event()

        async def surgery() -> None:
            async with bench.flusher.exclusive(bench.log):
                held.set()
                bench.log.truncate_to(3)
                await leave.wait()

        cutting = asyncio.create_task(surgery())
        await settle()
        assert not held.is_set()
        bench.executor.release()
        await settle()
        assert held.is_set()
        await first
        append(bench.log, 4)
        waiter = waiting_for(bench, 7)
        await settle()
        assert not bench.executor.waiting
        leave.set()
        await cutting
        assert await bench.release_all() == 1
        await waiter

    run_case(case)


def test_exclusive_access_to_some_logs_does_not_delay_others() -> None:
    """However many logs are held exclusively, another one is still flushed."""

    async def case(bench: Bench) -> None:
        held = [bench.new_log(number) for number in (1, 2)]
        async with bench.flusher.exclusive(held[0]), bench.flusher.exclusive(held[1]):
            for log in (*held, bench.log):
                append(log)
                bench.flusher.request(log)
            waiter = waiting_for(bench, 1)
            await bench.release_all()
            assert waiter.done()
        await bench.release_all()
        assert all(log.recovery_point == 1 for log in held)

    run_case(case, concurrency=2)


def test_a_request_flushes_without_waiters() -> None:
    """A timer requests flushes. Two requests cause one flush."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        bench.flusher.request(bench.log)
        bench.flusher.request(bench.log)
        assert await bench.release_all() == 1
        assert bench.log.recovery_point == 1
        bench.flusher.request(bench.log)
        assert await bench.release_all() == 0

    run_case(case)


def test_a_forgotten_log_is_flushed_by_nobody() -> None:
    """A log that is created later in the same directory has its own queue."""

    async def case(bench: Bench) -> None:
        append(bench.log)
        async with bench.flusher.exclusive(bench.log):
            bench.flusher.forget(bench.log)
            other = bench.new_log(1)
            append(other)
            bench.flusher.request(other)
            assert await bench.release_all() == 1
        assert bench.log.recovery_point == 0
        assert not any(queue.log is bench.log for queue in bench.flusher._queues.values())

    run_case(case)


def test_after_the_flusher_stops_logs_can_be_closed() -> None:
    """Running flushes are completed first, so the log can be closed cleanly right afterwards."""

    async def main() -> None:
        bench = Bench(new_bench(), 4)
        running = asyncio.create_task(bench.flusher.run())
        append(bench.log, 3)
        waiter = waiting_for(bench, 3)
        await settle()
        running.cancel()
        await settle()
        assert not running.done()
        await bench.stop(running)
        assert bench.log.recovery_point == 3
        bench.log.close()
        assert bench.bench.open().end_offset == 3
        assert bench.bench.report.clean
        waiter.cancel()

    asyncio.run(main())
