"""Plans a deploy or a rollback: compares a version with the one that runs. Changes nothing.

The command line and the console plan with this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.client.times import parse_duration_ms
from penstock.spark.deployments import change_plan, checkpoint_rules
from penstock.spark.deployments.change_plan import NewVersion
from penstock.spark.deployments.checkpoint_folders import check_resettable
from penstock.spark.deployments.checkpoint_rules import Decision, FlowChange
from penstock.spark.deployments.generations import brings_tables, check_no_recompute
from penstock.spark.deployments.model import Deployment, Schedule, Status, Version
from penstock.spark.deployments.project_files import PreparedFiles
from penstock.spark.deployments.storage_place import check_storage
from penstock.spark.pipelines.errors import PipelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """What a user says about a deployment. None: as before."""

    schedule: Schedule | None = None
    master: str | None = None
    memory_mb: int | None = None
    settings: Mapping[str, str] | None = None
    secrets: Sequence[str] | None = None
    storage: str | None = None
    auto_rollback: bool | None = None
    note: str = ""
    stopped: bool = False
    reset: Sequence[str] = ()
    keep: Sequence[str] = ()


class Known(Protocol):
    """The deployments of the cluster: a `Catalog` or a `CatalogView`."""

    @property
    def deployments(self) -> Mapping[str, Deployment]: ...
    @property
    def versions(self) -> Mapping[tuple[str, int], Version]: ...
    @property
    def statuses(self) -> Mapping[str, Status]: ...
    def versions_of(self, name: str) -> list[Version]: ...


class Comparison(NamedTuple):
    """What a new version does to the flows of the version that runs."""

    version: int
    """The version that runs; 0 if the pipeline is not deployed."""
    changes: list[FlowChange]
    pending: Mapping[str, int]
    """Flows that were to begin again earlier, which is not done yet."""


def compared(known: Known, name: str, flows: Mapping[str, str]) -> Comparison:
    old = known.deployments.get(name)
    version = 0 if old is None else old.version
    before = known.versions.get((name, version))
    former = checkpoint_rules.former_flows(known.versions_of(name), version)
    changes = checkpoint_rules.compare({} if before is None else before.flows, flows, former)
    status = known.statuses.get(name)
    pending = {} if old is None else change_plan.pending_resets(old, status)
    return Comparison(version, changes, pending)


def compared_rollback(known: Known, current: Deployment, version: int) -> Comparison:
    """Compares an earlier version with the one that runs. If the tables that it computed are kept,
    its own checkpoints come with it."""
    name = current.name
    target, running = known.versions[name, version], known.versions.get((name, current.version))
    flows = {} if running is None else running.flows
    asked = change_plan.pending_resets(current, known.statuses.get(name))
    if brings_tables(current, version):
        flows, asked = target.flows, {}
    former = checkpoint_rules.former_flows(known.versions_of(name), current.version)
    changes = checkpoint_rules.compare(flows, target.flows, former)
    pending = change_plan.still_meant(asked, current.version, version)
    return Comparison(current.version, changes, pending)


def decided_rollback(
    known: Known, current: Deployment, version: int, reset: Sequence[str], keep: Sequence[str]
) -> Decision:
    """Returns what happens to each flow. Raises `PipelineError` if the rollback is not possible, or
    the user has not decided about a flow."""
    check_no_recompute(current)
    found = compared_rollback(known, current, version)
    decision = checkpoint_rules.decide(found.changes, reset, keep, found.pending)
    for flow in decision.reset:
        check_resettable(known.versions[current.name, version].kind, current.storage, flow)
    return decision


def planned(
    known: Known, name: str, files: PreparedFiles, options: DeployOptions
) -> tuple[NewVersion, Decision]:
    """Returns what `Catalog.deploy` deploys, and what happens to each flow. Raises `PipelineError`
    if the deploy is not possible, or the user has not decided about a flow."""
    found = compared(known, name, files.flows)
    decision = checkpoint_rules.decide(found.changes, options.reset, options.keep, found.pending)
    storage = options.storage if options.storage is not None else files.storage or None
    check_storage(storage or "", name, known.deployments)
    old = known.deployments.get(name)
    used = storage if storage is not None else "" if old is None else old.storage
    for flow in decision.reset:
        check_resettable(files.kind, used, flow)
    plan = NewVersion(
        name,
        files.kind,
        files.entry,
        files.archive,
        files.requirements,
        files.flows,
        options.note,
        options.schedule,
        options.master,
        options.settings,
        options.secrets,
        storage,
        options.memory_mb,
        options.auto_rollback,
        "STOPPED" if options.stopped else "RUNNING",
        decision.reset,
        decision.keep,
        expected_version=found.version,
    )
    return plan, decision


def parse_schedule(
    *, continuous: bool, every: str | None, cron: str | None, interval: float | None = None
) -> Schedule | None:
    """Returns the schedule, or None if nothing is said about it. Raises `PipelineError`."""
    # cronsim comes with the extra of Spark, which a console may do without.
    from penstock.spark.deployments.schedule import (  # noqa: PLC0415 -- see above
        ScheduleInvalid,
        check,
    )

    given = [
        option
        for option, value in (("--continuous", continuous), ("--every", every), ("--cron", cron))
        if value
    ]
    if len(given) > 1:
        raise PipelineError(f"{' and '.join(given)} cannot be combined: give one of them")
    if interval is not None and given not in ([], ["--continuous"]):
        raise PipelineError(
            f"--interval is for --continuous, and cannot be combined with {given[0]}"
        )
    if not given and interval is None:
        return None
    try:
        if every:
            schedule = Schedule(every_s=parse_duration_ms(every) / 1000)
        elif cron:
            schedule = Schedule(cron=cron)
        else:
            schedule = Schedule(continuous=True, interval_s=1.0 if interval is None else interval)
        check(schedule)
    except ScheduleInvalid as error:
        raise PipelineError(str(error)) from error
    except (ValueError, OverflowError) as error:
        raise PipelineError(f"--every: {error}") from error
    return schedule
