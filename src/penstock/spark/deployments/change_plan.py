"""Decides what a change of a deployment writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from penstock.spark.deployments import generations
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.deployments.generations import RecomputeOrder
from penstock.spark.deployments.model import (
    Deployment,
    Kind,
    Schedule,
    Status,
    Version,
    Wanted,
)
from penstock.spark.deployments.storage_place import check_storage
from penstock.spark.pipelines.errors import PipelineError

VERSIONS_KEPT: Final = 10


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What `Catalog.deploy` deploys. None: as before, or the default for a new deployment."""

    name: str
    kind: Kind
    entry: str
    archive: bytes = field(repr=False)
    requirements: str = ""
    flows: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    schedule: Schedule | None = None
    master: str | None = None
    settings: Mapping[str, str] | None = None
    secrets: Sequence[str] | None = None
    storage: str | None = None
    memory_mb: int | None = None
    auto_rollback: bool | None = None
    wanted: Wanted = "RUNNING"
    reset_flows: Sequence[str] = ()
    kept_flows: Sequence[str] = ()
    """Flows that keep their checkpoints: they do not begin again, even if they were to."""
    expected_version: int | None = None
    """The version that runs now (0: none), if this one was compared with it."""
    recompute: RecomputeOrder | None = None
    """The version does not run at once: it computes tables again, and runs after the swap."""


class Change(NamedTuple):
    """Who changes something, and when."""

    user: str
    at_ms: int


class Removal(NamedTuple):
    """A version that is removed. Its chunks stay if another version has the same archive."""

    version: Version
    with_chunks: bool


def next_version(view: CatalogView, plan: NewVersion, archive: str, change: Change) -> Version:
    """Returns the new version. A number is not used again after a deletion, because workers keep
    files by version."""
    known = [version.number for version in view.versions_of(plan.name)]
    if (status := view.statuses.get(plan.name)) is not None:
        known += [status.version, status.good_version]
    return Version(
        plan.name,
        max(known, default=0) + 1,
        plan.kind,
        plan.entry,
        archive,
        len(plan.archive),
        plan.requirements,
        dict(plan.flows),
        change.at_ms,
        change.user,
        plan.note,
    )


def planned(view: CatalogView, plan: NewVersion, version: int, change: Change) -> Deployment:
    """Returns the deployment that runs the new version."""
    status = view.statuses.get(plan.name)
    old = view.deployments.get(plan.name)
    if old is not None:
        generations.check_no_recompute(old)
    check_storage(plan.storage or "", plan.name, view.deployments)
    if plan.recompute is not None:
        if old is None:
            raise PipelineError(f"{plan.name} is not deployed, so there is nothing to recompute")
        begun = generations.begun(old, version, plan.recompute, change.at_ms)
        return revised(old, begun, status, (), change)
    if old is None:
        # Revisions go on after a deletion: the last status refers to them.
        old = _after_deletion(plan.name, status, version)
    given: dict[str, Any] = {
        "schedule": plan.schedule,
        "master": plan.master,
        "settings": None if plan.settings is None else dict(plan.settings),
        "secrets": None if plan.secrets is None else list(plan.secrets),
        "storage": plan.storage,
        "memory_mb": plan.memory_mb,
        "auto_rollback": plan.auto_rollback,
    }
    wanted = replace(
        old,
        version=version,
        wanted=plan.wanted,
        **{key: value for key, value in given.items() if value is not None},
    )
    if wanted.storage != old.storage:
        wanted = replace(wanted, kept=None)  # They are in the other storage.
    kept = plan.kept_flows
    return revised(old, wanted, status, plan.reset_flows, change, keep=kept, is_new=True)


def deployed_text(plan: NewVersion, version: int) -> tuple[str, str]:
    """Returns what the history says about a deploy: one word, and a text."""
    note = f": {plan.note}" if plan.note else ""
    if plan.recompute is None:
        return "deployed", f"version {version}{note}"
    return "recompute", f"{', '.join(plan.recompute.tables)}, with version {version}{note}"


