"""`penstock pipeline list` and `status`: projects of this user, and deployed pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import CommandFailed, emit, emit_json, json_text, pipe_guard, printable
from penstock.cli.output import time_text as at
from penstock.cli.pipeline_backfill_view import backfills_json, open_backfill_texts
from penstock.cli.pipeline_recompute_view import recompute_lines
from penstock.cli.pipeline_session import done, open_catalog, told
from penstock.cli.pipeline_view import COLUMNS, flow_rows
from penstock.cli.session import DEFAULT_BOOTSTRAP
from penstock.cli.tables import Column, table
from penstock.cli.watching import Interval, Watch, shown

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog
    from penstock.spark.deployments.model import Schedule
    from penstock.spark.pipelines.project import Project

_LIST_HELP = """List the deployed pipelines, and the projects that this user has created or run.

\b
Examples:
  penstock pipeline list
"""
_STATUS_HELP = """Show a deployed pipeline, or the last run of a project's folder.

If a folder and a deployment have the same name, it shows the folder, unless --deployed is given.

\b
Examples:
  penstock pipeline status
  penstock pipeline status views --deployed --watch
  penstock pipeline status views --json | jq '.flows[] | {name, lag}'
"""
_What = Annotated[
    str,
    typer.Argument(
        metavar="[PROJECT|NAME]", help="Project folder or deployment. Default: the current folder."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("list", help=_LIST_HELP)(list_)
    app.command("status", help=_STATUS_HELP)(status)


def list_(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    projects = _listed_projects()
    deployments, reason = _listed_deployments(bootstrap)
    with pipe_guard():
        if json:
            unknown = {"deployments_unknown": reason} if reason else {}
            emit_json({"pipelines": projects, "deployments": deployments, **unknown})
            return
        if deployments:
            names = ("deployed", "state", "version", "schedule", "worker")
            rows = [
                (
                    each["name"],
                    str(each["state"]).lower(),
                    each["version"],
                    each["schedule"],
                    each["host"] or None,
                )
                for each in deployments
            ]
            emit(table(tuple(map(Column, names)), rows))
        if reason:
            emit(f"deployed pipelines are not shown: {reason}")
        if projects:
            columns = Column("project"), Column("last run"), Column("at"), Column("folder")
            emit(table(columns, [_project_row(each) for each in projects]))
        elif not deployments:
            emit("no pipelines yet: create one with: penstock pipeline init NAME")


def _listed_projects() -> list[dict[str, Any]]:
    from penstock.spark.pipelines import state_files  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- only when used
    from penstock.spark.pipelines.project import find_project  # noqa: PLC0415 -- only when used

    found: list[dict[str, Any]] = []
    for root in state_files.projects():
        last = state_files.load_run(root)
        try:
            name = find_project(root).name
        except PipelineError:
            name = root.name
        found.append(
            {
                "name": name,
                "path": str(root),
                "state": "NEVER RUN" if last is None else last.state,
                "updated_ms": None if last is None else last.content.get("updated_ms"),
            }
        )
    return found


def _project_row(each: dict[str, Any]) -> tuple[object, ...]:
    when = None if each["updated_ms"] is None else at(each["updated_ms"])
    return each["name"], str(each["state"]).lower(), when, each["path"]


def _listed_deployments(bootstrap: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the deployments, and the reason if they cannot be read. The projects of this user
    are shown without a cluster, too."""

    async def work() -> list[dict[str, Any]]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            return [deployment_json(catalog, name) for name in sorted(catalog.deployments)]

    try:
        return done(work()), ""
    except CommandFailed as error:
        return [], str(error)


