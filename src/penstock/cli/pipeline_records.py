"""`penstock pipeline versions|history|logs|workers`: shows the records of deployed pipelines."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated, Any

import typer

from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import emit, emit_json, pipe_guard, printable, size_text, time_text
from penstock.cli.pipeline_session import Deployed, done, open_catalog, since_ms
from penstock.cli.session import DEFAULT_BOOTSTRAP
from penstock.cli.tables import Column, table
from penstock.runtime import SystemClock

_VERSIONS_HELP = """List the versions of a deployed pipeline. The last ten are kept.

\b
Examples:
  penstock pipeline versions views
"""
_HISTORY_HELP = """Show what happened to a deployed pipeline: deployed, failed, moved, ...

\b
Examples:
  penstock pipeline history views
  penstock pipeline history views --since 1d --json
"""
_LOGS_HELP = """Show what the drivers of a deployed pipeline printed, in the last hour by default.

\b
Examples:
  penstock pipeline logs views --follow
  penstock pipeline logs views --since 2d | grep ERROR
"""
_WORKERS_HELP = """List the workers, and the deployed pipelines that each of them runs.

\b
Examples:
  penstock pipeline workers
"""
_DEFAULT_SINCE = "1h"
_Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="10m, 2h, 1d (ago), or a time.")
]


def register(app: typer.Typer) -> None:
    app.command("logs", help=_LOGS_HELP)(logs)
    app.command("history", help=_HISTORY_HELP)(history)
    app.command("versions", help=_VERSIONS_HELP)(versions)
    app.command("workers", help=_WORKERS_HELP)(workers)


def versions(
    name: Deployed, *, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False
) -> None:
    async def work() -> list[dict[str, Any]]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            current = catalog.deployment(name)
            status = catalog.statuses.get(name)
            return [
                {
                    "version": each.number,
                    "current": each.number == current.version,
                    "good": status is not None and each.number == status.good_version,
                    "deployed_ms": each.deployed_ms,
                    "deployed_by": each.deployed_by,
                    "bytes": each.archive_size,
                    "flows": sorted(each.flows),
                    "note": each.note,
                }
                for each in catalog.versions_of(name)
            ]

    found = done(work())
    with pipe_guard():
        if json:
            emit_json({"name": name, "versions": found})
            return
        columns = (
            Column("version", right=True),
            Column("current"),
            Column("good"),
            Column("deployed"),
            Column("by"),
            Column("size", right=True),
            Column("note"),
        )
        rows = [
            (
                each["version"],
                each["current"],
                each["good"],
                time_text(each["deployed_ms"]),
                each["deployed_by"],
                size_text(each["bytes"]),
                each["note"],
            )
            for each in found
        ]
        emit(table(columns, rows))


def history(
    name: Deployed,
    *,
    since: _Since = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    begin = since_ms(since, SystemClock().wall_ms())

    async def work() -> list[dict[str, Any]]:
        async with open_catalog(bootstrap) as catalog:
            if catalog.is_empty_cluster:
                catalog.deployment(name)
            return [
                {
                    "at_ms": event.at_ms,
                    "what": event.what,
                    "version": event.version,
                    "by": event.by,
                    "worker": event.worker,
                    "text": event.text,
                }
                async for event in catalog.history(name, begin)
            ]

    found = done(work())
    with pipe_guard():
        if json:
            emit_json({"name": name, "events": found})
        elif not found:
            emit(f"{printable(name)} has no history")
        else:
            columns = tuple(map(Column, ("at", "what", "version", "user or worker", "details")))
            rows = [
                (
                    time_text(each["at_ms"]),
                    each["what"],
                    each["version"] or None,
                    each["by"] or each["worker"],
                    each["text"],
                )
                for each in found
            ]
            emit(table(columns, rows))


def logs(
    name: Deployed,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")
    ] = False,
    since: _Since = _DEFAULT_SINCE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    begin = since_ms(since, SystemClock().wall_ms())

    async def work() -> None:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            if follow or catalog.is_empty_cluster:
                catalog.deployment(name)
            lines = catalog.logs(name, follow=follow, since_ms=begin)
            number = 0
            async with aclosing(lines):
                async for line in lines:
                    number += 1
                    if json:
                        emit_json({"at_ms": line.at_ms, "version": line.version, "text": line.text})
                    else:
                        emit(printable(line.text))
                    if follow:
                        sys.stdout.flush()
            if not number:
                # Lines of a deployment that was deleted are still there.
                catalog.deployment(name)

    with pipe_guard():
        done(work())


def workers(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    async def work() -> list[dict[str, Any]]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            return [
                {
                    "id": each.id,
                    "host": each.host,
                    "state": state,
                    "pipelines": sorted(each.pipelines),
                    "memory_mb": each.memory_mb,
                    "spark": each.spark,
                    "penstock": each.penstock,
                    "started_ms": each.started_ms,
                    "updated_ms": each.updated_ms,
                }
                for each, state in catalog.shown_workers()
            ]

    found = done(work())
    with pipe_guard():
        if json:
            emit_json({"workers": found})
        elif not found:
            emit("no workers: start one with: penstock pipeline worker")
        else:
            columns = tuple(map(Column, ("worker", "host", "state", "pipelines", "last report")))
            rows = [
                (
                    each["id"],
                    each["host"],
                    each["state"],
                    ", ".join(each["pipelines"]) or None,
                    time_text(each["updated_ms"]),
                )
                for each in found
            ]
            emit(table(columns, rows))
