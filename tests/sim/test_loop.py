"""The virtual-time event loop: order, time, and freezing, slowing and killing processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from penstock.sim.loop import START_S, Deadlock, Livelock, Overtime, SimLoop
from penstock.sim.process import Process

Main = Callable[[SimLoop], Coroutine[Any, Any, Any]]


@contextmanager
def made(seed: int = 1, **options: Any) -> Any:
    loop = SimLoop(Random(seed), **options)
    try:
        yield loop
    finally:
        loop.close()


def run_case(main: Main, seed: int = 1, **options: Any) -> tuple[Any, SimLoop]:
    with made(seed, **options) as loop:
        return loop.run(main(loop)), loop


def spawn(loop: SimLoop, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return loop.create_task(work, context=process.context.copy())


def test_time_jumps_to_the_next_timer() -> None:
    """An hour of sleep takes one step, and the clock shows the hour."""

    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run_case(main)[0] == START_S + 3600


def test_the_features_of_asyncio_work() -> None:
    """Task groups, timeouts, queues, events, shields and waits behave as on a real loop."""

    async def main(loop: SimLoop) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        seen: list[Any] = []

        async def fill() -> None:
            for number in range(3):
                await queue.put(number)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fill())
            for _ in range(3):
                seen.append(await queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.Event().wait()
        seen.append(loop.time() - START_S)
        slow = asyncio.ensure_future(asyncio.sleep(9, "late"))
        done, pending = await asyncio.wait([slow], timeout=1)
        seen.append((len(done), len(pending)))
        seen.append(await asyncio.wait_for(asyncio.shield(slow), 10))
        return seen

    assert run_case(main)[0] == [0, 1, 2, 2.0, (0, 1), "late"]


def test_callbacks_of_one_process_run_in_the_order_they_were_scheduled() -> None:
    """asyncio guarantees this; it must hold for every seed."""

    async def main(loop: SimLoop) -> list[int]:
        process = loop.new_process("node")
        seen: list[int] = []
        for number in range(50):
            loop.call_soon(seen.append, number, context=process.context)
        await asyncio.sleep(1)
        return seen

    for seed in range(5):
        assert run_case(main, seed)[0] == list(range(50))


def test_the_order_between_processes_is_random_but_repeatable() -> None:
    """Different seeds give different orders; the same seed always gives the same one."""

    async def main(loop: SimLoop) -> str:
        processes = [loop.new_process(name) for name in "abc"]
        seen: list[str] = []
        for process in processes:
            for _ in range(4):
                loop.call_soon(seen.append, process.name, context=process.context)
        await asyncio.sleep(1)
        return "".join(seen)

    orders = [run_case(main, seed)[0] for seed in range(10)]
    assert len(set(orders)) > 5
    assert orders == [run_case(main, seed)[0] for seed in range(10)]


def test_a_task_group_cancels_in_the_same_order_in_every_run() -> None:
    """A task group keeps a set of tasks; on a real loop the set is ordered by address."""

    async def main(loop: SimLoop) -> list[int]:
        order: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                order.append(number)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                for number in range(40):
                    tasks.create_task(wait(number))
                tasks.create_task(fail())
        return order

    runs = [run_case(main)[0] for _ in range(4)]
    assert sorted(runs[0]) == list(range(40))
    assert all(run == runs[0] for run in runs)


def test_a_frozen_process_catches_up_when_it_resumes() -> None:
    """None of it runs meanwhile; timers that fell due fire when it resumes, in order."""

    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        process = loop.new_process("node")
        seen: list[tuple[str, float]] = []

        async def beat() -> None:
            while len(seen) < 6:
                await asyncio.sleep(1)
                seen.append(("beat", loop.time() - START_S))

        task = spawn(loop, process, beat())
        loop.call_later(
            3.5, lambda: seen.append(("once", loop.now - START_S)), context=process.context
        )
        await asyncio.sleep(2.5)
        loop.freeze(process)
        await asyncio.sleep(5)
        assert len(seen) == 2
        loop.resume(process)
        await task
        return seen

    seen = run_case(main)[0]
    assert seen[:4] == [("beat", 1.0), ("beat", 2.0), ("once", 7.5), ("beat", 7.5)]
    assert seen[4:] == [("beat", 8.5), ("beat", 9.5)]


def test_no_code_of_a_killed_process_runs_again() -> None:
    """No `finally` block and no cancellation runs until the end of the run."""
    cleaned: list[str] = []

    async def stream() -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            cleaned.append("generator")

    async def main(loop: SimLoop) -> list[str]:
        process, ready = loop.new_process("node"), loop.create_future()

        async def work() -> None:
            try:
                async for _ in stream():
                    cleaned.append("tick")
            finally:
                cleaned.append("finally")

        async def wait() -> None:
            await ready
            cleaned.append("woken")

        spawn(loop, process, work())
        spawn(loop, process, wait())
        await asyncio.sleep(2.5)
        loop.kill(process)
        ready.set_result(None)
        loop.call_soon(cleaned.append, "late", context=process.context)
        await asyncio.sleep(10)
        return list(cleaned)

    seen, loop = run_case(main)
    assert seen == ["tick", "tick"]
    assert loop.unexpected == []


def test_a_result_is_received_in_the_process_that_waits() -> None:
    """Even if another process sets the result: a frozen process sees it only after it resumes."""

    async def main(loop: SimLoop) -> list[float]:
        process, future = loop.new_process("node"), loop.create_future()
        seen: list[float] = []

        async def wait() -> None:
            await future
            seen.append(loop.time() - START_S)

        task = spawn(loop, process, wait())
        await asyncio.sleep(1)
        loop.freeze(process)
        future.set_result(None)
        await asyncio.sleep(4)
        loop.resume(process)
        await task
        return seen

    assert run_case(main)[0] == [5.0]


def test_every_step_of_a_slowed_process_takes_time() -> None:
    """Other processes are not delayed."""

    async def main(loop: SimLoop) -> tuple[float, float]:
        slow, quick = loop.new_process("slow"), loop.new_process("quick")
        slow.slow_s = 0.1

        async def work() -> float:
            for _ in range(10):
                await asyncio.sleep(0)
            return loop.time() - START_S

        first, second = spawn(loop, slow, work()), spawn(loop, quick, work())
        return await first, await second

    slow_s, quick_s = run_case(main)[0]
    assert slow_s == pytest.approx(1.0)
    assert quick_s == 0.0


def test_a_deadlock_is_reported() -> None:
    """If nothing is ready and no timer is set, nothing will ever happen."""

    async def main(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock, match="no task is ready"):
        run_case(main)


def test_a_livelock_is_reported() -> None:
    """Endless steps at one instant of virtual time."""

    async def main(loop: SimLoop) -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="without a pause"):
        run_case(main, steps_per_instant_max=1000)


def test_a_timer_that_fires_too_early_by_a_rounding_error_is_not_a_livelock() -> None:
    """Truncating a float to milliseconds may round down to the previous one. Virtual time advances
    a little, as real time does, so such a loop ends."""

    async def main(loop: SimLoop) -> int:
        times = 0
        await asyncio.sleep(29.187)
        while int(loop.time() * 1000) < 1_029_187:
            times += 1
            await asyncio.sleep(0)
        return times

    assert run_case(main)[0] > 1000


def test_a_run_ends_at_its_horizon() -> None:
    with made() as loop:
        loop.horizon_s = START_S + 10

        async def main() -> None:
            for _ in range(100):
                await asyncio.sleep(3)

        with pytest.raises(Overtime, match="10 s"):
            loop.run(main())
        assert loop.now == START_S + 9


def test_exceptions_that_no_code_handles_are_recorded() -> None:
    """A callback that raises, and an exception that is never retrieved."""

    async def main(loop: SimLoop) -> None:
        def fail() -> None:
            raise ValueError("callback")

        loop.call_soon(fail)
        loop.create_future().set_exception(ValueError("unseen"))
        await asyncio.sleep(1)

    _, loop = run_case(main)
    assert len(loop.unexpected) == 2
    assert "callback" in loop.unexpected[-1] + loop.unexpected[0]
    assert "unseen" in loop.unexpected[-1] + loop.unexpected[0]


def test_hooks_run_between_steps_and_can_end_the_run() -> None:
    """A hook runs after every step, or after every n-th."""
    with made() as loop:
        steps: list[int] = []

        def look() -> None:
            steps.append(loop.steps)
            if len(steps) == 3:
                raise AssertionError("violated")

        loop.on_step(look, every=2)

        async def main() -> None:
            for _ in range(100):
                await asyncio.sleep(1)

        with pytest.raises(AssertionError, match="violated"):
            loop.run(main())
        assert steps == [2, 4, 6]


def test_a_run_that_ends_early_leaves_nothing_behind() -> None:
    """Coroutines that await in their `finally` blocks are ended too, without warnings."""
    complaints: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, complaints.append
    try:

        async def stubborn() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                for _ in range(3):
                    with contextlib.suppress(BaseException):
                        await asyncio.sleep(1)
                asyncio.get_running_loop()

        async def main(loop: SimLoop) -> None:
            tasks = [loop.create_task(stubborn()) for _ in range(5)]
            await asyncio.sleep(1)
            raise ValueError(f"over, with {len(tasks)} tasks")

        with pytest.raises(ValueError, match="over") as caught:
            run_case(main)
        del caught
        gc.collect()
        assert complaints == []
    finally:
        sys.unraisablehook = hook


def test_threads_are_refused() -> None:
    """Code must use the Executor port."""

    async def main(loop: SimLoop) -> None:
        with pytest.raises(Exception, match="Executor port"):
            await asyncio.to_thread(int)

    run_case(main)


def test_the_trace_hash_distinguishes_runs() -> None:
    """The same run has the same hash; one more timer, or a slightly later one, changes it."""

    def hash_of(timers: int, delay_s: float) -> str:
        async def main(loop: SimLoop) -> None:
            for _ in range(timers):
                loop.call_later(5, int)
            await asyncio.sleep(delay_s)

        return run_case(main)[1].trace.hexdigest()

    assert hash_of(0, 1.0) == hash_of(0, 1.0)
    assert len({hash_of(0, 1.0), hash_of(1, 1.0), hash_of(0, 1.0000001)}) == 3
