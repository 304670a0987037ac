"""The records of deployed pipelines: deployments, versions, status, history, workers. Pure.

All of them are JSON in internal topics (see `topics`). A client with the right to write to these
topics can write anything, so `decode` accepts only records of the right shape: it returns None for
others, and readers skip them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast

from penstock.client.dataclass_json import builder, plain
from penstock.spark.stream_position import BackfillRequest

T = TypeVar("T")

NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
"""Names of deployments. They are parts of keys, of paths and of transactional ids."""

SECRET: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""Names of secrets. They are names of environment variables and of files."""

Wanted = Literal["RUNNING", "STOPPED"]
Swap = Literal["manual", "when-caught-up"]
"""When tables that were computed again take the place of the old ones."""
Kind = Literal["project", "script"]
State = Literal[
    "WAITING FOR A WORKER",
    "PREPARING",
    "STARTING",
    "RUNNING",
    "WAITING FOR ITS TIME",
    "BACKING OFF",
    "FAILED",
    "STOPPING",
    "STOPPED",
    "COMPLETED",
]
"""PREPARING: its files and its virtual environment are being made. WAITING FOR ITS TIME: the next
round begins when its schedule says so. BACKING OFF: it failed and starts again after a pause.
FAILED: it failed, and is not started again before someone changes it. COMPLETED: a script without
a schedule has returned; it is not run again before someone changes it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When rounds of a pipeline begin. Exactly one of the three is set."""

    continuous: bool = False
    """A round follows another after `interval_s`."""
    every_s: float = 0.0
    """A round begins this long after the last one began."""
    cron: str = ""
    """A round begins at these times, in UTC: minute, hour, day, month, day of the week."""
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a pipeline's files. It never changes."""

    name: str
    number: int
    kind: Kind
    entry: str
    """The file in the archive that is run: the specification of a project, or a script."""
    archive: str
    """The SHA-256 of the archive, in hexadecimal."""
    archive_size: int
    requirements: str = ""
    """The SHA-256 of the project's requirements.txt; empty if it has none."""
    flows: dict[str, str] = field(default_factory=dict)
    """The fingerprint of each flow's definition, by which changes are recognised."""
    deployed_ms: int = 0
    deployed_by: str = ""
    note: str = ""
    archive_offset: int = 0
    """Where the archive begins in its topic. Its chunks are there, or later if they were written
    again."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """Tables that are computed again from the beginning, beside those that are served."""

    generation: int
    """Where in the storage: see `generations`."""
    version: int
    """The version whose code computes them."""
    tables: list[str]
    swap: Swap = "when-caught-up"
    keep_ms: int = 7 * 86_400_000
    """How long the old tables are kept after the swap."""
    asked: bool = False
    """Whether someone asked for the swap."""
    began_ms: int = 0


@dataclass(frozen=True, slots=True)
class KeptGeneration:
    """The tables and checkpoints that were served before the last swap."""

    generation: int
    version: int
    keep_ms: int
    until_ms: int
    """Then they are deleted."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a pipeline is meant to do. Each change is a new record with a higher `revision`."""

    name: str
    revision: int
    version: int
    """The version that is to run."""
    wanted: Wanted = "RUNNING"
    schedule: Schedule = field(default_factory=lambda: Schedule(continuous=True))
    master: str = "local[2]"
    settings: dict[str, str] = field(default_factory=dict)
    """Spark settings, which override those of the project."""
    secrets: list[str] = field(default_factory=list)
    """Names of secrets. A worker reads their values from its own files."""
    storage: str = ""
    """Where tables and checkpoints are: a URL that all workers reach. Empty: a folder of the
    worker, and then only workers with the same folder can run the pipeline."""
    memory_mb: int = 1024
    """The heap of the driver's JVM. A driver process that takes twice as much is ended."""
    first_version: int = 0
    """The version with which it was first deployed; 0 if unknown. What a status says about earlier
    versions is about a deployment of the same name that was deleted."""
    auto_rollback: bool = False
    """Whether a version that fails is replaced by the last one that worked."""
    restarts: int = 0
    """Raised by `restart`: a worker that runs the pipeline with a lower number restarts it."""
    reset_flows: list[str] = field(default_factory=list)
    """Flows that begin again without their checkpoint, once: if `reset_revision` is higher than in
    the status. The worker then reports the same `reset_revision`."""
    reset_revision: int = 0
    """The revision that last added to `reset_flows`."""
    reset_versions: dict[str, int] = field(default_factory=dict)
    """For which version each of the `reset_flows` was to begin again. A return to another version
    does not perform what was meant for the version that is left."""
    backfills: list[BackfillRequest] = field(default_factory=list)
    """The last backfills that were requested, the oldest first. Their ids are revisions."""
    changed_ms: int = 0
    changed_by: str = ""
    generation: int = 0
    """The generation of tables and checkpoints that is served and updated: see `generations`."""
    generations: int = 0
    """The highest number of a generation so far. Numbers are not used again."""
    recompute: Recompute | None = None
    kept: KeptGeneration | None = None


