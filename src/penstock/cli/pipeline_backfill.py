"""`penstock pipeline backfill`: lets a running flow read older records of its topics, too."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    count,
    emit,
    emit_json,
    pipe_guard,
    printable,
    time_text,
)
from penstock.cli.pipeline_backfill_view import COLUMNS, OPEN, backfills_json, progress_text, row
from penstock.cli.pipeline_session import Deployed, done, open_catalog, told
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect
from penstock.cli.tables import table
from penstock.client.times import TIME_FORMS, parse_time_ms
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from penstock.spark.deployments.backfill_plan import Figures
    from penstock.spark.deployments.backfill_requests import PlannedBackfill
    from penstock.spark.stream_position import BackfillRequest

_HELP = """Let a flow of a deployed pipeline read older records of its topics.

The running stream reads them beside new records, into the same table, each exactly once. Records
that the flow has read before are left out, unless --again is given. --from and --to are compared
with the timestamps of the records. The command first shows what would be read, and asks.

The backfill continues after failures, restarts and new versions. See its progress with --list or
penstock pipeline status, and end it with --cancel.

\b
Examples:
  penstock pipeline backfill views page_views --from 2026-01-01 --wait
  penstock pipeline backfill views page_views --from 30d --to 7d --again
  penstock pipeline backfill views --list
  penstock pipeline backfill views page_views --cancel