def status(
    what: _What = ".",
    *,
    deployed: Annotated[
        bool, typer.Option("--deployed", help="Show the deployment, even if a folder exists.")
    ] = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    from penstock.spark.deployments.model import NAME  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.project import find_project  # noqa: PLC0415 -- for speed

    if deployed or (not Path(what).exists() and NAME.fullmatch(what)):
        with pipe_guard():
            done(_show_deployment(what, bootstrap, watch=watch, interval_s=interval, json=json))
        return
    with told():
        project = find_project(Path(what))

    async def look() -> dict[str, Any]:
        return _project_json(project)

    def text(found: dict[str, Any]) -> str:
        return json_text(found) if json else _project_text(found)

    with pipe_guard():
        done(shown(look, text, json=json, watch=watch, interval_s=interval))


def _project_json(project: Project) -> dict[str, Any]:
    from penstock.spark.pipelines import state_files  # noqa: PLC0415 -- for speed

    last = state_files.load_run(project.root)
    content = {} if last is None else dict(last.content)
    state = "NEVER RUN" if last is None else last.state
    return {**content, "name": project.name, "path": str(project.root), "state": state}


def _project_text(found: dict[str, Any]) -> str:
    name = printable(found["name"])
    if found["state"] == "NEVER RUN":
        return f"{name} was never run; run it with: penstock pipeline run"
    head = (
        f"{name}  {found['state'].lower()}  round {found['round']}  "
        f"on {printable(str(found['master']))}  "
        f"{at(found['started_ms'])} to {at(found['updated_ms'])}"
    )
    error = [printable(str(found["error"]))] if found["error"] else []
    return "\n".join((head, *error, table(COLUMNS, flow_rows(found["flows"]))))


async def _show_deployment(
    name: str, bootstrap: str, *, watch: bool, interval_s: float, json: bool
) -> None:
    async with open_catalog(bootstrap) as catalog:

        async def look() -> dict[str, Any]:
            await catalog.caught_up()
            return deployment_json(catalog, name)

        def text(found: dict[str, Any]) -> str:
            return json_text(found) if json else deployment_text(found)

        await shown(look, text, json=json, watch=watch, interval_s=interval_s)


def deployment_json(catalog: Catalog, name: str) -> dict[str, Any]:
    """Returns all that is known of a deployment."""
    from penstock.spark.deployments import recompute_requests  # noqa: PLC0415 -- for speed

    deployment = catalog.deployment(name)
    reported = catalog.statuses.get(name)
    run = {} if reported is None else reported.run
    state = catalog.state(name)
    # If it waits for a worker, the last one that reported on it is gone or has given it up.
    has_worker = reported is not None and state != "WAITING FOR A WORKER"
    return {
        "name": name,
        "state": state,
        "waiting": _waiting(catalog, name),
        "wanted": deployment.wanted,
        "version": deployment.version,
        "revision": deployment.revision,
        "schedule": schedule_text(deployment.schedule),
        "master": deployment.master,
        "memory_mb": deployment.memory_mb,
        "settings": deployment.settings,
        "secrets": deployment.secrets,
        "storage": deployment.storage,
        "auto_rollback": deployment.auto_rollback,
        "changed_ms": deployment.changed_ms,
        "changed_by": deployment.changed_by,
        "running_version": 0 if reported is None else reported.version,
        "good_version": 0 if reported is None else reported.good_version,
        "worker": reported.worker if reported is not None and has_worker else "",
        "host": reported.host if reported is not None and has_worker else "",
        "since_ms": 0 if reported is None else reported.since_ms,
        "updated_ms": 0 if reported is None else reported.updated_ms,
        "failures": 0 if reported is None else reported.failures,
        "next_ms": 0 if reported is None else reported.next_ms,
        "error": "" if reported is None else reported.error,
        "round": run.get("round", 0),
        "flows": _flows(run),
        "place": "" if reported is None else reported.place,
        **recompute_requests.described(deployment, reported),
        "backfills": backfills_json(catalog, name),
    }


def _waiting(catalog: Catalog, name: str) -> str:
    """Returns why no worker has a pipeline, and what to do; empty if it does not wait for one."""
    from penstock.spark.deployments.waiting import waiting_reason  # noqa: PLC0415 -- for speed

    if catalog.state(name) != "WAITING FOR A WORKER":
        return ""
    return waiting_reason(name, catalog.deployments, catalog.statuses, catalog.live_workers())


def _flows(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the flows of a run, if a worker of this version has written them."""
    flows = run.get("flows")
    if not isinstance(flows, list):
        return []
    try:
        flow_rows(flows)
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return flows


def deployment_text(found: dict[str, Any]) -> str:
    head = f"{printable(found['name'])}  {found['state'].lower()}  version {found['version']}"
    if found["host"]:
        head += f"  on {printable(found['host'])}"
    if found["since_ms"]:
        head += f"  since {at(found['since_ms'])}"
    lines = [head, f"{found['schedule']}, {found['memory_mb']} MB, {printable(found['master'])}"]
    if found["running_version"] not in (0, found["version"]):
        lines.append(f"version {found['running_version']} ran last")
    if found["next_ms"] and found["state"] in ("WAITING FOR ITS TIME", "BACKING OFF"):
        lines.append(f"next start: {at(found['next_ms'])}")
    if found["state"] == "WAITING FOR A WORKER":
        lines.append(printable(found["waiting"]))
    if found["error"]:
        failures = f" ({found['failures']} times)" if found["failures"] > 1 else ""
        lines.append(f"failed{failures}: {printable(found['error'])}")
    if found["flows"]:
        lines.append(table(COLUMNS, flow_rows(found["flows"])))
    lines += open_backfill_texts(found["backfills"])
    return "\n".join([*lines, *recompute_lines(found)])


def schedule_text(schedule: Schedule) -> str:
    if schedule.cron:
        return f"cron {printable(schedule.cron)}"
    if schedule.every_s:
        return f"every {schedule.every_s:g} s"
    return f"continuous, {schedule.interval_s:g} s between batches"