BackfillState = Literal["RUNNING", "COMPLETED", "CANCELLED"]


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """How far a backfill is, as the checkpoint of its flow says."""

    flow: str
    id: int
    state: BackfillState
    done: int
    """Records that are behind it."""
    total: int
    lost: int = 0
    """Records that were deleted before it read them; `done` includes them."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a pipeline does, as its worker reports it."""

    name: str
    state: State
    revision: int
    """The revision of the deployment that the worker acts on."""
    version: int
    worker: str = ""
    host: str = ""
    storage_id: str = ""
    """The id of the worker's folder, if tables and checkpoints are there."""
    since_ms: int = 0
    """When this state began."""
    updated_ms: int = 0
    failures: int = 0
    """How often it failed since it last worked."""
    version_failures: int = 0
    """How many of these failures are the fault of `version`. After some it is rolled back, also if
    several workers have counted them."""
    next_ms: int = 0
    """When the next round or the next attempt begins; 0 if unknown."""
    due_ms: int = 0
    """When the round that is under way or comes next was or is due, in every state: another worker
    that takes the pipeline begins it then. 0 if the schedule is continuous."""
    error: str = ""
    run: dict[str, Any] = field(default_factory=dict)
    """The view of the current or last run: `RunView.as_dict`."""
    good_version: int = 0
    """The last version of which a round was completed; 0 if there is none."""
    reset_revision: int = 0
    """The `reset_revision` of the deployment whose `reset_flows` were last begun again."""
    generation: int = 0
    generations: int = 0
    """As in the deployment: a deployment of the same name goes on with them after a deletion."""
    place: str = ""
    """The folder or URL of the tables and checkpoints that are served."""
    recompute: dict[str, Any] = field(default_factory=dict)
    """The progress of a recompute: `RecomputeProgress.as_dict`."""
    backfills: list[BackfillStatus] = field(default_factory=list)
    """The last backfill of each flow that has begun one."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of a pipeline's history."""

    name: str
    at_ms: int
    what: str
    """One word: deployed, started, stopped, failed, rolled-back, moved, interrupted, ..."""
    text: str = ""
    """A sentence for people."""
    version: int = 0
    worker: str = ""
    by: str = ""
    """The user, if a person did it."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker says about itself."""

    id: str
    host: str
    storage_id: str
    started_ms: int
    updated_ms: int
    pipelines: list[str] = field(default_factory=list)
    """The deployments that it owns."""
    spark: str = ""
    penstock: str = ""
    memory_mb: int = 0
    """The memory for all of its pipelines together; 0: no limit."""
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines that a driver printed, as they are stored."""

    name: str
    version: int
    at_ms: int
    lines: list[str]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a driver printed."""

    name: str
    version: int
    at_ms: int
    text: str


def encode(record: object) -> bytes:
    return json.dumps(plain(record), separators=(",", ":")).encode()


def decode(kind: type[T], data: bytes | None) -> T | None:
    """Returns the record, or None if this is not one. Unknown fields are ignored: a newer version
    may write them."""
    if data is None:
        return None
    try:
        return decode_plain(kind, json.loads(data))
    except (ValueError, RecursionError):
        return None


def decode_plain(kind: type[T], data: object) -> T | None:
    """Returns the record from JSON data, or None if this is not one."""
    try:
        return cast("T", _builder(cast("Any", kind))(data))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@lru_cache
def _builder(kind: type) -> Callable[[Any], Any]:
    return builder(kind)
