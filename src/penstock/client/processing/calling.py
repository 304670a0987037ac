"""Calling a handler, wherever it has to run: one lane's records at a time.

A coroutine function runs on the event loop. A plain function might block, and the loop has
heartbeats to send, so it runs on a thread: of a pool, or the one that an executor stands for.
A hop to a thread costs more than many handlers do; so a thread is given several records of its lane
at once, comes back when it has spent a slice of time on them, and says how far it got.
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
    """A record, and where to say that it is done."""

    record: Record[K, V]
    window: Window


def is_async(handler: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether calling it makes a coroutine
    )


class Piece(Generic[K, V]):
    """Some jobs of one lane, in order, and how far they have come.

    Whoever calls the handler counts `done`; the loop counts `finished` after it."""

    __slots__ = ("done", "finished", "jobs")

    def __init__(self, jobs: Sequence[Job[K, V]]) -> None:
        self.jobs = jobs
        self.done = 0
        self.finished = 0

    @property
    def in_hand(self) -> int | None:
        """The offset of the record that is being handled, if one is."""
        done = self.done
        return self.jobs[done].record.offset if done < len(self.jobs) else None


class Caller(Generic[K, V]):
    """Calls the handler for the jobs of a piece, until one fails or is not wanted any more.

    `finish` is called, on the loop, for each job that was handled."""

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
        """What the job after the `done` ones raised; None when none did."""
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
            # What was done counts, also when the thread was interrupted or is waited for no more.
            self._collect(piece)
            self._on_threads.discard(piece)

    def collect(self) -> None:
        """Finish what threads have done of the pieces that they are still busy with."""
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
            "the handler is a plain function that returned an awaitable, which nobody would await: "
            "write it as `async def`"
        )
