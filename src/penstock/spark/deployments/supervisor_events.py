"""What happens to a pipeline, and what its supervisor decides. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.spark.deployments.model import Deployment, Event, Status, Version
from penstock.spark.deployments.outside_trouble import UNKNOWN_CLUSTER, ClusterSeen


@dataclass(frozen=True, slots=True)
class Now:
    """The time on two clocks."""

    boot: float
    """Seconds since the machine was booted, including those in which it was suspended."""
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The worker."""

    worker: str
    host: str
    storage_id: str


@dataclass(frozen=True, slots=True)
class Limits:
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    steady_s: float = 120.0
    """After this time without an end, a round counts as working: back-off begins small again."""
    start_s: float = 300.0
    """How long Spark may take to start at first: see `start_limit`."""
    start_max_s: float = 1200.0
    """How long it may take after earlier starts took too long."""
    stop_s: float = 30.0
    """How long a round may take to end after a stop. Then its driver is killed."""
    warm_s: float = 900.0
    """A driver stays up if the next round is at most this far away."""
    failures_max: int = 3
    """A version that never worked and fails this often is rolled back, if that is wanted."""
    look_s: float = 60.0
    """How often the wall clock is looked at while a round is awaited: it may jump."""


# -- what happens ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Defined:
    """The deployment was read or has changed. None: it was deleted."""

    deployment: Deployment | None
    version: Version | None


@dataclass(frozen=True, slots=True)
class Taken:
    """This worker owns the pipeline from now on. `previous` is its last status."""

    previous: Status | None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The pipeline is to be stopped here, so that another worker can run it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """This worker does not own the pipeline any more."""


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    until: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files and virtual environment of this attempt are there."""

    run: int


@dataclass(frozen=True, slots=True)
class NotPrepared:
    run: int
    error: str
    lasting: bool
    """Whether another attempt has the same result, as with a wrong requirements.txt."""
    outside: bool = False
    """Whether the version is not to blame, as with a missing secret: see `outside_trouble`."""


@dataclass(frozen=True, slots=True)
class DriverReady:
    """Spark has started and waits for a round."""

    run: int


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A round was completed."""

    run: int


@dataclass(frozen=True, slots=True)
class DriverEnded:
    """Nothing of the driver runs any more."""

    run: int
    completed: bool = False
    """Whether it ended by itself, with everything done."""
    error: str = ""
    lease_ended: bool = False
    """Whether it killed itself because its lease had ended. That is no failure of the pipeline."""
    cluster: ClusterSeen = UNKNOWN_CLUSTER
    """What the worker knew of its cluster at that time."""


@dataclass(frozen=True, slots=True)
class Held:
    """No round is begun and no driver is started while this is so: see `recompute`."""

    held: bool
    stops_streams: bool = False
    """Whether the driver is ended, because its streams run between rounds, too."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time at which the supervisor asked to be woken has come, or another one."""


Happening = (
    Defined
    | Taken
    | GivenUp
    | Lost
    | LeaseRenewed
    | Prepared
    | NotPrepared
    | DriverReady
    | RoundEnded
    | DriverEnded
    | Held
    | Tick
)

# -- what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    run: int
    deployment: Deployment
    version: Version


@dataclass(frozen=True, slots=True)
class StartDriver:
    run: int
    deployment: Deployment
    version: Version
    reset_flows: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeginRound:
    run: int


@dataclass(frozen=True, slots=True)
class StopDriver:
    run: int
    at_once: bool
    """Kill it. Otherwise it stops after its round."""


@dataclass(frozen=True, slots=True)
class Report:
    status: Status


@dataclass(frozen=True, slots=True)
class Record:
    event: Event


@dataclass(frozen=True, slots=True)
class RollBack:
    """Make `version` the one that is to run, if `failed` still is."""

    name: str
    failed: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing of the pipeline runs here: another worker may have it."""


Effect = Prepare | StartDriver | BeginRound | StopDriver | Report | Record | RollBack | Released

ACTIONS: Final[dict[type[Effect], str]] = {
    Prepare: "prepare the pipeline",
    StartDriver: "start the driver",
    BeginRound: "begin a round",
    StopDriver: "stop the driver",
    Report: "report the status of the pipeline",
    Record: "write to the history of the pipeline",
    RollBack: "roll back the pipeline",
    Released: "release the pipeline",
}
"""Completes the sentence "cannot"."""
TOLD_ERROR_MAX: Final = 2_000
"""How much of an error is kept in a status."""


def recipe(deployment: Deployment) -> tuple[object, ...]:
    """Returns what a driver is started with. A change of it needs a new driver."""
    return (
        deployment.version,
        deployment.restarts,
        deployment.master,
        tuple(sorted(deployment.settings.items())),
        tuple(deployment.secrets),
        deployment.storage,
        deployment.memory_mb,
        deployment.generation,
        deployment.schedule.interval_s if deployment.schedule.continuous else None,
    )
