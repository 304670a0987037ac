"""One thread with one event loop, through which a sync client calls its async client.

    sync caller --call--> loop's thread: the async client, its tasks, its sockets
                <-------- result, or calls to run meanwhile (`caller_executor.py`)

Each client has its own portal. It starts when the client first needs it and stops when the client
is closed. Clients share nothing, so no client can delay another. Special cases:

*Interpreter exit.* The thread is a daemon, so it cannot keep the interpreter from exiting.
`lifecycle.py` handles clients that are still open then, or that were dropped.

*Fork.* The child process has the client but not its thread. Using the client there raises an error
that says so. The parent is not affected.

*Ctrl-C during a wait.* The coroutine is cancelled and gets a moment to finish; then the interrupt
propagates. A result that arrives at that moment is kept where that matters: see `Consumer.poll`.

*Called inside another event loop.* This works, and blocks that loop, as any sync call does. A call
from the portal's own thread, such as from a delivery callback, would wait for itself and is
refused.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.errors import Closed, RequestTimedOut
from penstock.ports import Clock

T = TypeVar("T")

_WIND_UP_S: Final = 5.0
_GRACE_S: Final = 5.0
"""Added to a call's timeout. The async side enforces the timeout itself; this grace period only
ends waits for a loop that no longer runs."""


_LOOK_S: Final = 0.1
"""How often a wait checks that the portal's thread is still alive."""


class Forks:
    """Counts the forks between this process and the one that first imported this module."""

    count = 0

    @classmethod
    def happened(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.happened)


class _Call:
    """One coroutine that runs through the portal."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waiter: CallerExecutor) -> None:
        self._coroutine = coroutine
        self._waiter = waiter
        self._task: asyncio.Task[Any] | None = None

    def begin(self, owner: set[asyncio.Task[Any]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        owner.add(self._task)
        self._task.add_done_callback(owner.discard)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio warns when the caller was interrupted.
        self._waiter.arrive(self)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def result(self) -> Any:
        assert self._task is not None
        if self._task.cancelled():
            raise Closed("the client was closed while this call was waiting")
        return self._task.result()


class Portal:
    """Owns the thread and the event loop of one sync client."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._forks = Forks.count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def is_forked(self) -> bool:
        return self._forks != Forks.count

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def call(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        *,
        on_caller: CallerExecutor | None = None,
        watch: Callable[[], object] | None = None,
    ) -> T:
        """Runs the coroutine on the loop and waits for its result.

        `timeout_s` is the timeout that the coroutine itself enforces; None if it has its own limit.
        `watch` is called from time to time during the wait.
        """
        try:
            self._check()
        except BaseException:
            coroutine.close()
            raise
        waiter = CallerExecutor() if on_caller is None else on_caller
        call = _Call(coroutine, waiter)
        waiter.begin()
        try:
            self._post(coroutine, lambda: call.begin(self._tasks))
            self._wait(call, waiter, timeout_s, watch)
        except BaseException:
            waiter.interrupt()
            self._wind_up(call, waiter)
            raise
        finally:
            waiter.end()
        return cast(T, call.result())

    def tell(self, work: Callable[[], object]) -> None:
        """Schedules a plain function on the loop without waiting for it."""
        self._check()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)

    def stop(self, timeout_s: float = _WIND_UP_S) -> None:
        """Stops the loop and its thread, and cancels what still runs on it."""
        if self.is_forked:
            return
        self._request_stop()
        if not self.is_own_thread:
            self._thread.join(timeout_s)

    def close_unattended(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a final coroutine and stops, without anything waiting for it."""
        if self.is_forked or self._loop is None or not self._thread.is_alive():
            return

        async def last() -> None:
            try:
                await make()
            finally:
                self._request_stop()

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(last())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            return  # The loop has stopped in the meantime.

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def _request_stop(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            return  # The loop has stopped already.

    def _check(self) -> None:
        if self.is_forked:
            raise Closed(
                f"{self._name} was made before this process was forked, and its thread exists "
                "only in the parent process: make a new one after the fork"
            )
        if self.is_own_thread:
            raise RuntimeError(
                f"{self._name} was called from one of its own callbacks, which would deadlock: "
                "make the call on another thread"
            )

    def _post(self, coroutine: Coroutine[Any, Any, Any], work: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            coroutine.close()
            raise Closed(f"{self._name} is closed: make a new one") from None

    def _wait(
        self,
        call: _Call,
        waiter: CallerExecutor,
        timeout_s: float | None,
        watch: Callable[[], object] | None,
    ) -> None:
        clock = self._clock
        end = None if timeout_s is None else clock.monotonic() + timeout_s + _GRACE_S
        while True:
            try:
                if waiter.wait(call, _LOOK_S):
                    return
                idle = False
            except TimeoutError:
                idle = True
            if watch is not None:
                watch()
            if not idle:
                continue
            if not self._thread.is_alive():
                raise Closed(f"{self._name} was closed while a call was waiting")
            if end is not None and clock.monotonic() >= end:
                raise RequestTimedOut(
                    f"{self._name} did not answer within {timeout_s:g} s: a callback may be "
                    "blocking its event loop"
                )

    def _wind_up(self, call: _Call, waiter: CallerExecutor) -> None:
        """Cancels the coroutine and waits for its end. A coroutine that does not end is left to the
        loop."""
        assert self._loop is not None
        end = self._clock.monotonic() + _WIND_UP_S
        try:
            self._loop.call_soon_threadsafe(call.cancel)
            while not waiter.wait(call, max(0.0, end - self._clock.monotonic())):
                pass
        except (RuntimeError, TimeoutError):
            return


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional: slower without it, but it works
    except ImportError:
        return None
    return uvloop.new_event_loop
