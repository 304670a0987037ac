"""Writes the status and the history of one pipeline, as long as this worker may.

The status is written again when its details have changed (`mark_dirty`), and it stays marked until
a write has succeeded. A write that the brokers refuse is logged, and the pipeline goes on. There is
one exception: if the status says something new on which the next owner relies, such as where the
tables are, no driver may begin before it is written. Then `report` raises the refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.ports import Clock
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.logged_errors import WRITE_ERRORS, FailedWrites, is_refused
from penstock.spark.deployments.model import Event, Status

_RETRY_S: Final = 1.0
_FINISH_S: Final = 5.0


class StatusWriter:
    def __init__(
        self,
        name: str,
        catalog: Catalog,
        clock: Clock,
        may_write: Callable[[], bool],
        complete: Callable[[Status], Status | None],
    ) -> None:
        """`may_write` says whether no other worker writes it. `complete` adds the details to a
        status; it returns None if there is nothing to write."""
        self._catalog = catalog
        self._clock = clock
        self._may_write = may_write
        self._complete = complete
        self._dirty = False
        self._last: Status | None = None
        self._facts: tuple[object, ...] | None = None
        """What the next owner relies on, in the last status that was written."""
        self._failed = FailedWrites(f"the status of {name}")
        self._failed_records = FailedWrites(f"the history of {name}")

    def resume(self, previous: Status | None) -> None:
        """The pipeline was taken; this is the status that is in the cluster."""
        self._facts = None if previous is None else _facts(previous)
        self._last = None

    def mark_dirty(self) -> None:
        """Details that are reported have changed."""
        self._dirty = True

    async def progress(self, status: Status) -> None:
        """Writes the status if its details have changed. The next call repeats what has failed."""
        if not self._dirty:
            return
        try:
            await self._write(status)
        except WRITE_ERRORS as error:
            self._failed.note(error)

    async def report(self, status: Status) -> None:
        """Writes a status, and tries it again while the brokers cannot be reached. Raises a refusal
        if the next owner must know what the status says."""
        while True:
            try:
                await self._write(status)
            except WRITE_ERRORS as error:
                self._failed.note(error)
                if not self._may_write():
                    return
                if is_refused(error):
                    if _facts(status) != self._facts:
                        raise
                    return
                await self._clock.sleep(_RETRY_S)
            else:
                return

    async def record(self, event: Event) -> None:
        """Adds an event to the history. One that is refused is left out."""
        while True:
            try:
                await self._catalog.record(event)
            except WRITE_ERRORS as error:
                self._failed_records.note(error)
                if is_refused(error) or not self._may_write():
                    return
                await self._clock.sleep(_RETRY_S)
            else:
                self._failed_records.worked()
                return

    async def finish(self) -> None:
        """Writes the last status again if its details have changed since, or if it failed. Called
        before another worker may have the pipeline."""
        last = self._last
        if self._dirty and last is not None and self._may_write():
            now_ms = self._clock.wall_ms()
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_S):
                    await self.progress(replace(last, updated_ms=now_ms))

    async def _write(self, status: Status) -> None:
        self._last = status
        self._dirty = False
        try:
            told = self._complete(status)
            if told is not None:
                await self._catalog.report(told)
        except BaseException:  # A cancellation, too: it may not have arrived.
            self._dirty = True
            raise
        self._facts = _facts(status)
        self._failed.worked()


def _facts(status: Status) -> tuple[object, ...]:
    """Returns what the next owner relies on: where the tables are, and what was begun again."""
    return status.storage_id, status.reset_revision, status.generation, status.generations
