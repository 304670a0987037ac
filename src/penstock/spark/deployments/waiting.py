"""Says why a pipeline waits for a worker, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from penstock.spark.deployments.eligibility import is_here
from penstock.spark.deployments.model import Deployment, Status, WorkerStatus

_START: Final = "penstock pipeline worker"


def waiting_reason(
    name: str,
    deployments: Mapping[str, Deployment],
    statuses: Mapping[str, Status],
    live: Collection[WorkerStatus],
) -> str:
    """Returns why no worker has a pipeline that is to run, and what to do.

    Args:
        name: the pipeline.
        deployments: all of them: they share the memory of the workers.
        live: the workers that have reported recently and do not end.
    """
    deployment, status = deployments[name], statuses.get(name)
    if not live:
        return f"No worker is running. Start one: {_START} --data DIR"
    allowed = [each for each in live if deployment.storage or is_here(status, each.storage_id)]
    if not allowed:
        host = "another machine" if status is None or not status.host else status.host
        return (
            f"No worker may take it: its tables and checkpoints are in the data folder of the "
            f"worker on {host}, and no worker with this folder is running. Start one there, with "
            f"the same --data: {_START} --data DIR"
        )
    if any(name in each.pipelines for each in allowed):
        return "A worker has it and is about to start it."
    needed = deployment.memory_mb
    free = [_free_mb(each, deployments) for each in allowed if each.memory_mb]
    if len(free) < len(allowed) or max(free) >= needed:
        return (
            "A worker will take it in a moment. If none does, see the logs of the workers: "
            "penstock pipeline workers lists them."
        )
    if max(each.memory_mb for each in allowed) < needed:
        return (
            f"No worker has room for it: it needs {needed:,} MB, and the largest worker has "
            f"{max(each.memory_mb for each in allowed):,} MB. Start a worker with more --memory, "
            "or deploy the pipeline with less."
        )
    return (
        f"No worker has room for it: it needs {needed:,} MB, and at most {max(*free, 0):,} MB are "
        f"free on a worker that may take it. Start another worker, start one with more --memory, "
        "or stop another pipeline."
    )


def _free_mb(worker: WorkerStatus, deployments: Mapping[str, Deployment]) -> int:
    taken = [deployments[each].memory_mb for each in worker.pipelines if each in deployments]
    return worker.memory_mb - sum(taken)
