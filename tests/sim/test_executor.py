"""The simulated executor: work that runs on threads in production."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from penstock.security.exchange import PasswordHash
from penstock.sim.executor import DiskSpeed, SimExecutor
from penstock.sim.loop import SimLoop
from penstock.sim.process import Process


def run_case(
    scenario: Callable[[SimLoop, Process, SimExecutor], Awaitable[Any]], seed: int = 1
) -> Any:
    loop = SimLoop(Random(seed))
    process = loop.new_process("node")
    executor = SimExecutor(loop, process, DiskSpeed, Random(seed))

    async def main() -> Any:
        return await scenario(loop, process, executor)

    try:
        return loop.run(main())
    finally:
        assert loop.unexpected == []
        loop.close()


def test_work_is_done_later_and_its_result_comes_back() -> None:
    """An exception comes back too."""

    async def scenario(loop: SimLoop, _: Process, executor: SimExecutor) -> None:
        began = loop.now
        assert await executor.run(lambda: 42) == 42
        assert loop.now > began
        with pytest.raises(ZeroDivisionError):
            await executor.run(lambda: 1 // 0)

    run_case(scenario)


def test_a_password_is_hashed_once() -> None:
    """Hashing is slow on purpose, and a run has hundreds of logins with few passwords."""
    runs: list[bytes] = []

    class Counted(PasswordHash):
        def run(self) -> bytes:
            runs.append(self.password)
            return super().run()

    async def scenario(loop: SimLoop, _: Process, executor: SimExecutor) -> None:
        one = Counted("sha256", b"one", b"salt", 4096)
        same, other = Counted("sha256", b"one", b"salt", 4096), Counted("sha256", b"2", b"s", 4096)
        hashes = [await executor.run(each.run) for each in (one, same, other)]
        assert hashes[0] == hashes[1] != hashes[2]
        assert runs == [b"one", b"2"]

    run_case(scenario)


def test_a_cancelled_caller_waits_for_the_work() -> None:
    """Threads cannot be stopped either."""

    async def scenario(loop: SimLoop, _: Process, executor: SimExecutor) -> None:
        done: list[int] = []
        task = asyncio.ensure_future(executor.run(lambda: done.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]

    run_case(scenario)


def test_work_in_progress_when_its_process_is_killed_is_done_or_lost() -> None:
    """Both outcomes occur, and no work is done after the kill."""

    async def scenario(loop: SimLoop, process: Process, executor: SimExecutor) -> int:
        done: list[int] = []
        for number in range(10):
            work = executor.run(lambda number=number: done.append(number))  # type: ignore[misc]
            loop.create_task(work, context=process.context.copy())
        await asyncio.sleep(0)
        loop.kill(process)
        assert executor.on_killed() == len(done)
        at_the_kill = len(done)
        await asyncio.sleep(10)
        assert len(done) == at_the_kill
        return at_the_kill

    counts = {run_case(scenario, seed) for seed in range(5)}
    assert len(counts) > 1
    assert counts <= set(range(11))


def test_a_stalled_disk_does_nothing_until_it_recovers() -> None:
    async def scenario(loop: SimLoop, _: Process, executor: SimExecutor) -> None:
        began = loop.now
        executor.stalled_until = began + 3.0
        await executor.run(int)
        assert loop.now >= began + 3.0

    run_case(scenario)
