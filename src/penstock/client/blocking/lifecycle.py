"""The lifecycle of a sync client: it starts on first use and is closed in every case.

A client connects when it is first used or entered as a context manager. It ends with `close`. If
`close` is never called, it ends when the client is garbage collected, without anything waiting for
it. Clients that are still open when the interpreter exits are closed then, within `EXIT_S` in
total: records that were sent but not flushed get that long to be delivered.
"""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.blocking.portal import Forks, Portal
from penstock.client.errors import Closed
from penstock.ports import Clock

T = TypeVar("T")

EXIT_S: Final = 5.0
_DROPPED_S: Final = 5.0

Start = Callable[[], Coroutine[Any, Any, None]]
Close = Callable[[float | None], Coroutine[Any, Any, None]]


class Lifecycle:
    """Owns the async client and its portal.

    It does not refer to the sync client, so that the sync client can be garbage collected.
    """

    def __init__(self, name: str, clock: Clock, start: Start, close: Close) -> None:
        self._name = name
        self._clock = clock
        self._start = start
        self._close = close
        self._forks = Forks.count
        self._lock = threading.Lock()
        self._portal: Portal | None = None
        self._closed = False

    @property
    def is_started(self) -> bool:
        return self._portal is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_forked(self) -> bool:
        return self._forks != Forks.count

    def watch(self, client: object) -> None:
        """Closes the async client when this sync client is garbage collected."""
        finalizer = weakref.finalize(client, self._drop)
        finalizer.atexit = False
        _open.add(self)

    def portal(self) -> Portal:
        """Returns the portal to the async client, and starts the client if necessary."""
        if self.is_forked:
            raise Closed(
                f"this {self._name} was made before the process was forked, and its thread exists "
                "only in the parent process: make a new one after the fork"
            )
        with self._lock:
            if self._closed:
                raise Closed(f"the {self._name} is closed: make a new one")
            if self._portal is None:
                portal = Portal(f"penstock {self._name}", self._clock)
                try:
                    portal.call(self._start())
                except BaseException:
                    portal.stop()
                    raise
                self._portal = portal
            return self._portal

    def call(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout_s: float | None = None,
        *,
        on_caller: CallerExecutor | None = None,
        watch: Callable[[], object] | None = None,
    ) -> T:
        try:
            portal = self.portal()
        except BaseException:
            coroutine.close()
            raise
        return portal.call(coroutine, timeout_s, on_caller=on_caller, watch=watch)

    def close(
        self, timeout_s: float | None = None, *, on_caller: CallerExecutor | None = None
    ) -> None:
        portal = self._end()
        if portal is None:
            return
        try:
            portal.call(self._close(timeout_s), timeout_s, on_caller=on_caller)
        finally:
            portal.stop()

    def _end(self) -> Portal | None:
        """Marks the client closed. Returns the portal if the caller has to close it."""
        _open.discard(self)
        if self.is_forked:
            return None
        with self._lock:
            if self._closed:
                return None
            self._closed = True
            return self._portal

    def _drop(self) -> None:
        """Closes the client after garbage collection, which may run on any thread and must not
        wait."""
        portal = self._end()
        if portal is not None:
            portal.close_unattended(lambda: self._close(_DROPPED_S))
            warnings.warn(
                f"a {self._name} was garbage-collected while open: use `with`, or call close()",
                ResourceWarning,
                stacklevel=2,
            )


_open: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


def _close_all() -> None:
    left = list(_open)
    for life in left:
        try:
            life.close(EXIT_S / len(left))
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            warnings.warn(
                f"a client could not be closed at exit: {error}", ResourceWarning, stacklevel=1
            )


atexit.register(_close_all)