"""
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmg]?)i?b?", re.IGNORECASE)


def register(app: typer.Typer) -> None:
    app.command("backfill", help=_HELP)(backfill)


def backfill(
    name: Deployed,
    flow: Annotated[
        str | None, typer.Argument(metavar="[FLOW]", help="The flow that reads the older records.")
    ] = None,
    *,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help=TIME_FORMS)] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="End of the time range. Default: now."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Include records already read.")] = False,
    bytes_max: Annotated[
        str,
        typer.Option(
            "--max-bytes-per-trigger",
            metavar="SIZE",
            help="The most bytes to read in one micro-batch, such as 64m.",
        ),
    ] = "64m",
    show: Annotated[bool, typer.Option("--list", help="Show the last backfills.")] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Cancel the backfill. What it has read stays in the result."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the backfill has ended.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=1, metavar="S", help="How long --wait waits, in seconds."),
    ] = 86_400.0,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    _check_together(flow, since, show=show, cancel=cancel)
    if show:
        _list(bootstrap, name, flow, json=json)
        return
    assert flow is not None, "it was checked"
    if cancel:
        ended = done(_cancelled(bootstrap, name, flow))
        _tell(
            {"cancelled": ended.id},
            f"cancelled backfill {ended.id}; what it has read stays in the result",
            json=json,
        )
        return
    now_ms = SystemClock().wall_ms()
    request = _request(flow, since or "", to, now_ms, again=again, bytes_max=bytes_max)
    _begin(bootstrap, name, request, yes=yes, json=json, wait_s=timeout if wait else None)


def _check_together(flow: str | None, since: str | None, *, show: bool, cancel: bool) -> None:
    if show and cancel:
        raise CommandFailed("use --list or --cancel, not both")
    if flow is None and not show:
        raise CommandFailed("name the flow: penstock pipeline backfill NAME FLOW --from TIME")
    if since is None and not (show or cancel):
        raise CommandFailed(f"--from is missing: give the time at which to begin, as {TIME_FORMS}")


def _request(
    flow: str, since: str, to: str | None, now_ms: int, *, again: bool, bytes_max: str
) -> BackfillRequest:
    """Returns the request without its ranges."""
    from penstock.spark.deployments.backfill_requests import (  # noqa: PLC0415 -- for speed
        new_request,
    )

    times = []
    for option, text in (("--from", since), ("--to", "now" if to is None else to)):
        try:
            times.append(parse_time_ms(text, now_ms))
        except ValueError as error:
            raise CommandFailed(f"{option}: {error}") from error
    if times[0] >= times[1]:
        raise CommandFailed(
            f"--from {time_text(times[0])} is not before --to {time_text(times[1])}"
        )
    size = parse_bytes(bytes_max)
    with told():
        return new_request(flow, times[0], times[1], now_ms, again=again, bytes_max=size)


def parse_bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise CommandFailed(f"--max-bytes-per-trigger {text}: give a size such as 16m or 1g")
    return int(found[1]) << 10 * " kmg".index(found[2].lower() or " ")


# -- beginning ------------------------------------------------------------------------------------


def _begin(
    bootstrap: str,
    name: str,
    request: BackfillRequest,
    *,
    yes: bool,
    json: bool,
    wait_s: float | None,
) -> None:
    plan = done(_planned(bootstrap, name, request))
    if not json:
        for line in _texts(request, plan.found, name, plan.flow.quarantine):
            emit(line)
    with told():
        plan.check()
    confirm(_question(request, plan.found), yes=yes)
    made = done(_requested(bootstrap, name, plan))
    result = {"id": made.id, "flow": made.flow, **_figures_json(plan.found)}
    if plan.flow.quarantine:
        result["quarantine"] = plan.flow.quarantine
    text = f"backfill {made.id} of {printable(made.flow)} is requested"
    if wait_s is None:
        _tell(result, text, json=json)
        return
    if not json:
        emit(text)
    ended = done(_ended(bootstrap, name, made, wait_s))
    _tell({**result, **ended}, f"backfill {made.id}: {progress_text(ended)}", json=json)


async def _planned(bootstrap: str, name: str, request: BackfillRequest) -> PlannedBackfill:
    """Looks at the flow and at its topics. Changes nothing."""
    from penstock.spark.deployments import backfill_requests  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        deployment = catalog.deployment(name)
        version = catalog.versions.get((name, deployment.version))
        status = catalog.statuses.get(name)
    flow = backfill_requests.checked_flow(deployment, version, status, request)
    async with connect(backfill_requests.broker_address(deployment, bootstrap)) as admin:
        return await backfill_requests.planned(admin, flow, request)


def _texts(request: BackfillRequest, found: Figures, name: str, quarantine: str) -> list[str]:
    records, partitions = count(found.records, "record"), count(len(found.ranges), "partition")
    times = f"{time_text(request.from_ms)} to {time_text(request.to_ms)}"
    lines = [f"{printable(request.flow)}: {records} in {partitions}, from {times}"]
    if found.left_out:
        lines.append(f"left out, because the flow reads them itself: {found.left_out:,}")
    if found.deleted:
        oldest = f"; the oldest record left is from {time_text(found.oldest_ms)}"
        lines.append(
            "retention deleted the start of this range: the first "
            f"{count(found.deleted, 'offset')} of these partitions cannot be read"
            f"{oldest if found.oldest_ms else ''}"
        )
    if quarantine:
        lines.append(
            f"rows that {printable(request.flow)} quarantines are not written by this backfill: "
            f"for these, also run penstock pipeline backfill {name} {printable(quarantine)} with "
            "the same range"
        )
    return lines


def _question(request: BackfillRequest, found: Figures) -> str:
    text = f"Read {count(found.records, 'record')} into {printable(request.flow)}?"
    if found.repeated:
        text = (
            f"{found.repeated:,} of these records were read before. Reading them again duplicates "
            f"their rows, unless the table replaces rows by key. {text}"
        )
    return text


def _figures_json(found: Figures) -> dict[str, Any]:
    return {
        "records": found.records,
        "repeated": found.repeated,
        "left_out": found.left_out,
        "deleted": found.deleted,
    }


async def _requested(bootstrap: str, name: str, plan: PlannedBackfill) -> BackfillRequest:
    from penstock.spark.deployments import backfill_requests  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        return await backfill_requests.requested(catalog, name, plan)


async def _cancelled(bootstrap: str, name: str, flow: str) -> BackfillRequest:
    from penstock.spark.deployments import backfill_requests  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        return await backfill_requests.cancelled(catalog, name, flow)


# -- progress -------------------------------------------------------------------------------------


async def _ended(
    bootstrap: str, name: str, request: BackfillRequest, wait_s: float
) -> dict[str, Any]:
    """Waits until the backfill has ended."""
    news = asyncio.Event()
    async with open_catalog(bootstrap) as catalog:
        catalog.on_change(news.set)
        await catalog.caught_up()
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    news.clear()
                    found = next(
                        (
                            each
                            for each in backfills_json(catalog, name)
                            if each["id"] == request.id
                        ),
                        None,
                    )
                    if found is None:
                        raise CommandFailed(
                            f"backfill {request.id} no longer exists: "
                            f"see penstock pipeline history {name}",
                            EXIT_UNSOUND,
                        )
                    if found["state"] not in OPEN:
                        return found
                    await news.wait()
        except TimeoutError:
            raise CommandFailed(
                f"backfill {request.id} is still running after {wait_s:.0f} s, and continues: see "
                f"penstock pipeline backfill {name} --list",
                EXIT_UNSOUND,
            ) from None


def _list(bootstrap: str, name: str, flow: str | None, *, json: bool) -> None:
    async def work() -> list[dict[str, Any]]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            return backfills_json(catalog, name)

    found = [each for each in done(work()) if flow in (None, each["flow"])]
    with pipe_guard():
        if json:
            emit_json({"backfills": found})
        elif found:
            emit(table(COLUMNS, [row(each) for each in found]))
        else:
            emit("no backfill was requested")


def _tell(found: dict[str, Any], text: str, *, json: bool) -> None:
    with pipe_guard():
        if json:
            emit_json(found)
        else:
            emit(text)
