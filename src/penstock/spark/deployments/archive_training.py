"""Makes archives of Java classes for the drivers of a worker (`penstock.spark.class_archive`).

A process of low priority runs a small pipeline and takes about a minute of processor time, once for
each installation of Java and Spark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.ports import Executor
from penstock.spark.class_archive import ClassArchives, for_training
from penstock.spark.deployments.driver_scratch import with_scratch
from penstock.spark.deployments.worker_folder import WorkerFolder

_MODULE: Final = "penstock.spark.pipelines.class_training"
_TRAINING_S: Final = 900.0
_log = logging.getLogger(__name__)


class ArchiveTraining:
    def __init__(self, archives: ClassArchives, folder: WorkerFolder, executor: Executor) -> None:
        self._archives = archives
        self._folder = folder
        self._executor = executor
        self._task: asyncio.Task[None] | None = None
        self._has_looked = False

    async def begin(self, environment_of: Callable[[], Mapping[str, str]]) -> None:
        """Begins to make the archive for an environment, if it is missing. Only the first call
        looks: an archive that could not be made is not tried again. `environment_of` blocks."""
        if self._has_looked:
            return
        self._has_looked = True
        environment = await self._executor.run(environment_of)
        partial = await self._executor.run(lambda: self._archives.partial(environment))
        if partial is not None:
            self._task = asyncio.create_task(self._make(environment, partial), name="class archive")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _make(self, environment: Mapping[str, str], partial: Path) -> None:
        folder = self._folder.spare("training")
        try:
            own = await self._executor.run(lambda: with_scratch(environment, folder))
            code = await self._train(for_training(own, partial), folder)
            if code == 0 and await self._executor.run(lambda: self._archives.keep(partial)):
                _log.info(
                    "a Java class-data archive (CDS) was created; the next drivers start faster"
                )
            else:
                _log.info("no Java class-data archive (CDS) was created; drivers start more slowly")
        except (OSError, TimeoutError) as error:
            _log.info(
                "no Java class-data archive (CDS) was created; drivers start more slowly: %s",
                error or "it took too long",
            )
        finally:
            await self._executor.run(lambda: _remove(folder, partial))

    async def _train(self, environment: Mapping[str, str], folder: Path) -> int:
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "19", environment["PYSPARK_PYTHON"], "-m", _MODULE),
            cwd=folder,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_TRAINING_S):
                return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _remove(folder: Path, partial: Path) -> None:
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
