"""An executor: an event loop's thread runs calls on the thread that waits for it.

While a sync client waits for its event loop, its thread is idle. The user's functions (handlers,
rebalance listeners, offset stores) should run on that thread: a database connection may be tied to
it, exceptions should propagate through it, and Ctrl-C arrives on it. So the wait is a queue. The
loop puts calls into it, the waiting thread runs them, and the completion of the call it waits for
is the last item.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import Enum, auto
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class CallerGone(Exception):
    """The waiting thread was interrupted and runs no more calls for this wait."""


class _State(Enum):
    NOBODY_WAITS = auto()
    WAITING = auto()
    INTERRUPTED = auto()


class _Call:
    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except Exception as error:  # noqa: BLE001 - passed to the submitter
            self.future.set_exception(error)
        except BaseException:
            # Ctrl-C and exit belong to this thread. The submitter only learns that the call was
            # lost.
            self.future.set_exception(CallerGone())
            raise
        else:
            self.future.set_result(result)

    def refuse(self) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(CallerGone())


class CallerExecutor(Executor):
    """An executor that runs calls on the thread that waits between `begin` and `end`.

    Only one thread waits at a time. While none waits, calls run on the thread that submits them:
    nothing waits for a client that the garbage collector closes.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._state = _State.NOBODY_WAITS
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = _Call(partial(fn, *args, **kwargs))
        with self._lock:
            state = self._state
            if state is _State.WAITING:
                self._queue.put(call)
        if state is _State.INTERRUPTED:
            call.refuse()
        elif state is _State.NOBODY_WAITS:
            call.run()
        return call.future

    def begin(self) -> None:
        self._change(_State.WAITING)

    def interrupt(self) -> None:
        """Refuses all calls until `end`, including those that are queued already."""
        self._change(_State.INTERRUPTED)
        self._refuse_queued()

    def end(self) -> None:
        self._change(_State.NOBODY_WAITS)
        self._refuse_queued()

    def arrive(self, awaited: object) -> None:
        """Reports that the awaited call is complete. May be called from any thread."""
        self._queue.put(awaited)

    def wait(self, awaited: object, timeout_s: float | None) -> bool:
        """Waits for the next item and runs it if it is a call.

        Returns True if the item is `awaited`. Raises TimeoutError if nothing arrived.
        """
        try:
            came = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(came, _Call):
            came.run()
        # The result of an earlier, interrupted wait may arrive late. It is ignored.
        return came is awaited

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing: this executor has no threads."""

    def _change(self, state: _State) -> None:
        with self._lock:
            self._state = state

    def _refuse_queued(self) -> None:
        kept = []
        while True:
            try:
                came = self._queue.get_nowait()
            except queue.Empty:
                break
            if isinstance(came, _Call):
                came.refuse()
            else:
                kept.append(came)
        for came in kept:
            self._queue.put(came)
