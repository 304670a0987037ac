"""Tests the threads on which production code runs blocking work."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.runtime import Threads
from penstock.testing.slowness import patient

WAIT_S = 60.0


class Gate:
    """Work that waits on its thread until the test opens the gate."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.opened.wait(patient(WAIT_S))
        self.ended = True
        return "done"


async def has_begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.wait, patient(WAIT_S))


def test_results_and_errors_reach_the_caller() -> None:
    threads = Threads(2)

    def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        assert await threads.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ValueError, match="broken"):
            await threads.run(fail)
        assert await threads.run(lambda: 2) == 2

    asyncio.run(main())
    threads.close()


def test_no_more_threads_than_allowed_and_none_without_need() -> None:
    threads, gates = Threads(2), [Gate() for _ in range(3)]

    def count() -> int:
        return sum(each.name.startswith("penstock_") for each in threading.enumerate())

    async def main() -> None:
        for _ in range(5):
            await threads.run(int)
        before = count()
        running = [asyncio.create_task(threads.run(gate)) for gate in gates]
        await has_begun(gates[0])
        await has_begun(gates[1])
        assert count() == before + 1
        assert not gates[2].begun.is_set()
        for gate in gates:
            gate.opened.set()
        assert await asyncio.gather(*running) == ["done"] * 3

    asyncio.run(main())
    threads.close()


def test_a_cancellation_waits_for_the_work() -> None:
    threads, gate = Threads(1), Gate()

    async def main() -> None:
        task = asyncio.create_task(threads.run(gate))
        await has_begun(gate)
        task.cancel()
        assert not (await asyncio.wait([task], timeout=0.05))[0]
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.ended

    asyncio.run(main())
    threads.close()


def test_a_second_cancellation_does_not_wait() -> None:
    threads, gate = Threads(1), Gate()

    async def main() -> None:
        task = asyncio.create_task(threads.run(gate))
        await has_begun(gate)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not gate.ended

    asyncio.run(main())
    gate.opened.set()
    threads.close()
    assert gate.ended


def test_close_finishes_what_is_queued_and_refuses_more() -> None:
    threads, gate = Threads(1), Gate()

    async def main() -> None:
        tasks = [asyncio.create_task(threads.run(work)) for work in (gate, str)]
        await has_begun(gate)
        with ThreadPoolExecutor(1) as other:
            closing = asyncio.get_running_loop().run_in_executor(other, threads.close)
            gate.opened.set()
            assert await asyncio.gather(*tasks) == ["done", ""]
            await closing
        with pytest.raises(RuntimeError, match="closed"):
            await threads.run(int)

    asyncio.run(main())


def test_a_thread_survives_a_loop_that_ended() -> None:
    """An event loop may be closed while its work is under way; later loops use the same threads."""
    threads, gate = Threads(1), Gate()

    async def leave() -> None:
        task = asyncio.create_task(threads.run(gate))
        await has_begun(gate)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def again() -> int:
        return await threads.run(lambda: 3)

    asyncio.run(leave())
    gate.opened.set()
    assert asyncio.run(again()) == 3
    threads.close()
