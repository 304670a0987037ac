"""Work that a loop's thread hands to the thread that waits for it.

While a sync client waits for its loop, its thread has nothing to do; and the user's functions
(handlers, rebalance listeners, offset stores) belong on that thread: a database connection may be
tied to it, an exception should pass through it, Ctrl-C arrives on it. So the wait is a queue: the
loop puts errands into it, the waiting thread runs them, and the end of what it waits for is the
last thing that comes.
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


class ErrandLost(Exception):
    """The waiting thread was interrupted, and runs no more errands for this wait."""


class _State(Enum):
    NOBODY_WAITS = auto()
    WAITING = auto()
    INTERRUPTED = auto()


class _Errand:
    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except Exception as error:  # noqa: BLE001 - it is the submitter's
            self.future.set_exception(error)
        except BaseException:
            # Ctrl-C and exit are this thread's own affair; the submitter learns that it is off.
            self.future.set_exception(ErrandLost())
            raise
        else:
            self.future.set_result(result)

    def refuse(self) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(ErrandLost())


class Errands(Executor):
    """An executor of which the thread is whoever waits between `begin` and `end`; one at a time.

    Errands that come while nobody waits run where they come from: a client that is closed by the
    garbage collector has nobody waiting."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._state = _State.NOBODY_WAITS
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        errand = _Errand(partial(fn, *args, **kwargs))
        with self._lock:
            state = self._state
            if state is _State.WAITING:
                self._queue.put(errand)
        if state is _State.INTERRUPTED:
            errand.refuse()
        elif state is _State.NOBODY_WAITS:
            errand.run()
        return errand.future

    def begin(self) -> None:
        self._change(_State.WAITING)

    def interrupt(self) -> None:
        """Refuse all errands, those that came already too, until `end`."""
        self._change(_State.INTERRUPTED)
        self._refuse_queued()

    def end(self) -> None:
        self._change(_State.NOBODY_WAITS)
        self._refuse_queued()

    def arrive(self, awaited: object) -> None:
        """What is waited for has come; from any thread."""
        self._queue.put(awaited)

    def wait(self, awaited: object, timeout_s: float | None) -> bool:
        """True when it has come, False after something else; TimeoutError when nothing did."""
        try:
            came = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(came, _Errand):
            came.run()
        # What an earlier, interrupted wait was for may come late, and is nobody's any more.
        return came is awaited

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """There are no threads of its own to end."""

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
            if isinstance(came, _Errand):
                came.refuse()
            else:
                kept.append(came)
        for came in kept:
            self._queue.put(came)
