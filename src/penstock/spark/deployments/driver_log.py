"""The log of a pipeline's drivers: a file of limited size on the worker, and the cluster's topic.

Lines are collected and written a few times per second, off the event loop. A driver that prints
without end does not fill the disk or the topic: the file is replaced when it is full, and lines
beyond a limit are only counted. If the task that waits for the writing is cancelled, the writing
goes on, so no line is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.ports import Executor
from penstock.spark.deployments.logged_errors import WRITE_ERRORS, FailedWrites

_log = logging.getLogger(__name__)
FILE_NAME: Final = "driver.log"
FILE_BYTES_MAX: Final = 16 << 20
LINES_MAX: Final = 2_000
"""How many lines are kept at most between two flushes."""
CHARACTERS_MAX: Final = 4 << 20
"""How many characters these lines have at most."""

Send = Callable[[int, Sequence[str]], Awaitable[None]]
"""Sends lines of a version to the cluster."""


class DriverLog:
    """Belongs to one event loop."""

    def __init__(self, folder: str, executor: Executor, send: Send, name: str = "a driver") -> None:
        self._path = Path(folder, FILE_NAME)
        self._executor = executor
        self._send = send
        self._lines: list[str] = []
        self._characters = 0
        self._left_out = 0
        self._version = 0
        self._writing: asyncio.Task[None] | None = None
        self._unsent = FailedWrites(f"lines of the log of {name} to the cluster")
        self._unstored = FailedWrites(f"the log of {name} to {self._path}")

    def add(self, version: int, lines: Sequence[str]) -> None:
        self._version = version
        for line in lines:
            size = self._characters + len(line)
            if len(self._lines) < LINES_MAX and size <= CHARACTERS_MAX:
                self._lines.append(line)
                self._characters = size
            else:
                self._left_out += 1

    async def flush(self) -> None:
        """Writes what was added. A cluster that cannot be reached loses the lines; the file has
        them. Waits for an earlier call first."""
        if self._writing is None:
            if not self._has_lines:
                return
            self._writing = asyncio.create_task(self._write(), name="writes the log of a driver")
        await asyncio.shield(self._writing)

    async def close(self, within_s: float) -> None:
        """Writes everything that was added."""
        try:
            async with asyncio.timeout(within_s):
                while self._writing is not None or self._has_lines:
                    await self.flush()
        except TimeoutError:
            _log.warning(
                "the last lines of a driver did not reach the cluster within %.0f s: see %s",
                within_s, self._path,
            )  # fmt: skip
        finally:
            if (writing := self._writing) is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    @property
    def _has_lines(self) -> bool:
        return bool(self._lines or self._left_out)

    async def _write(self) -> None:
        try:
            await self._write_all()
        except Exception as error:  # noqa: BLE001 - nobody may wait for it any more
            _log.exception("cannot write the log of a driver")
            self._unsent.note(error)
        finally:
            self._writing = None

    async def _write_all(self) -> None:
        lines, self._lines, self._characters = self._lines, [], 0
        if self._left_out:
            lines.append(f"({self._left_out:,} more lines were left out)")
            self._left_out = 0
        version = self._version
        await self._store(lines)
        try:
            await self._send(version, lines)
        except WRITE_ERRORS as error:
            self._unsent.note(error)
            await self._store([f"(not sent to the cluster: {error})"])
        else:
            self._unsent.worked()

    async def _store(self, lines: Sequence[str]) -> None:
        try:
            await self._executor.run(lambda: _append(self._path, lines))
        except OSError as error:
            self._unstored.note(error)
        else:
            self._unstored.worked()


def _append(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines)
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(data)
        size = file.tell()
    if size > FILE_BYTES_MAX:
        os.replace(path, path.with_suffix(".log.1"))
