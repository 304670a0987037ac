"""`penstock pipeline recompute|swap`: computes tables again, and swaps them for the old ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import CommandFailed, count, emit, emit_json, pipe_guard, printable
from penstock.cli.pipeline_session import Deployed, done, open_catalog, told
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked, confirm, connect
from penstock.client.times import parse_duration_ms
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog
    from penstock.spark.deployments.change_plan import NewVersion
    from penstock.spark.deployments.generations import RecomputeOrder
    from penstock.spark.deployments.model import Deployment
    from penstock.spark.pipelines.recompute_scope import PipelineParts

_RECOMPUTE_HELP = """Recompute the tables of a deployed pipeline from the beginning.

The running version continues. A second driver of the same pipeline reads the topics from the
beginning into new tables. When they have caught up, they replace the old ones in one step. The old
tables are kept for a time; penstock pipeline swap NAME --back returns to them.

Name all streaming tables of the pipeline. To recompute with new code, use penstock pipeline deploy
--recompute TABLE,TABLE.

\b
Examples:
  penstock pipeline recompute views page_views
  penstock pipeline recompute views page_views users --swap manual --keep 2d
  penstock pipeline recompute views --cancel
"""
_SWAP_HELP = """Put recomputed tables in the place of the old ones, as soon as they have caught up.

With --back, the pipeline returns to the tables and the version before the last swap, while they are
kept. They continue where they stopped.

\b
Examples:
  penstock pipeline swap views
  penstock pipeline swap views --back
"""
DEFAULT_KEEP: Final = "7d"
MANUAL: Final = "manual"
WHEN_CAUGHT_UP: Final = "when-caught-up"
Swap = Annotated[
    str | None,
    typer.Option("--swap", metavar="WHEN", help="When to swap: manual or when-caught-up."),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="TIME", help="How long old tables are kept after the swap."),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        metavar="TABLE,...",
        help="Recompute these tables while the running version continues.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("recompute", help=_RECOMPUTE_HELP)(recompute)
    app.command("swap", help=_SWAP_HELP)(swap)


def recompute(
    name: Deployed,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE...]", help="The tables to recompute.")
    ] = None,
    *,
    swap: Swap = None,
    keep: Keep = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the recompute, and delete its tables.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if cancel:
        if tables or swap or keep:
            raise CommandFailed("--cancel cannot be combined with tables, --swap or --keep")
        _cancel(name, bootstrap, json=json)
        return
    order = parse_order(",".join(tables or ()), swap, keep)
    _begin(name, order, bootstrap, yes=yes, json=json)


def parse_order(tables: str, swap: str | None, keep: str | None) -> RecomputeOrder:
    """Returns what to recompute."""
    from penstock.spark.deployments.generations import RecomputeOrder  # noqa: PLC0415 -- for speed

    named = tuple(sorted({each.strip() for each in tables.split(",") if each.strip()}))
    if not named:
        raise CommandFailed("name the tables to recompute")
    if swap not in (None, MANUAL, WHEN_CAUGHT_UP):
        raise CommandFailed(f"--swap {printable(swap)}: give {MANUAL} or {WHEN_CAUGHT_UP}")
    try:
        keep_ms = parse_duration_ms(keep or DEFAULT_KEEP)
    except ValueError as error:
        raise CommandFailed(f"--keep: {error}") from error
    return RecomputeOrder(named, "manual" if swap == MANUAL else "when-caught-up", keep_ms)


def confirm_deleted(deleted: dict[str, int], *, yes: bool) -> None:
    """Asks before tables are recomputed from topics that have lost their first records."""
    if deleted:
        topics = ", ".join(
            f"{printable(topic)} ({count(number, 'record')})" for topic, number in deleted.items()
        )
        confirm(
            f"Retention has deleted the first records of {topics}: the new tables will not have "
            "them. Continue?",
            yes=yes,
        )


class Upload(Protocol):
    """Uploads a version. Returns the deployment, and how many workers there are."""

    def __call__(
        self, bootstrap: str, plan: NewVersion, *, quiet: bool
    ) -> Coroutine[Any, Any, tuple[Deployment, int]]: ...


def deploy_beside(
    directory: Path,
    given_name: str | None,
    note: str,
    order: RecomputeOrder,
    bootstrap: str | None,
    upload: Upload,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Deploys a version beside the running one, which computes the tables again."""
    from penstock.spark.deployments.change_plan import NewVersion  # noqa: PLC0415 -- for speed
    from penstock.spark.deployments.project_files import (  # noqa: PLC0415 -- for speed
        check_name,
        prepare,
    )

    with told():
        files = prepare(directory)
        name = check_name(given_name or files.name)
    address = checked(bootstrap or files.bootstrap or DEFAULT_BOOTSTRAP)

    expected, deleted = done(_checked(address, name, order, lambda _: files.parts))
    confirm_deleted(deleted, yes=yes)
    plan = NewVersion(
        name, files.kind, files.entry, files.archive, files.requirements, files.flows,
        note, expected_version=expected, recompute=order,
    )  # fmt: skip
    made, _ = done(upload(address, plan, quiet=json))
    tell_begun(made, json=json)


