"""Calls a handler for the records of one lane, on the event loop or on a thread.

A coroutine function runs on the event loop. A plain function might block, and the loop has to send
heartbeats, so it runs on a thread: of a pool, or of the executor that was given. Switching to a
thread costs more than many handlers do. So a thread gets several records of its lane at once. It
returns when its time slice is over and reports how far it got.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from penstock.client.errors import OptionError
from penstock.client.model import Record
from penstock.client.processing.contracts import Handler
from penstock.client.processing.tracker import Window
from penstock.ports import Clock

K = TypeVar("K")
V = TypeVar("V")

_SLICE_S: Final = 0.05


class Job(NamedTuple, Generic[K, V]):
    """A record, and the window in which to mark it as done."""

    record: Record[K, V]
    window: Window


def is_async(handler: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    )


class Piece(Generic[K, V]):
    """Some jobs of one lane, in order, and how many of them are done.

    The code that calls the handler counts `done`; the event loop counts `finished` afterwards.
    """

    __slots__ = ("done", "finished", "jobs")

    def __init__(self, jobs: Sequence[Job[K, V]]) -> None:
        self.jobs = jobs
        self.done = 0
        self.finished = 0

    @property
    def in_hand(self) -> int | None:
        """The offset of the record that is being handled, or None."""
        done = self.done
        return self.jobs[done].record.offset if done < len(self.jobs) else None


class HandlerCalls(Generic[K, V]):
    """Calls the handler for the jobs of a piece, until one fails or is no longer needed.

    `finish` is called on the event loop for each job that was handled.
    """

    def __init__(
        self,
        handler: Handler[K, V],
        finish: Callable[[Job[K, V]], None],
        clock: Clock,
        executor: Executor | None,
    ) -> None:
        self._handler = handler
        self._finish = finish
        self._clock = clock
        self._executor = executor
        self._on_threads: set[Piece[K, V]] = set()
        self.call = self._on_loop if executor is None else self._on_thread

    async def _on_loop(self, piece: Piece[K, V]) -> Exception | None:
        """Returns the error of the job at index `done`, or None if no job failed."""
        handler = cast("Callable[[Record[K, V]], Awaitable[object]]", self._handler)
        for job in piece.jobs[piece.done :]:
            if not job.window.wants(job.record.offset):
                return None
            try:
                await handler(job.record)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
                return error
            piece.done += 1
            self._finish(job)
        return None

    async def _on_thread(self, piece: Piece[K, V]) -> Exception | None:
        self._on_threads.add(piece)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._slice, piece)
        finally:
            # Finished records count even if the thread was interrupted, or nothing waits for it any
            # more.
            self._collect(piece)
            self._on_threads.discard(piece)

    def collect(self) -> None:
        """Finishes the jobs that threads have handled so far, of pieces they are still working
        on."""
        for piece in self._on_threads:
            self._collect(piece)

    def _collect(self, piece: Piece[K, V]) -> None:
        done = piece.done
        for job in piece.jobs[piece.finished : done]:
            self._finish(job)
        piece.finished = done

    def _slice(self, piece: Piece[K, V]) -> Exception | None:
        handler, clock = self._handler, self._clock
        end = clock.monotonic() + _SLICE_S
        for job in piece.jobs[piece.done :]:
            if not job.window.wants(job.record.offset):
                break
            try:
                _refuse_awaitable(handler(job.record))
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
                return error
            piece.done += 1
            if clock.monotonic() >= end:
                break
        return None


def _refuse_awaitable(result: Any) -> None:
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise OptionError(
            "the handler is a plain function but returned an awaitable, which would never be "
            "awaited: write it as `async def`"
        )
