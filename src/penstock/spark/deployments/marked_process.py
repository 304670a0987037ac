"""Runs a program for a worker to its end, without taking a thread while it runs.

It has the mark of the worker in its environment and begins a session, so the guard ends it if the
worker dies (see `worker_guard`). It also keeps a lock of the worker, so another worker waits even
where there is no guard. Cancel the call to kill the program and all that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.ports import Clock, Executor
from penstock.spark.deployments.worker_guard import WORKER_VARIABLE
from penstock.spark.pipelines.process_session import kill_session

_GONE_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    """Its exit code, which is negative for a signal."""
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class MarkedProcesses:
    """Runs programs for one worker."""

    executor: Executor
    clock: Clock
    worker: str

    async def run(self, command: Sequence[str], folder: Path, lock: int, most_s: float) -> Ended:
        """Runs a program in a folder. Raises `TimeoutError` if it takes longer than `most_s`, and
        OSError if it cannot be started."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env={**kept, WORKER_VARIABLE: self.worker},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock,),
        )
        try:
            async with asyncio.timeout(most_s):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await self._end_all(process.pid)
            code = await process.wait()
        return Ended(code, output.decode(errors="replace"), errors.decode(errors="replace"))

    async def _end_all(self, session: int) -> None:
        while await self.executor.run(lambda: kill_session(session)):
            await self.clock.sleep(_GONE_AGAIN_S)
