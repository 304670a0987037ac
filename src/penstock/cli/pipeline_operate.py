"""`penstock pipeline start|stop|restart|rollback|delete`: changes deployed pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import emit, emit_json, pipe_guard, printable
from penstock.cli.pipeline_deploy import NO_WORKER
from penstock.cli.pipeline_session import Deployed, KeepCheckpoint, Reset, done, open_catalog
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog
    from penstock.spark.deployments.checkpoint_rules import Decision
    from penstock.spark.deployments.model import Deployment

_START_HELP = """Start a deployed pipeline that is stopped or has failed.

\b
Examples:
  penstock pipeline start views
"""
_STOP_HELP = """Stop a deployed pipeline after its current round. It stays deployed.

\b
Examples:
  penstock pipeline stop views
"""
_RESTART_HELP = """Restart a deployed pipeline: its driver ends after its round and starts again.

\b
Examples:
  penstock pipeline restart views
"""
_ROLLBACK_HELP = """Go back to an earlier version of a deployed pipeline.

Without --to, it goes back to the last version that worked, or else to the version before the
current one. Checkpoints are handled as in penstock pipeline deploy. If the tables that the version
computed are kept since a swap, they come back with it.

\b
Examples:
  penstock pipeline rollback views
  penstock pipeline rollback views --to 3 --reset sessions
"""
_DELETE_HELP = """Delete a deployed pipeline, with all its versions.

A worker that runs it stops it. Its tables and checkpoints are kept: a deployment of the same name
continues with them.

\b
Examples:
  penstock pipeline delete views --yes
"""


def register(app: typer.Typer) -> None:
    app.command("start", help=_START_HELP)(start)
    app.command("stop", help=_STOP_HELP)(stop)
    app.command("restart", help=_RESTART_HELP)(restart)
    app.command("rollback", help=_ROLLBACK_HELP)(rollback)
    app.command("delete", help=_DELETE_HELP)(delete)


def start(name: Deployed, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    async def work() -> tuple[Deployment, int]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            status = catalog.statuses.get(name)
            has_ended = status is not None and status.state in ("FAILED", "COMPLETED")

            def started(old: Deployment) -> Deployment:
                restarts = old.restarts + (has_ended and old.wanted == "RUNNING")
                return replace(old, wanted="RUNNING", restarts=restarts)

            made = await _changed(catalog, name, started, "started", "")
            return made, len(catalog.live_workers())

    made, workers = done(work())
    _tell(made, f"{printable(name)} will start as soon as a worker takes it", json=json)
    if not workers and not json:
        emit(NO_WORKER)


def stop(name: Deployed, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    def stopped(old: Deployment) -> Deployment:
        return replace(old, wanted="STOPPED")

    made = done(_change(bootstrap, name, stopped, "stopped"))
    _tell(made, f"{printable(name)} stops after its current round", json=json)


def restart(
    name: Deployed, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    def restarted(old: Deployment) -> Deployment:
        return replace(old, wanted="RUNNING", restarts=old.restarts + 1)

    made = done(_change(bootstrap, name, restarted, "restarted"))
    _tell(made, f"{printable(name)} restarts after its current round", json=json)


def rollback(
    name: Deployed,
    *,
    to: Annotated[
        int | None, typer.Option("--to", min=1, metavar="N", help="The version to go back to.")
    ] = None,
    reset: Reset = None,
    keep_checkpoint: KeepCheckpoint = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    source, target, decision = done(
        _planned_rollback(bootstrap, name, to, reset or (), keep_checkpoint or ())
    )
    if not json:
        for line in decision.texts():
            emit(printable(line))
    if decision.reset:
        flows = ", ".join(decision.reset)
        confirm(f"Restart {printable(flows)} without checkpoints?", yes=yes)
    made = done(_rolled_back(bootstrap, source, target, decision))
    tables = " and the tables that it computed" if made.generation != source.generation else ""
    _tell(made, f"{printable(name)} goes back to version {target}{tables}", json=json)


async def _planned_rollback(
    bootstrap: str, name: str, to: int | None, reset: Sequence[str], keep: Sequence[str]
) -> tuple[Deployment, int, Decision]:
    """Returns the deployment, the version to go back to, and what happens to the flows."""
    from penstock.spark.deployments.deploy_plan import (  # noqa: PLC0415 -- for speed
        decided_rollback,
    )
    from penstock.spark.deployments.generations import (  # noqa: PLC0415 -- for speed
        check_no_recompute,
    )
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        current = catalog.deployment(name)
        check_no_recompute(current)
        target = to or earlier_version(catalog, current)
        if (name, target) not in catalog.versions:
            raise PipelineError(
                f"{name} has no version {target}: see penstock pipeline versions {name}"
            )
        if target == current.version:
            raise PipelineError(f"{name} is at version {target} already")
        decision = decided_rollback(catalog, current, target, reset, keep)
    return current, target, decision


def earlier_version(catalog: Catalog, current: Deployment) -> int:
    """Returns the last version that worked, or the one before the current version."""
    status = catalog.statuses.get(current.name)
    numbers = [each.number for each in catalog.versions_of(current.name)]
    good = 0 if status is None else status.good_version
    if good != current.version and good in numbers:
        return good
    return next((number for number in numbers if number < current.version), 0)


async def _rolled_back(
    bootstrap: str, source: Deployment, target: int, decision: Decision
) -> Deployment:
    from penstock.spark.deployments.rollback import asked_rollback  # noqa: PLC0415 -- for speed

    back, text = asked_rollback(source, target, SystemClock().wall_ms())
    async with open_catalog(bootstrap) as catalog:
        return await catalog.change(
            source.name, back, "rolled-back", text, reset=decision.reset, keep=decision.keep
        )


def delete(
    name: Deployed,
    *,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def look() -> Deployment:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            return catalog.deployment(name)

    async def work() -> None:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            catalog.deployment(name)
            await catalog.delete(name)

    old = done(look())
    confirm(f"Delete the deployment {printable(name)} with all its versions?", yes=yes)
    done(work())
    with pipe_guard():
        if json:
            emit_json({"deleted": name, "storage": old.storage or None})
            return
        emit(f"deleted {printable(name)}")
        where = printable(old.storage) if old.storage else "the data folder of its worker"
        emit(f"its tables and checkpoints are kept in {where}")


async def _change(
    bootstrap: str, name: str, change: Callable[[Deployment], Deployment], what: str
) -> Deployment:
    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        return await _changed(catalog, name, change, what, "")


async def _changed(
    catalog: Catalog,
    name: str,
    change: Callable[[Deployment], Deployment],
    what: str,
    text: str,
) -> Deployment:
    # Without this a mistyped name would initialise a transactional id first.
    catalog.deployment(name)
    return await catalog.change(name, change, what, text)


def _tell(made: Deployment, text: str, *, json: bool) -> None:
    with pipe_guard():
        if json:
            emit_json(changed_json(made))
        else:
            emit(text)


def changed_json(made: Deployment) -> dict[str, Any]:
    return {
        "name": made.name,
        "revision": made.revision,
        "version": made.version,
        "wanted": made.wanted,
    }
