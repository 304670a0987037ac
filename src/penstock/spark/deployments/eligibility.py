"""Decides which pipelines a worker is able to run, and which may be moved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.spark.deployments.model import Deployment, Status, WorkerStatus

_AT_REST: Final = frozenset({"STOPPED", "FAILED", "COMPLETED", "WAITING FOR ITS TIME"})
_SETTLED_MS: Final = 5 * 60_000


def eligible(
    deployments: Mapping[str, Deployment],
    statuses: Mapping[str, Status],
    *,
    storage_id: str,
    memory_mb: int,
    owned: frozenset[str],
    live: frozenset[str],
) -> frozenset[str]:
    """Returns the names of deployments that this worker can run.

    Tables in the folder of a worker can only be used by the workers of that folder. With a limit of
    memory, those that the worker owns come first, then those that no live worker reports on.
    """
    found = [
        name
        for name, deployment in deployments.items()
        if deployment.storage or is_here(statuses.get(name), storage_id)
    ]
    if not memory_mb:
        return frozenset(found)

    def rank(name: str) -> tuple[bool, bool, str]:
        status = statuses.get(name)
        is_taken = status is not None and status.worker in live
        return name not in owned, is_taken, name

    left_mb = memory_mb
    chosen = set()
    for name in sorted(found, key=rank):
        needed_mb = deployments[name].memory_mb
        if needed_mb <= left_mb:
            left_mb -= needed_mb
            chosen.add(name)
    return frozenset(chosen)


def is_here(status: Status | None, storage_id: str) -> bool:
    """Whether the tables of a pipeline without shared storage are in this folder, or nowhere."""
    return status is None or status.storage_id in ("", storage_id)


def settled(
    statuses: Mapping[str, Status], live: Iterable[WorkerStatus], now_ms: int
) -> frozenset[str]:
    """Returns the pipelines that may be moved for balance: none while a worker is new, and not
    those that start, that have started a short time ago, or that do a scheduled round."""
    if any(now_ms - each.started_ms < _SETTLED_MS for each in live):
        return frozenset()
    return frozenset(
        name
        for name, status in statuses.items()
        if status.state in _AT_REST
        or (status.state == "RUNNING" and now_ms - status.since_ms >= _SETTLED_MS)
    )