def _begin(name: str, order: RecomputeOrder, bootstrap: str, *, yes: bool, json: bool) -> None:
    from penstock.spark.deployments import recompute_requests  # noqa: PLC0415 -- for speed

    def parts(catalog: Catalog) -> PipelineParts | None:
        running = catalog.versions.get((name, catalog.deployment(name).version))
        return recompute_requests.parts_of(running, catalog.statuses.get(name))

    version, deleted = done(_checked(bootstrap, name, order, parts))
    confirm_deleted(deleted, yes=yes)
    now_ms = SystemClock().wall_ms()

    async def begin(catalog: Catalog) -> Deployment:
        return await recompute_requests.begun(catalog, name, version, order, now_ms)

    tell_begun(_changed(bootstrap, begin), json=json)


async def _checked(
    bootstrap: str,
    name: str,
    order: RecomputeOrder,
    parts: Callable[[Catalog], PipelineParts | None],
) -> tuple[int, dict[str, int]]:
    """Returns the running version, and what retention has deleted from the topics it reads."""
    from penstock.spark.deployments import recompute_requests  # noqa: PLC0415 -- for speed
    from penstock.spark.deployments.backfill_requests import (  # noqa: PLC0415 -- for speed
        broker_address,
    )
    from penstock.spark.deployments.recompute_parts import (  # noqa: PLC0415 -- for speed
        topics_read,
    )

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        old = catalog.deployment(name)
        running = catalog.versions.get((name, old.version))
        status = catalog.statuses.get(name)
        recompute_requests.check_recompute(old, running, parts(catalog), order, status)
        graph = recompute_requests.planned_graph(status)
    async with connect(broker_address(old, bootstrap)) as admin:
        return old.version, await recompute_requests.deleted_records(admin, topics_read(graph))


def tell_begun(made: Deployment, *, json: bool) -> None:
    with pipe_guard():
        if json:
            emit_json(_as_json(made))
            return
        recompute = made.recompute
        assert recompute is not None, "it has begun"
        name = printable(made.name)
        tables = printable(", ".join(recompute.tables))
        emit(f"recomputing {tables} of {name} with version {recompute.version}")
        emit(f"to see the progress: penstock pipeline status {name} --deployed")
        if recompute.swap == MANUAL:
            emit(f"when they have caught up, put them in use: penstock pipeline swap {name}")


def _cancel(name: str, bootstrap: str, *, json: bool) -> None:
    from penstock.spark.deployments import recompute_requests  # noqa: PLC0415 -- for speed

    made = _changed(bootstrap, lambda catalog: recompute_requests.cancelled(catalog, name))
    _tell(made, f"the recompute of {printable(name)} is cancelled; its tables are deleted", json)


def swap(
    name: Deployed,
    *,
    back: Annotated[
        bool, typer.Option("--back", help="Return to the tables before the last swap.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    from penstock.spark.deployments import recompute_requests  # noqa: PLC0415 -- for speed

    if back:
        now_ms = SystemClock().wall_ms()
        made = _changed(
            bootstrap, lambda catalog: recompute_requests.swapped_back(catalog, name, now_ms)
        )
        text = f"{printable(name)} returns to version {made.version} and the tables before the swap"
    else:
        made = _changed(bootstrap, lambda catalog: recompute_requests.swap_asked(catalog, name))
        text = f"the tables of {printable(name)} are swapped as soon as the new ones have caught up"
    _tell(made, text, json)


def _changed(bootstrap: str, change: Callable[[Catalog], Awaitable[Deployment]]) -> Deployment:
    async def work() -> Deployment:
        async with open_catalog(bootstrap) as catalog:
            return await change(catalog)

    return done(work())


def _tell(made: Deployment, text: str, json: bool) -> None:
    with pipe_guard():
        if json:
            emit_json(_as_json(made))
        else:
            emit(text)


def _as_json(made: Deployment) -> dict[str, Any]:
    recompute, kept = made.recompute, made.kept
    return {
        "name": made.name,
        "version": made.version,
        "revision": made.revision,
        "wanted": made.wanted,
        "generation": made.generation,
        "recompute": None
        if recompute is None
        else {
            "generation": recompute.generation,
            "version": recompute.version,
            "tables": recompute.tables,
            "swap": recompute.swap,
        },
        "kept": None
        if kept is None
        else {
            "generation": kept.generation,
            "version": kept.version,
            "until_ms": kept.until_ms,
        },
    }
