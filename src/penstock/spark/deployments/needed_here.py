"""Which pipelines a worker needs files and logs for, and which it can forget. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.spark.deployments.model import Deployment, Status, WorkerStatus


def needed_here(
    deployments: Mapping[str, Deployment],
    statuses: Mapping[str, Status],
    live: Iterable[WorkerStatus],
    *,
    storage_id: str,
    here: Iterable[str],
) -> frozenset[str]:
    """Returns the pipelines whose files a data folder needs. `live` are the workers that have
    reported recently, and `here` the pipelines that this worker has a task for.

    A pipeline is not needed if it is deleted, or if a live worker with another folder owns it.
    Workers may share a folder, so what any of them owns is needed."""
    workers = list(live)
    with_it = {name for each in workers if each.storage_id == storage_id for name in each.pipelines}
    elsewhere = {
        name for each in workers if each.storage_id != storage_id for name in each.pipelines
    }
    stay = {name for name, status in statuses.items() if status.storage_id == storage_id}
    known = {name for name in deployments if name in stay or name not in elsewhere}
    return frozenset(known | with_it | set(here))
