"""A driver as a child process: its events, its commands, its log, its end.

The driver begins a session of its own, so everything that it starts can be found and killed. It is
over only when no process of that session runs any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.ports import Clock, Executor
from penstock.spark.pipelines.process_session import kill_session

MODULE: Final = "penstock.spark.pipelines.controlled_driver"
_log = logging.getLogger(__name__)
_EVENT_BYTES_MAX: Final = 1 << 20
_LINE_CHARACTERS_MAX: Final = 8 << 10
_READ_BYTES: Final = 64 << 10
_GONE_AGAIN_S: Final = 0.02
_EXIT_S: Final = 10.0
_HIDDEN: Final = "***"
_SECRET_LEAST: Final = 4
"""Shorter values are not hidden: they would be found in any text."""


@dataclass(frozen=True, slots=True)
class DriverStart:
    """How a driver is started."""

    python: str
    master: str
    folder: str
    """Its working folder."""
    settings: Mapping[str, str] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)
    """Values that are hidden in its log and its events."""


class DriverProcess:
    """A driver. Call `run` in a task: it returns when nothing of the driver runs any more."""

    def __init__(
        self,
        start: DriverStart,
        executor: Executor,
        clock: Clock,
        on_event: Callable[[Mapping[str, Any]], None],
        on_lines: Callable[[list[str]], None],
    ) -> None:
        self._start = start
        self._executor = executor
        self._clock = clock
        self.on_event = on_event
        self.on_lines = on_lines
        self._process: asyncio.subprocess.Process | None = None
        self._pending: list[bytes] = []
        self._killed = False
        self._hidden = sorted(
            {each for each in start.secrets if len(each) >= _SECRET_LEAST}, key=len, reverse=True
        )

    @property
    def pid(self) -> int | None:
        """The id of its process and of its session."""
        return None if self._process is None else self._process.pid

    async def run(self) -> int:
        """Runs the driver to its end. Returns its exit code, which is negative for a signal."""
        if self._was_killed():
            return -1
        receiving, sending = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(sending),
                cwd=self._start.folder,
                env=dict(self._start.environment),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(sending,),
                start_new_session=True,
            )
        except BaseException:
            os.close(receiving)
            raise
        finally:
            os.close(sending)
        self._process = process
        try:
            if self._was_killed():  # While it was started.
                self.kill()
            for line in self._pending:
                self._write(line)
            self._pending.clear()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_log())
                await self._read_events(receiving)
                # Only the driver itself has the pipe of events: it is ending. Processes that it
                # leaves behind have its output open, and `wait` would wait for them.
                await self._exited(process)
                await self._end_all(process.pid)
        finally:
            await self._end_all(process.pid)
        return await process.wait()

    def send(self, command: Mapping[str, Any]) -> None:
        """Sends a command; before the driver has started, it is kept. Errors are ignored: they mean
        that the driver has ended, and `run` tells that."""
        line = json.dumps(command).encode() + b"\n"
        if self._process is None:
            self._pending.append(line)
        else:
            self._write(line)

    def kill(self) -> None:
        """Kills the driver and its JVM now. `run` kills what else it has started, and then ends."""
        self._killed = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _was_killed(self) -> bool:
        return self._killed

    def _write(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError, RuntimeError):
            if not self._process.stdin.is_closing():
                self._process.stdin.write(line)

    async def _exited(self, process: asyncio.subprocess.Process) -> None:
        """Waits until the driver has ended by itself, or for `_EXIT_S`."""
        until = self._clock.monotonic() + _EXIT_S
        while process.returncode is None and self._clock.monotonic() < until:
            await self._clock.sleep(_GONE_AGAIN_S)

    async def _end_all(self, session: int) -> None:
        """Returns when no process of the driver runs."""
        while await self._executor.run(lambda: kill_session(session)):
            await self._clock.sleep(_GONE_AGAIN_S)

    def _command(self, events: int) -> list[str]:
        start = self._start
        command = [start.python, "-m", MODULE, "--master", start.master]
        return [*command, "--settings", json.dumps(dict(start.settings)), "--events", str(events)]

    async def _read_events(self, receiving: int) -> None:
        reader = asyncio.StreamReader(limit=_EVENT_BYTES_MAX)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(receiving, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await _line(reader):
                with suppress(ValueError, KeyError):  # Half a line, from a driver that was killed.
                    event = json.loads(self._hide(line.decode(errors="replace")))
                    self.on_event(event)
        finally:
            transport.close()

    async def _read_log(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        rest = ""
        while data := await self._process.stdout.read(_READ_BYTES):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            if len(rest) > _LINE_CHARACTERS_MAX:
                lines.append(rest)
                rest = ""
            if lines:
                self._tell_lines(lines)
        if rest:
            self._tell_lines([rest])

    def _tell_lines(self, lines: list[str]) -> None:
        self.on_lines([self._hide(line[:_LINE_CHARACTERS_MAX]) for line in lines])

    def _hide(self, text: str) -> str:
        for value in self._hidden:
            text = text.replace(value, _HIDDEN)
            escaped = json.dumps(value)[1:-1]
            if escaped != value:
                text = text.replace(escaped, _HIDDEN)
        return text


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Returns the next line; empty at the end. A line that is too long is left out: no event of a
    driver may end its pipeline."""
    while True:
        try:
            return await reader.readline()
        except ValueError:
            _log.warning("a driver has written an event of more than %d bytes", _EVENT_BYTES_MAX)
