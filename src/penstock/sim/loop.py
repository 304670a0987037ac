"""A deterministic event loop in virtual time that runs several simulated processes under a seed.

Time stands still while anything can run, and then jumps to the next timer, so that a simulated
minute takes only as long as its work. (After many steps without a pause each further step takes a
little time.) Timers are ordered by time, then by the order in which they were set.

Order. asyncio runs callbacks in the order in which they were scheduled. A real process keeps that
order for itself, but there is no order between processes. So each process has its own queue, which
is served in order, and the seed decides which process runs next. (Most of the interleaving comes
from random delays, which rarely coincide. This rule matters when they do, and for processes that
wake one another.)

A process can be frozen (its callbacks wait, and so do its timers that become due, as after
SIGSTOP), slowed, or killed. Nothing of a killed process runs again: no `finally`, no `__aexit__`,
because a crash runs none. Its objects are kept until the run ends, because the garbage collection
of a suspended coroutine would run its `finally` blocks.

Sources of differences between two runs of a seed are removed: sets of tasks and futures are ordered
by number, not by address; cyclic garbage is collected only at fixed steps; a callback that fails,
an exception that was never retrieved and a livelock make the run fail.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
import warnings
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from random import Random  # noqa: TID251 - only for the type: instances are seeded
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from penstock.sim.failures import describe
from penstock.sim.process import PROCESS, Process, SimFuture, SimHandle, SimTask
from penstock.sim.trace import FLUSH_BYTES, Trace, pack_step

T = TypeVar("T")

if TYPE_CHECKING:
    # The type checker wants every abstract method implemented; asyncio itself does not need
    # them all.
    _Base = asyncio.BaseEventLoop
else:
    _Base = asyncio.AbstractEventLoop

START_S: Final = 1000.0
"""Where virtual time begins. Not at 0, which code might interpret as `never`."""
_STEPS_FREE: Final = 2000
"""How many steps without a pause take no virtual time."""
_STEP_S: Final = 1e-6
_CLOSES_MAX: Final = 1000


class SimulationError(Exception):
    """The run itself cannot continue."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is set."""


class Livelock(SimulationError):
    """Too many steps without a pause."""


class Overtime(SimulationError):
    """The run has used up its virtual time."""


