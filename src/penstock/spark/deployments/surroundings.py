"""What the pipelines of a worker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.ports import Clock, Executor, Random
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.cluster_watch import ClusterWatch
from penstock.spark.deployments.driver_process import DriverProcess
from penstock.spark.deployments.lineage.worker_lineage import Lineage
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.preparation import Preparation, PreparedVersion
from penstock.spark.deployments.spares import Spares
from penstock.spark.deployments.supervisor_events import Identity
from penstock.spark.deployments.worker_folder import WorkerFolder
from penstock.spark.pipelines.driver_control import Assignment


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the pipelines of a worker share."""

    catalog: Catalog
    folder: WorkerFolder
    preparation: Preparation
    spares: Spares
    executor: Executor
    clock: Clock
    random: Random
    identity: Identity
    start_times: StartTimes
    cluster: ClusterWatch
    lineage: Lineage | None = None
    """Where OpenLineage events go. None: nowhere."""

    def driver(
        self,
        name: str,
        prepared: PreparedVersion,
        on_event: Callable[[Mapping[str, Any]], None],
        on_lines: Callable[[list[str]], None],
    ) -> tuple[DriverProcess, asyncio.Task[int], Assignment]:
        """Returns a driver for a version, which runs in a task, and what is to be assigned to it:
        the one in reserve, or a new one."""
        spare = self.spares.take(prepared, on_event, on_lines)
        if spare is not None:
            return spare
        scratch = str(self.folder.spare(self.random.bytes(6).hex()))
        driver = DriverProcess(
            replace(prepared.start, scratch=scratch), self.executor, self.clock,
            self.start_times.watching(on_event), on_lines,
        )  # fmt: skip
        task = asyncio.create_task(driver.run(), name=f"driver of {name}")
        return driver, task, prepared.assignment
