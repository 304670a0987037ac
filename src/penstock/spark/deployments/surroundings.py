"""What the pipelines of a worker share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ports import Clock, Executor, Random
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.lineage.worker_lineage import Lineage
from penstock.spark.deployments.metrics.start_times import StartTimes
from penstock.spark.deployments.preparation import Preparation
from penstock.spark.deployments.spares import Spares
from penstock.spark.deployments.supervisor_events import Identity
from penstock.spark.deployments.worker_folder import WorkerFolder


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
    lineage: Lineage | None = None
    """Where OpenLineage events go. None: nowhere."""