class SimLoop(_Base):
    def __init__(
        self,
        draws: Random,
        *,
        trace: Trace | None = None,
        gc_every_steps: int = 50_000,
        steps_per_instant_max: int = 100_000,
    ) -> None:
        self.now = START_S
        self.steps = 0
        self.world = Process("world", 0)
        self.stepped = self.world
        """The process that ran the last step."""
        self.trace = trace or Trace(self.time)
        self.horizon_s = float("inf")
        """The run ends with `Overtime` when time reaches this."""
        self.unexpected: list[str] = []
        """Failures of callbacks, and exceptions that were never retrieved."""
        self._draw = draws.random
        self._gc_every = gc_every_steps
        self._steps_per_instant_max = steps_per_instant_max
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._sequence = 0
        self._numbers = 0
        self._processes = 1
        self._runnable: list[Process] = []
        self._remains: list[Any] = []
        self._hooks: list[tuple[int, Callable[[], None]]] = []
        self._instant_from = 0
        self._running = False
        self._closed = False
        self._freezes = False

    # Processes

    def new_process(self, name: str) -> Process:
        process = Process(name, self._processes)
        self._processes += 1
        return process

    def freeze(self, process: Process) -> None:
        process.frozen = True
        self._unlist(process)

    def resume(self, process: Process) -> None:
        process.frozen = False
        self._enlist(process)

    def kill(self, process: Process) -> None:
        """Stops the process for good: nothing of it runs again."""
        process.dead = True
        self._unlist(process)
        self._remains.extend(process.ready)
        process.ready.clear()
        self._remains.extend(
            task
            for task in asyncio.all_tasks(self)
            if isinstance(task, SimTask) and task.process is process
        )

    def on_step(self, hook: Callable[[], None], every: int = 1) -> None:
        """Calls the hook between steps. An exception that it raises ends the run."""
        self._hooks.append((every, hook))

    def _enlist(self, process: Process) -> None:
        if process.ready and not process.queued and process.may_run:
            process.queued = True
            self._runnable.append(process)

    def _unlist(self, process: Process) -> None:
        if process.queued:
            process.queued = False
            self._runnable.remove(process)

    # Callbacks and time

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override] # asyncio's is typed by the callback's arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        process: Process = context.get(PROCESS) or self.world
        handle = SimHandle(self.now, callback, args, context, process)
        if process.dead or self._closed:
            self._remains.append(handle)
            return handle
        process.ready.append(handle)
        if not process.queued and not (process.frozen or process.held):
            process.queued = True
            self._runnable.append(process)
        return handle

    # This and the next ones return `SimHandle`, which does not inherit from asyncio's handles.
    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)

    # See `call_soon_threadsafe`.
    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        process: Process = context.get(PROCESS) or self.world
        handle = SimHandle(when, callback, args, context, process)
        if process.dead or self._closed:
            self._remains.append(handle)
            return handle
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    # See `call_soon_threadsafe`.
    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> SimFuture:
        self._numbers += 1
        future = SimFuture(loop=self)
        future.number = self._numbers
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> SimTask:
        if context is None:
            context = copy_context()
        self._numbers += 1
        task = SimTask.__new__(SimTask)
        task.number = self._numbers
        task.process = context.get(PROCESS) or self.world
        # Called by hand: the number must be set before, because this registers the task by its
        # hash.
        task.__init__(  # type: ignore[misc]
            coro, loop=self, name=name or f"task-{self._numbers}", context=context
        )
        return task

    # Running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine to its end, in the world's process."""
        with self._switched_on():
            task = self.create_task(main, context=self.world.context)
            self._serve(task)
            # Collects garbage so that exceptions that were never retrieved are reported in
            # this run.
            gc.collect()
            result: T = task.result()
            return result

    # asyncio also accepts futures here. The simulator passes coroutines only.
    run_until_complete = run  # type: ignore[assignment]

    @contextmanager
    def _switched_on(self) -> Generator[None, None, None]:
        hooks, was_enabled = sys.get_asyncgen_hooks(), gc.isenabled()
        # A process that runs many seeds has already frozen the objects of its imports, before
        # any run.
        self._freezes = gc.get_freeze_count() == 0
        callbacks, gc.callbacks[:] = list(gc.callbacks), []
        gc.disable()
        if self._freezes:
            gc.freeze()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)
            gc.callbacks[:] = callbacks
            if was_enabled:
                gc.enable()

    def _serve(self, main: SimTask) -> None:
        """Runs steps until the main task is done."""
        runnable, draw, timers = self._runnable, self._draw, self._timers
        trace, hooks, gc_every = self.trace, self._hooks, self._gc_every
        buffer, names = trace.buffer, trace.steps
        is_done = main.done
        while not is_done():
            if not runnable:
                self._jump(main)
                continue
            count = len(runnable)
            at = int(draw() * count) if count > 1 else 0
            process = runnable[at]
            ready = process.ready
            handle = ready.popleft()
            if not ready:
                process.queued = False
                runnable[at] = runnable[-1]
                runnable.pop()
            if handle._cancelled:
                continue
            steps = self.steps = self.steps + 1
            self.stepped = process
            buffer += pack_step(self.now, process.index, len(ready) & 0xFFFF, len(timers))
            if len(buffer) > FLUSH_BYTES:
                trace.flush()
            if names is not None:
                names.append((self.now, process.index, _name(handle._callback)))
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 - the exception handler records it
                self.call_exception_handler(
                    {"message": f"a callback failed: {handle!r}", "exception": error}
                )
            if process.slow_s:
                self._hold(process)
            for every, hook in hooks:
                if every == 1 or steps % every == 0:
                    hook()
            if steps % gc_every == 0:
                gc.collect()
            if steps - self._instant_from > _STEPS_FREE:
                self._creep(handle)

    def _creep(self, handle: SimHandle) -> None:
        """Advances time by a little after many steps without a pause.

        Real time moves while code spins. A timer that fires early by a rounding error is set again
        until it is late enough; with time standing still that would never end.
        """
        self.now += _STEP_S
        limit = self._steps_per_instant_max
        if self.steps - self._instant_from > limit:
            raise Livelock(
                f"{limit} steps without a pause at {self.now - START_S:.6f} s; the last was "
                f"{handle.process.name}: {handle!r}"
            )

    def _jump(self, main: SimTask) -> None:
        """Moves time to the next moment at which something can run."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(self._deadlock(main))
        when = timers[0][0]
        if when > self.now:
            if when > self.horizon_s:
                raise Overtime(f"the run did not end within {self.horizon_s - START_S:g} s")
            self.now = when
            self._instant_from = self.steps
        while timers and timers[0][0] <= when:
            handle = heapq.heappop(timers)[2]
            process = handle.process
            if process.dead:
                self._remains.append(handle)
            elif not handle._cancelled:
                process.ready.append(handle)
                self._enlist(process)

    def _hold(self, process: Process) -> None:
        """Delays the process by the time that its step takes."""
        process.held = True
        self._unlist(process)
        self.call_later(process.slow_s, self._release, process, context=self.world.context)

    def _release(self, process: Process) -> None:
        process.held = False
        self._enlist(process)

    def _deadlock(self, main: SimTask) -> str:
        waiting = [
            f"{task.process.name}: {task.get_name()} {task.get_coro()!r}"
            for task in sorted(self._tasks(), key=lambda task: task.number)
            if not task.process.dead
        ]
        return f"deadlock: no task is ready and no timer is set; {main!r} waits, also {waiting}"

    def _tasks(self) -> list[SimTask]:
        return [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Closes an asynchronous generator that was dropped before it finished."""
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    # Closing

    def close(self) -> None:
        """Releases everything that is still suspended. Its cleanup code runs now, on a loop that
        does nothing any more."""
        if self._closed:
            return
        self._closed = True
        hook, sys.unraisablehook = sys.unraisablehook, _ignore
        # Exceptions from the finally blocks of suspended coroutines are of no interest.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events._set_running_loop(self)
            try:
                self._let_go()
                gc.collect()
            finally:
                events._set_running_loop(None)
                sys.unraisablehook = hook
        if self._freezes:
            gc.unfreeze()

    def _let_go(self) -> None:
        for task in {id(task): task for task in (*self._tasks(), *self._remains)}.values():
            if isinstance(task, SimTask) and not task.done():
                # Not in the type stubs. Otherwise asyncio logs that the task never ended.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _end(task.get_coro())
        self._remains.clear()
        self._timers.clear()
        self._hooks.clear()

    # The rest of asyncio's loop interface

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            raise NotImplementedError("asyncio's debug mode reads the real clock")

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return
        error = context.get("exception")
        process = copy_context().get(PROCESS) or self.world
        said = f"{process.name}: {context.get('message')}: {describe(error) if error else error}"
        self.unexpected.append(said)
        self.trace.show(said)
        if error is not None and self.trace.keep:
            self.trace.show("".join(_lines(error)))

    default_exception_handler = call_exception_handler

    # It always raises, so it has no result.
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("there are no threads here: go through the Executor port")


def _end(coroutine: Any) -> None:
    """Closes a coroutine completely. A finally block that awaits suspends again, and is
    closed again."""
    for _ in range(_CLOSES_MAX):
        with suppress(BaseException):
            coroutine.close()
        if getattr(coroutine, "cr_frame", None) is None:
            break


def _ignore(unraisable: object) -> None:
    pass


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, SimTask):
        coroutine: Any = owner.get_coro()
        return f"{owner.get_name()} {coroutine.__qualname__}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def _lines(error: BaseException) -> list[str]:
    import traceback  # noqa: PLC0415 - needed only when a run fails

    return traceback.format_exception(error)
