"""Starts the guard of a worker, and tells it the worker's id in the group: see `worker_guard`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from penstock.spark.deployments.worker_guard import WORKER_VARIABLE, is_possible

_MODULE: Final = "penstock.spark.deployments.worker_guard"
_END_S: Final = 5.0
_log = logging.getLogger(__name__)


class GuardProcess:
    """The guard of a worker. Without a process, because the system cannot have one, it does
    nothing."""

    def __init__(self, worker: str, bootstrap: str, group: str) -> None:
        self._command = [sys.executable, "-m", _MODULE, worker, bootstrap, group]
        self._process: asyncio.subprocess.Process | None = None
        self._told = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the guard. Leave it when the worker has left the group."""
        await self._start()
        try:
            yield
        finally:
            await self._end()

    def tell_member(self, member: str) -> None:
        """The worker has this id in the group."""
        if member and member != self._told:
            self._told = member
            self._write({"member": member})

    async def _start(self) -> None:
        if not is_possible():
            return
        environment = {name: each for name, each in os.environ.items() if name != WORKER_VARIABLE}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            _log.warning(
                "cannot start the guard of this worker: %s; if the worker dies, others take over "
                "its pipelines only when its session has timed out",
                error,
            )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError, RuntimeError):
            process.stdin.write(b'{"bye": true}\n')
            process.stdin.close()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _write(self, told: Mapping[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, RuntimeError):  # The guard has ended; the worker can do without.
                self._process.stdin.write(json.dumps(told).encode() + b"\n")
