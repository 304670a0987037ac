"""A driver as a child process: its events, its commands, its log, its end.

The driver begins a session of its own, and it has a mark in its environment, so everything that it
starts can be found and killed. When its process has ended, that is done. It is over when none of
these processes runs any more. One that cannot be found, because it has neither the session nor the
mark, cannot delay that: its output is no longer read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.ports import Clock, Executor
from penstock.runtime import SystemRandom
from penstock.spark.deployments.driver_output import HiddenValues, OutputLines
from penstock.spark.deployments.driver_scratch import with_scratch
from penstock.spark.pipelines.events import read_event
from penstock.spark.pipelines.process_session import DRIVER_VARIABLE, kill_driver

MODULE: Final = "penstock.spark.pipelines.controlled_driver"
_log = logging.getLogger(__name__)
_EVENT_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 64 << 10
_GONE_AGAIN_S: Final = 0.02
_LOOK_S: Final = 0.2
_EXIT_S: Final = 10.0
_ODD_TOLD_EVERY: Final = 100
_ODD_SHOWN: Final = 200
_LAST_WORDS_S: Final = 1.0
"""How long output is read when no process of the driver is left."""


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
    scratch: str = ""
    """A folder for its temporary files, which is removed when it has ended. Empty: it has none."""


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
        self._odd = 0
        """Events that could not be used."""
        self._mark = SystemRandom().bytes(16).hex()
        self._hidden = HiddenValues(start.secrets)

    @property
    def pid(self) -> int | None:
        """The id of its process and of its session."""
        return None if self._process is None else self._process.pid

    async def run(self) -> int:
        """Runs the driver to its end. Returns its exit code, which is negative for a signal."""
        scratch = self._start.scratch
        try:
            return await self._run()
        finally:
            if scratch:
                await self._executor.run(lambda: shutil.rmtree(scratch, ignore_errors=True))

    async def _run(self) -> int:
        if self._was_killed():
            return -1
        events, events_end = os.pipe()
        log, log_end = os.pipe()
        try:
            process = await self._begin(events_end, log_end)
        except BaseException:
            os.close(events)
            os.close(log)
            raise
        finally:
            os.close(events_end)
            os.close(log_end)
        self._process = process
        try:
            if self._was_killed():  # While it was started.
                self.kill()
            for line in self._pending:
                self._write(line)
            self._pending.clear()
            async with asyncio.TaskGroup() as tasks:
                read_events = tasks.create_task(self._read_events(events))
                read_log = tasks.create_task(self._read_log(log))
                await self._until_over(process, read_events)
                await self._end_all(process.pid)
                await self._stop_reading(read_events, read_log)
        finally:
            await self._end_all(process.pid)
            if process.stdin is not None and not process.stdin.is_closing():
                process.stdin.transport.abort()
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

    async def _begin(self, events: int, log: int) -> asyncio.subprocess.Process:
        start, environment = self._start, self._start.environment
        if start.scratch:
            environment = await self._executor.run(
                lambda: with_scratch(start.environment, Path(start.scratch))
            )
        return await asyncio.create_subprocess_exec(
            *self._command(events),
            cwd=start.folder,
            env={**environment, DRIVER_VARIABLE: self._mark},
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(events,),
            start_new_session=True,
        )

    async def _until_over(
        self, process: asyncio.subprocess.Process, read_events: asyncio.Task[None]
    ) -> None:
        """Waits until the driver has ended. One that has closed its events has `_EXIT_S` left; a
        child that it has forked may keep them open."""
        while process.returncode is None and not read_events.done():
            await asyncio.wait({read_events}, timeout=_LOOK_S)
        until = self._clock.monotonic() + _EXIT_S
        while process.returncode is None and self._clock.monotonic() < until:
            await self._clock.sleep(_GONE_AGAIN_S)

    async def _end_all(self, session: int) -> None:
        """Returns when no process of the driver runs."""
        while await self._executor.run(lambda: kill_driver(session, self._mark)):
            await self._clock.sleep(_GONE_AGAIN_S)

    async def _stop_reading(self, *reading: asyncio.Task[None]) -> None:
        """Reads the rest. A process that could not be found may keep a pipe open for ever."""
        _, still_open = await asyncio.wait(reading, timeout=_LAST_WORDS_S)
        if still_open:
            _log.warning(
                "a process that driver %s started still holds its output open, but cannot be "
                "found, so it was not killed", self.pid,
            )  # fmt: skip
        for task in still_open:
            task.cancel()

    def _command(self, events: int) -> list[str]:
        start = self._start
        command = [start.python, "-m", MODULE, "--master", start.master]
        return [*command, "--settings", json.dumps(dict(start.settings)), "--events", str(events)]

    async def _read_events(self, receiving: int) -> None:
        async with _reading(receiving) as reader:
            while line := await _line(reader):
                if line.endswith(b"\n"):  # Otherwise the driver was killed while it wrote.
                    self._read_event(self._hidden.hide(line.decode(errors="replace")))

    def _read_event(self, line: str) -> None:
        """Passes an event on. An odd one is left out: it must not end the pipeline."""
        try:
            self.on_event(read_event(line))
        except Exception as error:  # noqa: BLE001 - whatever the driver wrote, it is read on
            self._odd += 1
            if self._odd % _ODD_TOLD_EVERY == 1:
                _log.warning(
                    "driver %s wrote an invalid event (%s: %s; %d so far): %s; the pipeline's code "
                    "must not write to the file descriptor for events",
                    self.pid, type(error).__name__, error, self._odd, line[:_ODD_SHOWN].rstrip(),
                )  # fmt: skip

    async def _read_log(self, receiving: int) -> None:
        lines = OutputLines(self._hidden, self._tell_lines)
        async with _reading(receiving) as reader:
            try:
                while data := await reader.read(_READ_BYTES):
                    lines.add(data)
            finally:
                lines.end()

    def _tell_lines(self, lines: list[str]) -> None:
        self.on_lines(lines)  # A pipeline may have taken the driver over in the meantime.


@asynccontextmanager
async def _reading(receiving: int) -> AsyncIterator[asyncio.StreamReader]:
    """Reads a pipe, and closes it in the end."""
    reader = asyncio.StreamReader(limit=_EVENT_BYTES_MAX)
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(receiving, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Returns the next line; empty at the end. A line that is too long is left out: no event of a
    driver may end its pipeline."""
    while True:
        try:
            return await reader.readline()
        except ValueError:
            _log.warning(
                "ignored an event of a driver, because it has more than %d bytes", _EVENT_BYTES_MAX
            )
