"""The log of a pipeline's drivers: a file of limited size on the worker, and the cluster's topic.

Lines are collected and written a few times per second, off the event loop. A driver that prints
without end does not fill the disk or the topic: the file is replaced when it is full, and lines
beyond a limit are only counted.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from penstock.client.errors import ClientError
from penstock.ports import Executor

FILE_NAME: Final = "driver.log"
FILE_BYTES_MAX: Final = 16 << 20
LINES_MAX: Final = 2_000
"""How many lines are kept at most between two flushes."""

Send = Callable[[int, Sequence[str]], Awaitable[None]]
"""Sends lines of a version to the cluster."""


class DriverLog:
    def __init__(self, folder: str, executor: Executor, send: Send) -> None:
        self._path = Path(folder, FILE_NAME)
        self._executor = executor
        self._send = send
        self._lines: list[str] = []
        self._left_out = 0
        self._version = 0

    def add(self, version: int, lines: Sequence[str]) -> None:
        self._version = version
        room = LINES_MAX - len(self._lines)
        self._lines += lines[:room]
        self._left_out += max(len(lines) - room, 0)

    async def flush(self) -> None:
        """Writes what was added. A cluster that cannot be reached loses the lines; the file has
        them."""
        lines, self._lines = self._lines, []
        if self._left_out:
            lines.append(f"({self._left_out:,} more lines were left out)")
            self._left_out = 0
        if not lines:
            return
        version = self._version
        await self._executor.run(lambda: _append(self._path, lines))
        try:
            await self._send(version, lines)
        except ClientError as error:
            text = f"(not sent to the cluster: {error})"
            await self._executor.run(lambda: _append(self._path, [text]))


def _append(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines)
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(data)
        size = file.tell()
    if size > FILE_BYTES_MAX:
        os.replace(path, path.with_suffix(".log.1"))
