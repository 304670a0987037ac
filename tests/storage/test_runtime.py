"""The real clock, randomness and threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.storage.flusher import Flusher

from .flush_waits import FlushWaits
from .log_bench import LogBench, append, offsets_of


def test_work_runs_on_another_thread() -> None:
    """Its result is returned to the event loop."""
    threads = Threads(1)
    assert asyncio.run(threads.run(threading.get_ident)) != threading.get_ident()
    threads.close()


def test_an_error_reaches_the_caller() -> None:
    """The caller gets the exception that the work raised."""

    def fail() -> None:
        raise OSError(5, "broken")

    threads = Threads(1)
    with pytest.raises(OSError, match="broken"):
        asyncio.run(threads.run(fail))
    threads.close()


def test_a_canceled_caller_waits_for_its_work() -> None:
    """A thread cannot be stopped: the caller must not continue while the thread still uses
    files."""

    async def main() -> None:
        threads = Threads(1)
        began, leave = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            leave.wait(120)

        caller = asyncio.create_task(threads.run(work))
        assert await asyncio.to_thread(began.wait, 120)
        caller.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not caller.done()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        threads.close()

    asyncio.run(main())


def test_the_clock_goes_forward() -> None:
    """Both the monotonic and the wall clock."""
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.wall_ms() > 1_600_000_000_000
    asyncio.run(clock.sleep(0))


def test_random_values_are_in_range() -> None:
    draws = SystemRandom()
    assert len(draws.bytes(20)) == 20
    assert draws.bytes(20) != draws.bytes(20)
    assert {draws.below(3) for _ in range(200)} == {0, 1, 2}
    assert all(0 <= draws.uniform() < 1 for _ in range(100))


def test_group_commit_on_real_threads_and_files(real_bench: LogBench) -> None:
    """All parts connected as in a broker: a hundred waiters, real fsyncs, a clean stop."""

    async def main() -> None:
        log = real_bench.create()
        threads = Threads(2)
        waits = FlushWaits()
        flusher = Flusher(threads, on_flushed=waits.on_flushed)
        running = asyncio.create_task(flusher.run())

        async def produce() -> None:
            append(log)
            end = log.end_offset
            await waits.until_synced(flusher, log, end)
            assert log.recovery_point >= end

        await asyncio.gather(*(produce() for _ in range(100)))
        assert flusher.flushes < 100
        running.cancel()
        await asyncio.wait([running])
        log.close()
        threads.close()

    asyncio.run(main())
    assert offsets_of(real_bench.open()) == list(range(100))
    assert real_bench.report.clean
