"""The deployments, versions, statuses and workers, as the records of the topics say. Pure.

`CatalogView.apply` takes one record after the other. A client with the right to write to the topics
can write anything. A record is used only if it has the right shape, belongs to its key, and has
names that are safe in paths; others are counted and skipped.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final, Literal

from penstock.spark.deployments import topics
from penstock.spark.deployments.generations import has_sound_generations
from penstock.spark.deployments.model import (
    NAME,
    SECRET,
    Deployment,
    Schedule,
    State,
    Status,
    Version,
    WorkerStatus,
    decode,
)

ARCHIVE_BYTES_MAX: Final = 64 << 20
WORKER_REPORT_S: Final = 5.0
"""How often a worker reports."""
WORKER_LIVE_S: Final = 30.0
"""A worker that has not reported for this long counts as gone."""
WORKER_SHOWN_S: Final = 3600.0
"""A worker that is gone is shown until it has not reported for this long, so that people see what
was killed. Then its status is removed. It lost its pipelines long before: a lease lasts seconds."""
WorkerState = Literal["live", "stopping", "gone"]
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class CatalogView:
    """What has been read so far."""

    def __init__(self) -> None:
        self.deployments: dict[str, Deployment] = {}
        self.versions: dict[tuple[str, int], Version] = {}
        self.statuses: dict[str, Status] = {}
        self.workers: dict[str, WorkerStatus] = {}
        self.skipped = 0
        """Records that are not valid."""

    def apply(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        kind, _, name = (key or b"").decode("utf-8", "replace").partition("/")
        match topic, kind:
            case topics.DEFINITIONS, "deployment":
                is_valid = self._apply_deployment(name, value)
            case topics.DEFINITIONS, "version":
                is_valid = self._apply_version(name, value)
            case topics.STATUS, "pipeline":
                is_valid = self._apply_status(name, value)
            case topics.STATUS, "worker":
                is_valid = self._apply_worker(name, value)
            case _:
                is_valid = False
        self.skipped += not is_valid

    def versions_of(self, name: str) -> list[Version]:
        """Returns the versions of a deployment, the newest first."""
        found = [version for (owner, _), version in self.versions.items() if owner == name]
        return sorted(found, key=lambda version: -version.number)

    def live_workers(self, now_ms: int) -> list[WorkerStatus]:
        return [worker for worker in self.workers.values() if is_live(worker, now_ms)]

    def shown_workers(self, now_ms: int) -> list[tuple[WorkerStatus, WorkerState]]:
        """Returns the workers to list, by id: those that report, and those that have not been gone
        for long."""
        found = [each for each in self.workers.values() if not is_long_gone(each, now_ms)]
        return [
            (each, worker_state(each, now_ms)) for each in sorted(found, key=lambda each: each.id)
        ]

    def gone_workers(self, now_ms: int) -> list[WorkerStatus]:
        """Returns the workers whose statuses are to be removed."""
        return [worker for worker in self.workers.values() if is_long_gone(worker, now_ms)]

    def forget_details_of_deleted(self) -> None:
        """Keeps no more of the statuses of deployments that are gone than a new one of the same
        name needs. Call it when everything was read: statuses may come before deployments."""
        for name in self.statuses.keys() - self.deployments.keys():
            self._forget_details(name)

    def _forget_details(self, name: str) -> None:
        status = self.statuses.get(name)
        if status is not None and (status.run or status.recompute):
            self.statuses[name] = replace(status, run={}, recompute={})

    def _apply_deployment(self, name: str, value: bytes | None) -> bool:
        if value is None:
            self.deployments.pop(name, None)
            self._forget_details(name)
            return True
        found = decode(Deployment, value)
        if found is None or found.name != name or not is_sound_deployment(found):
            return False
        self.deployments[name] = found
        return True

    def _apply_version(self, rest: str, value: bytes | None) -> bool:
        name, _, number = rest.partition("/")
        if value is None:
            if not (number.isascii() and number.isdigit()):
                return False
            self.versions.pop((name, int(number)), None)
            return True
        found = decode(Version, value)
        if found is None or f"{found.name}/{found.number}" != rest or not is_sound_version(found):
            return False
        self.versions[name, found.number] = found
        return True

    def _apply_status(self, name: str, value: bytes | None) -> bool:
        if value is None:
            self.statuses.pop(name, None)
            return True
        found = decode(Status, value)
        if found is None or found.name != name or not NAME.fullmatch(name):
            return False
        self.statuses[name] = found
        return True

    def _apply_worker(self, worker: str, value: bytes | None) -> bool:
        if value is None:
            self.workers.pop(worker, None)
            return True
        found = decode(WorkerStatus, value)
        if found is None or found.id != worker:
            return False
        self.workers[worker] = found
        return True


def is_live(worker: WorkerStatus, now_ms: int) -> bool:
    """Whether the worker has reported recently and is not about to end."""
    return not worker.stopping and not is_silent(worker, now_ms)


def is_silent(worker: WorkerStatus, now_ms: int) -> bool:
    """Whether the worker has not reported recently. One that stops still reports."""
    return now_ms - worker.updated_ms >= WORKER_LIVE_S * 1000


def worker_state(worker: WorkerStatus, now_ms: int) -> WorkerState:
    if is_silent(worker, now_ms):
        return "gone"
    return "stopping" if worker.stopping else "live"


def is_long_gone(worker: WorkerStatus, now_ms: int) -> bool:
    return now_ms - worker.updated_ms >= WORKER_SHOWN_S * 1000


def is_sound_deployment(deployment: Deployment) -> bool:
    return (
        NAME.fullmatch(deployment.name) is not None
        and deployment.revision > 0
        and deployment.version > 0
        and deployment.memory_mb > 0
        and is_sound_schedule(deployment.schedule)
        and all(SECRET.fullmatch(secret) for secret in deployment.secrets)
        and has_sound_generations(deployment)
    )


def is_sound_schedule(schedule: Schedule) -> bool:
    times = schedule.every_s, schedule.interval_s
    return all(math.isfinite(time) and time >= 0 for time in times) and (
        bool(schedule.continuous) + bool(schedule.every_s) + bool(schedule.cron) == 1
    )


def is_sound_version(version: Version) -> bool:
    return (
        NAME.fullmatch(version.name) is not None
        and version.number > 0
        and _HASH.fullmatch(version.archive) is not None
        and 0 < version.archive_size <= ARCHIVE_BYTES_MAX
        and version.entry.isprintable()
        and not {"", ".", ".."} & set(version.entry.split("/"))
    )


_ON_A_WORKER: Final = frozenset(
    {"PREPARING", "STARTING", "RUNNING", "WAITING FOR ITS TIME", "BACKING OFF", "STOPPING"}
)


def actual_state(
    deployment: Deployment, status: Status | None, worker: WorkerStatus | None, now_ms: int
) -> State:
    """Returns the state of a deployment. What a worker reported does not count if the worker is
    gone: `worker` is the one that the status names."""
    idle: State = "WAITING FOR A WORKER" if deployment.wanted == "RUNNING" else "STOPPED"
    if status is None:
        return idle
    is_gone = worker is None or is_silent(worker, now_ms)
    return idle if status.state in _ON_A_WORKER and is_gone else status.state
