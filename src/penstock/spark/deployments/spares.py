"""A driver in reserve: its Spark has started already, and the next pipeline takes it over.

There is at most one. It is started when there is a deployment that wants to run, and not while a
pipeline starts (see `starting`): both would be slower. A pipeline that needs a driver while the
spare still starts takes it over, too: that is sooner than to start another one beside it.

A spare that ends by itself, for example because memory is short, is replaced after a pause. Each
further one doubles the pause, until a pipeline takes a spare over.

A spare rehearses, one step after the other, while nothing else starts: see `pipelines.rehearsal`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.ports import Clock, Executor, Random
from penstock.spark.deployments.driver_process import DriverProcess
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.preparation import Preparation, PreparedVersion
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.driver_control import Assignment

_log = logging.getLogger(__name__)
_PAUSE_S: Final = 10.0
_PAUSE_MAX_S: Final = 900.0
_DOUBLINGS_MAX: Final = 10
"""Enough for the longest pause."""


class Spare:
    """A driver without a pipeline, and the task that runs it."""

    def __init__(self, number: str, driver: DriverProcess, warm: asyncio.Event) -> None:
        self.number = number
        self.driver = driver
        self.warm = warm
        self.is_rehearsed = False
        self.rehearses = False
        """Whether it does a step of its rehearsal."""
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
        self._failures = 0
        """How many have ended by themselves since a pipeline took the last one over."""
        self._retry_at = float("-inf")

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
            self._spare = None
            self._fail("the driver in reserve has ended")
            await asyncio.gather(spare.task, return_exceptions=True)
        elif spare is not None and not wanted:
            await self.close()
        elif spare is None and wanted and not self._starting and self._may_start():
            self._starting = True
            try:
                await self._start()
            finally:
                self._starting = False

    def rehearse(self) -> bool:
        """Has the spare do the next step of its rehearsal, if it does none already. Returns whether
        there is nothing left to rehearse."""
        spare = self._spare
        if spare is None or not spare.warm.is_set() or spare.is_rehearsed:
            return True
        if not spare.rehearses:
            spare.rehearses = True
            spare.driver.send({"rehearse": True})
        return False

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.driver.kill()
            if spare.task is not None:
                await asyncio.gather(spare.task, return_exceptions=True)

    def take(
        self,
        prepared: PreparedVersion,
        on_event: Callable[[Mapping[str, Any]], None],
        on_lines: Callable[[list[str]], None],
    ) -> tuple[DriverProcess, asyncio.Task[int], Assignment] | None:
        """Returns the spare for this version, with the assignment to send to it; None if there is
        none, or none that fits. It keeps the assignment until its Spark has started."""
        spare = self._spare
        if spare is None or not prepared.fits_spare:
            return None
        if spare.task is None or spare.task.done():
            return None
        self._spare, self._failures = None, 0
        before = spare.driver.on_event

        def on_both(event: Mapping[str, Any]) -> None:
            before(event)  # It still measures the start of Spark.
            on_event(event)

        spare.driver.on_event, spare.driver.on_lines = on_both, on_lines
        link = self._preparation.spare_link(spare.number)
        return spare.driver, spare.task, replace(prepared.assignment, link=link)

    def _may_start(self) -> bool:
        return self._clock.monotonic() >= self._retry_at

    def _fail(self, what: str) -> None:
        """The next one may fail, too: waits longer each time. Pipelines start without it."""
        pause_s = min(_PAUSE_S * 2.0 ** min(self._failures, _DOUBLINGS_MAX), _PAUSE_MAX_S)
        self._failures += 1
        self._retry_at = self._clock.monotonic() + pause_s
        _log.warning(
            "%s; the next one starts in %d seconds or later, and until then pipelines start more "
            "slowly", what, pause_s,
        )  # fmt: skip

    async def _start(self) -> None:
        number = self._random.bytes(6).hex()
        folder = self._folder.spare(number)
        try:
            start = await self._executor.run(lambda: self._preparation.spare_start(number))
        except OSError as error:
            await self._executor.run(lambda: shutil.rmtree(folder, ignore_errors=True))
            self._fail(f"cannot start a driver in reserve: {error}")
            return
        warm = asyncio.Event()

        def on_event(event: Mapping[str, Any]) -> None:
            match event.get("event"):
                case "warm":
                    warm.set()
                case "rehearsed":
                    spare.rehearses, spare.is_rehearsed = False, not event.get("left")
                case _:
                    pass

        watching = self._start_times.watching(on_event)
        driver = DriverProcess(
            replace(start, scratch=str(folder)), self._executor, self._clock, watching,
            lambda _: None,
        )  # fmt: skip
        spare = Spare(number, driver, warm)
        spare.task = asyncio.create_task(driver.run(), name="driver in reserve")
        self._spare = spare
