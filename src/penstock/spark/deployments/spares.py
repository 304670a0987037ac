"""A driver in reserve: its Spark has started already, and the next pipeline takes it over.

There is at most one. It is started when there is a deployment that wants to run, and not while
another driver starts: both would be slower.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.ports import Clock, Executor, Random
from penstock.spark.deployments.driver_process import DriverProcess
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.preparation import Preparation, PreparedVersion
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.driver_control import Assignment

_log = logging.getLogger(__name__)


class Spare:
    """A driver without a pipeline, and the task that runs it."""

    def __init__(self, number: str, driver: DriverProcess, warm: asyncio.Event) -> None:
        self.number = number
        self.driver = driver
        self.warm = warm
        self.task: asyncio.Task[int] | None = None


class Spares:
    def __init__(
        self,
        preparation: Preparation,
        folder: WorkerFolder,
        executor: Executor,
        clock: Clock,
        random: Random,
        start_times: StartTimes,
    ) -> None:
        self._preparation = preparation
        self._folder = folder
        self._executor = executor
        self._clock = clock
        self._random = random
        self._start_times = start_times
        self._spare: Spare | None = None
        self._starting = False
        self._failed = False

    @property
    def pid(self) -> int | None:
        return None if self._spare is None else self._spare.driver.pid

    def states(self) -> dict[str, int]:
        """Returns how many spares there are, by what their Spark does."""
        spare = self._spare
        is_warm = spare is not None and spare.warm.is_set()
        return {"starting": int(spare is not None and not is_warm), "warm": int(is_warm)}

    async def keep(self, *, wanted: bool) -> None:
        """Starts a spare if there is none and one is wanted, and ends one that is not wanted."""
        spare = self._spare
        if spare is not None and spare.task is not None and spare.task.done():
            # It ended by itself: another one would, too. Pipelines start without it.
            self._spare, self._failed = None, True
            _log.warning("the driver in reserve has ended; pipelines start more slowly without it")
            await self._drop(spare)
        elif spare is not None and not wanted:
            await self.close()
        elif spare is None and wanted and not self._starting and not self._failed:
            self._starting = True
            try:
                await self._start()
            finally:
                self._starting = False

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.driver.kill()
            await self._drop(spare)

    def take(
        self,
        prepared: PreparedVersion,
        on_event: Callable[[Mapping[str, Any]], None],
        on_lines: Callable[[list[str]], None],
    ) -> tuple[DriverProcess, asyncio.Task[int], Assignment] | None:
        """Returns the spare for this version, with the assignment to send to it; None if there is
        none that is warm, or none that fits."""
        spare = self._spare
        if spare is None or not spare.warm.is_set() or not prepared.fits_spare:
            return None
        if spare.task is None or spare.task.done():
            return None
        self._spare = None
        spare.driver.on_event, spare.driver.on_lines = on_event, on_lines
        link = self._preparation.spare_link(spare.number)
        return spare.driver, spare.task, replace(prepared.assignment, link=link)

    async def _start(self) -> None:
        number = self._random.bytes(6).hex()
        try:
            start = await self._executor.run(lambda: self._preparation.spare_start(number))
        except OSError as error:
            _log.warning("cannot start a driver in reserve: %s", error)
            self._failed = True
            return
        warm = asyncio.Event()

        def on_event(event: Mapping[str, Any]) -> None:
            if event.get("event") == "warm":
                warm.set()

        watching = self._start_times.watching(on_event)
        driver = DriverProcess(start, self._executor, self._clock, watching, lambda _: None)
        spare = Spare(number, driver, warm)
        spare.task = asyncio.create_task(driver.run(), name="driver in reserve")
        self._spare = spare

    async def _drop(self, spare: Spare) -> None:
        if spare.task is not None:
            await asyncio.gather(spare.task, return_exceptions=True)
        folder = self._folder.spare(spare.number)
        await self._executor.run(lambda: shutil.rmtree(folder, ignore_errors=True))
