"""`penstock pipeline backfill`: lets a running flow read older records of its topics, too."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
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
from penstock.cli.pipeline_session import Deployed, done, open_catalog
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    checked,
    confirm,
)
from penstock.cli.tables import table
from penstock.cli.times import TIME_FORMS, parse_time_ms
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from penstock.spark.deployments.backfill_plan import Figures, FlowToFill, LogFacts
    from penstock.spark.deployments.model import Deployment
    from penstock.spark.stream_position import BackfillRequest
    from penstock.topic_partition import TopicPartition

_HELP = """Let a flow of a deployed pipeline read older records of its topics.

The running stream reads them beside new records, into the same table, each exactly once. Records
that the flow has read before are left out, unless --again is given. The range is that of the
records' timestamps. Shows first what would be read.

The backfill goes on after failures, restarts and new versions. See its progress with --list or
penstock pipeline status, and end it with --cancel.

\b
Examples:
  penstock pipeline backfill views clicks --from 2026-01-01 --to 2026-02-01
  penstock pipeline backfill views clicks --from 7d --again --wait
  penstock pipeline backfill views --list
  penstock pipeline backfill views clicks --cancel
"""
_SIZE: Final = re.compile(r"(\d{1,12})\s*([kmg]?)i?b?", re.IGNORECASE)


def register(app: typer.Typer) -> None:
    app.command("backfill", help=_HELP)(backfill)


def backfill(
    name: Deployed,
    flow: Annotated[str | None, typer.Argument(metavar="[FLOW]", help="The flow.")] = None,
    *,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help=TIME_FORMS)] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Default: now.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include records it has already read.")
    ] = False,
    bytes_max: Annotated[
        str,
        typer.Option("--max-bytes-per-trigger", metavar="SIZE", help="Read in each micro-batch."),
    ] = "64m",
    show: Annotated[bool, typer.Option("--list", help="Show the last backfills.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop it; what it read stays.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Of --wait, in seconds.")
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
        _tell({"cancelled": ended.id}, f"backfill {ended.id} ends where it is", json=json)
        return
    now_ms = SystemClock().wall_ms()
    request = _request(flow, since or "", to, now_ms, again=again, bytes_max=bytes_max)
    _begin(bootstrap, name, request, yes=yes, json=json, wait_s=timeout if wait else None)


def _check_together(flow: str | None, since: str | None, *, show: bool, cancel: bool) -> None:
    if show and cancel:
        raise CommandFailed("--list and --cancel exclude each other: give one")
    if flow is None and not show:
        raise CommandFailed("name the flow: penstock pipeline backfill NAME FLOW --from TIME")
    if since is None and not (show or cancel):
        raise CommandFailed(f"--from is missing: give the time at which to begin, as {TIME_FORMS}")


def _request(
    flow: str, since: str, to: str | None, now_ms: int, *, again: bool, bytes_max: str
) -> BackfillRequest:
    """Returns the request without its ranges."""
    from penstock.spark.stream_position import BackfillRequest  # noqa: PLC0415 -- for speed

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
    return BackfillRequest(
        0,
        flow,
        {},
        again=again,
        bytes_max=parse_bytes(bytes_max),
        from_ms=times[0],
        to_ms=times[1],
        requested_ms=now_ms,
    )


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
    from penstock.spark.deployments.backfill_plan import check_figures  # noqa: PLC0415 -- for speed
    from penstock.spark.offset_ranges import to_json  # noqa: PLC0415 -- for speed

    flow, found = done(_planned(bootstrap, name, request))
    if not json:
        for line in _texts(request, found):
            emit(line)

    async def check() -> None:
        check_figures(flow, found, again=request.again)

    done(check())
    confirm(_question(request, found), yes=yes)
    wanted = replace(request, ranges=to_json(found.ranges), sources=flow.sources)
    made = done(_requested(bootstrap, name, wanted, found))
    result = {"id": made.id, "flow": made.flow, **_figures_json(found)}
    text = f"backfill {made.id} of {printable(made.flow)} is requested"
    if wait_s is None:
        _tell(result, text, json=json)
        return
    if not json:
        emit(text)
    ended = done(_ended(bootstrap, name, made, wait_s))
    _tell({**result, **ended}, f"backfill {made.id}: {progress_text(ended)}", json=json)


async def _planned(
    bootstrap: str, name: str, request: BackfillRequest
) -> tuple[FlowToFill, Figures]:
    """Looks at the flow and at its topics. Changes nothing."""
    from penstock.spark.deployments import backfill_plan  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.project import BOOTSTRAP_SETTING  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        deployment = catalog.deployment(name)
        version = catalog.versions.get((name, deployment.version))
        status = catalog.statuses.get(name)
    if version is None:
        raise PipelineError(f"{name} has no version {deployment.version}: deploy it again")
    flow = backfill_plan.flow_to_fill(deployment, version, status, request.flow)
    backfill_plan.with_request(deployment, status, request)
    address = deployment.settings.get(BOOTSTRAP_SETTING, bootstrap)
    facts = await _facts(address, flow.topic_partitions, request)
    return flow, backfill_plan.figures(flow, facts, again=request.again)


async def _facts(
    bootstrap: str, topic_partitions: list[TopicPartition], request: BackfillRequest
) -> LogFacts:
    from penstock.aio import Admin  # noqa: PLC0415 -- for speed
    from penstock.spark.deployments.backfill_plan import LogFacts  # noqa: PLC0415 -- for speed

    async with Admin(
        checked(bootstrap),
        client_id=CLIENT_ID,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    ) as admin:
        earliest, latest, first, last = [
            await admin.list_offsets(dict.fromkeys(topic_partitions, when))
            for when in ("earliest", "latest", request.from_ms, request.to_ms)
        ]
    ends = {each: 0 if at is None else at.offset for each, at in latest.items()}
    return LogFacts(
        {each: 0 if at is None else at.offset for each, at in earliest.items()},
        ends,
        {each: ends[each] if at is None else at.offset for each, at in first.items()},
        {each: ends[each] if at is None else at.offset for each, at in last.items()},
        {each: at.timestamp for each, at in first.items() if at is not None},
    )


def _texts(request: BackfillRequest, found: Figures) -> list[str]:
    records, partitions = count(found.records, "record"), count(len(found.ranges), "partition")
    times = f"{time_text(request.from_ms)} to {time_text(request.to_ms)}"
    lines = [f"{printable(request.flow)}: {records} in {partitions}, of {times}"]
    if found.left_out:
        lines.append(f"left out, because the flow reads them itself: {found.left_out:,}")
    if found.deleted:
        oldest = f", the oldest record there is of {time_text(found.oldest_ms)}"
        lines.append(
            f"retention has deleted {count(found.deleted, 'record')} of partitions in which the "
            f"range begins earlier{oldest if found.oldest_ms else ''}: they cannot be read"
        )
    return lines


def _question(request: BackfillRequest, found: Figures) -> str:
    text = f"Read {count(found.records, 'record')} into {printable(request.flow)}?"
    if found.repeated:
        text = (
            f"{count(found.repeated, 'record')} of them were read before, and are read a second "
            f"time: their rows are in the result twice, unless it replaces rows by key. {text}"
        )
    return text


def _figures_json(found: Figures) -> dict[str, Any]:
    return {
        "records": found.records,
        "repeated": found.repeated,
        "left_out": found.left_out,
        "deleted": found.deleted,
    }


async def _requested(
    bootstrap: str, name: str, request: BackfillRequest, found: Figures
) -> BackfillRequest:
    from penstock.spark.deployments.backfill_plan import with_request  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()

        def numbered(old: Deployment) -> BackfillRequest:
            return replace(request, id=old.revision + 1, requested_by=catalog.user)

        def change(old: Deployment) -> Deployment:
            status = catalog.statuses.get(name)
            return replace(old, backfills=with_request(old, status, numbered(old)))

        again = ", again" if request.again else ""
        text = (
            f"{request.flow}: {found.records:,} records of {time_text(request.from_ms)} to "
            f"{time_text(request.to_ms)}{again}"
        )
        catalog.deployment(name)
        made = await catalog.change(name, change, "backfill-requested", text)
        return made.backfills[-1]


async def _cancelled(bootstrap: str, name: str, flow: str) -> BackfillRequest:
    from penstock.spark.deployments.backfill_plan import open_request  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        ended: list[BackfillRequest] = []

        def change(old: Deployment) -> Deployment:
            found = open_request(old, catalog.statuses.get(name), flow)
            if found is None:
                raise PipelineError(f"{flow} has no backfill that could be cancelled")
            ended.append(found)
            changed = [
                replace(each, cancelled=True) if each.id == found.id else each
                for each in old.backfills
            ]
            return replace(old, backfills=changed)

        catalog.deployment(name)
        await catalog.change(name, change, "backfill-cancel-requested", flow)
        return ended[-1]


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
                            f"backfill {request.id} is gone: see penstock pipeline history {name}",
                            EXIT_UNSOUND,
                        )
                    if found["state"] not in OPEN:
                        return found
                    await news.wait()
        except TimeoutError:
            raise CommandFailed(
                f"backfill {request.id} has not ended within {wait_s:.0f} s: it goes on; see "
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