def _after_deletion(name: str, status: Status | None, version: int) -> Deployment:
    if status is None:
        return Deployment(name, 0, version, first_version=version)
    last = max(status.revision, status.reset_revision)
    generation = max(status.generation, 0)
    highest = max(status.generations, generation)
    return Deployment(
        name,
        last,
        version,
        first_version=version,
        generation=generation,
        generations=highest,
    )


def revised(
    old: Deployment,
    wanted: Deployment,
    status: Status | None,
    reset: Sequence[str],
    change: Change,
    *,
    keep: Sequence[str] = (),
    is_new: bool = False,
) -> Deployment:
    """Completes a change. `reset` are the flows that begin again. Those of earlier changes stay in
    the list until a worker has reported that they have begun, other tables are served, the user
    says that a flow keeps its checkpoint (`keep`), or the version for which it was asked is left.
    `is_new`: the version was not deployed before. It takes over what was asked for earlier ones."""
    pending = {} if wanted.generation != old.generation else pending_resets(old, status)
    if not is_new:
        pending = still_meant(pending, old.version, wanted.version)
    asked = {flow: version for flow, version in pending.items() if flow not in keep}
    asked |= dict.fromkeys(reset, wanted.version)
    revision = old.revision + 1
    return replace(
        wanted,
        name=old.name,
        revision=revision,
        reset_flows=sorted(asked),
        reset_versions=asked,
        # A flow that begins again reads everything anew, and has a new checkpoint, which would not
        # know that a backfill was done before.
        backfills=[each for each in wanted.backfills if each.flow not in reset],
        reset_revision=revision if reset else old.reset_revision,
        changed_ms=change.at_ms,
        changed_by=change.user,
    )


def pending_resets(deployment: Deployment, status: Status | None) -> dict[str, int]:
    """Returns the flows that are still to begin again, and for which version. An old record does
    not say that: then it is the one that runs."""
    if status is not None and status.reset_revision >= deployment.reset_revision:
        return {}
    asked = deployment.reset_versions
    return {flow: asked.get(flow, deployment.version) for flow in deployment.reset_flows}


def still_meant(pending: Mapping[str, int], left: int, version: int) -> dict[str, int]:
    """Returns the flows that still begin again after a return from version `left` to one that was
    deployed before: not those that were to do so for the version that is left, or for later ones
    than the one that is taken."""
    if left == version:
        return dict(pending)
    return {flow: asked for flow, asked in pending.items() if asked <= version and asked != left}


def given_up_text(old: Deployment, new: Deployment, status: Status | None) -> str:
    """Returns what a return to another version gives up of what was to be done for the one that is
    left; empty if nothing."""
    if old.version == new.version:
        return ""
    given_up = []
    if flows := sorted(pending_resets(old, status).keys() - set(new.reset_flows)):
        given_up.append(f"the reset of flows ({', '.join(flows)})")
    recompute = old.recompute
    if recompute is not None and recompute.version == old.version and new.recompute is None:
        given_up.append("the recompute")
    if not given_up:
        return ""
    return f"; dropped what was pending for the other version: {', '.join(given_up)}"


def removals(view: CatalogView, newest: Version) -> Iterator[Removal]:
    """Yields what is removed when `newest` is added: all but the last versions. The last version
    that worked is kept, however old it is."""
    name = newest.name
    versions = view.versions_of(name)
    status = view.statuses.get(name)
    good = 0 if status is None else status.good_version
    old = view.deployments.get(name)
    used_by = set() if old is None else generations.used_versions(old)
    gone = {each.number for each in versions[VERSIONS_KEPT - 1 :]} - {good} - used_by
    used = {each.archive for each in versions if each.number not in gone} | {newest.archive}
    for each in versions:
        if each.number in gone:
            yield Removal(each, with_chunks=each.archive not in used)
