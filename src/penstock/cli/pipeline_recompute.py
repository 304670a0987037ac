"""`penstock pipeline recompute|swap`: computes tables again, and swaps them for the old ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import CommandFailed, count, emit, emit_json, pipe_guard, printable
from penstock.cli.pipeline_session import Deployed, done, open_catalog, told
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked, confirm, connect
from penstock.cli.times import parse_duration_ms
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog
    from penstock.spark.deployments.change_plan import NewVersion
    from penstock.spark.deployments.generations import RecomputeOrder
    from penstock.spark.deployments.model import Deployment, Version
    from penstock.spark.pipelines.recompute_scope import PipelineParts

_RECOMPUTE_HELP = """Compute the tables of a deployed pipeline again, from the beginning.

The running version goes on. A second driver of the same pipeline reads the topics from the
beginning into new tables. When they have caught up, they take the place of the old ones in one
step. The old ones are kept for a time: penstock pipeline swap NAME --back.

All streaming tables of the pipeline must be named. For other code: penstock pipeline deploy
--recompute TABLE,TABLE.

\b
Examples:
  penstock pipeline recompute views page_views
  penstock pipeline recompute views page_views users --swap manual --keep 2d
  penstock pipeline recompute views --cancel
"""
_SWAP_HELP = """Put recomputed tables in the place of the old ones, as soon as they have caught up.

With --back: return to the tables and the version before the last swap, while they are kept. They
continue where they stopped.

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
    typer.Option("--swap", metavar="WHEN", help="Of --recompute: manual or when-caught-up."),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="TIME", help="Of --recompute: how long old tables are kept."),
]
Recompute = Annotated[
    str | None,
    typer.Option(
        "--recompute", metavar="TABLE,...", help="Compute these again, beside the running ones."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("recompute", help=_RECOMPUTE_HELP)(recompute)
    app.command("swap", help=_SWAP_HELP)(swap)


def recompute(
    name: Deployed,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE...]", help="Tables to compute again.")
    ] = None,
    *,
    swap: Swap = None,
    keep: Keep = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a recompute, and delete its tables.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if cancel:
        if tables or swap or keep:
            raise CommandFailed("--cancel takes no tables, no --swap and no --keep")
        _cancel(name, bootstrap, json=json)
        return
    order = parse_order(",".join(tables or ()), swap, keep)
    _begin(name, order, bootstrap, yes=yes, json=json)


def parse_order(tables: str, swap: str | None, keep: str | None) -> RecomputeOrder:
    """Returns what is to be computed again."""
    from penstock.spark.deployments.generations import RecomputeOrder  # noqa: PLC0415 -- for speed

    named = tuple(sorted({each.strip() for each in tables.split(",") if each.strip()}))
    if not named:
        raise CommandFailed("name the tables that are to be computed again")
    if swap not in (None, MANUAL, WHEN_CAUGHT_UP):
        raise CommandFailed(f"--swap {printable(swap)}: give {MANUAL} or {WHEN_CAUGHT_UP}")
    try:
        keep_ms = parse_duration_ms(keep or DEFAULT_KEEP)
    except ValueError as error:
        raise CommandFailed(f"--keep: {error}") from error
    return RecomputeOrder(named, "manual" if swap == MANUAL else "when-caught-up", keep_ms)


def check_recompute(
    deployment: Deployment,
    running: Version | None,
    parts: PipelineParts | None,
    order: RecomputeOrder,
) -> None:
    """Raises `PipelineError` if it is known already that these tables cannot be computed again."""
    from penstock.spark.deployments.generations import (  # noqa: PLC0415 -- for speed
        check_no_recompute,
    )
    from penstock.spark.pipelines.recompute_scope import (  # noqa: PLC0415 -- for speed
        RecomputeRefused,
        check_scope,
    )

    check_no_recompute(deployment)
    if running is not None and running.kind != "project":
        raise RecomputeRefused(
            f"{deployment.name} is a script, which decides itself where it writes: deploy it under "
            "another --name with other tables instead"
        )
    if deployment.master.startswith("sc://"):
        raise RecomputeRefused(
            "tables on a Connect server (sc://) cannot be computed again beside the running ones: "
            "they would have the same names there"
        )
    if parts is not None:
        check_scope(parts, order.tables, () if running is None else running.flows)


async def deleted_records(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """Returns how many records retention has deleted from each of these topics, if it has."""
    async with connect(bootstrap) as admin:
        described = await admin.describe_topics(topics) if topics else {}
        places = [
            TopicPartition(name, partition.index)
            for name, topic in described.items()
            if not isinstance(topic, Exception)
            for partition in topic.partitions
        ]
        found = await admin.list_offsets(dict.fromkeys(places, "earliest")) if places else {}
    deleted: dict[str, int] = {}
    for place, at in found.items():
        if at is not None and at.offset > 0:
            deleted[place.topic] = deleted.get(place.topic, 0) + at.offset
    return deleted


def confirm_deleted(deleted: dict[str, int], *, yes: bool) -> None:
    """Asks before tables are computed again from topics that have lost their first records."""
    if deleted:
        topics = ", ".join(
            f"{printable(topic)} ({count(number, 'record')})" for topic, number in deleted.items()
        )
        confirm(
            f"Retention has deleted the first records of {topics}: the new tables will not have "
            "them. Go on?",
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
    from penstock.spark.deployments.recompute_parts import (  # noqa: PLC0415 -- for speed
        topics_read,
    )

    with told():
        files = prepare(directory)
        name = check_name(given_name or files.name)
    address = checked(bootstrap or files.bootstrap or DEFAULT_BOOTSTRAP)

    async def look() -> tuple[int, dict[str, int]]:
        async with open_catalog(address) as catalog:
            await catalog.caught_up()
            old = catalog.deployment(name)
            running = catalog.versions.get((name, old.version))
            check_recompute(old, running, files.parts, order)
            topics = topics_read(running_graph(catalog, name))
        return old.version, await deleted_records(address, topics)

    expected, deleted = done(look())
    confirm_deleted(deleted, yes=yes)
    plan = NewVersion(
        name, files.kind, files.entry, files.archive, files.requirements, files.flows,
        note, expected_version=expected, recompute=order,
    )  # fmt: skip
    made, _ = done(upload(address, plan, quiet=json))
    tell_begun(made, json=json)


def _begin(name: str, order: RecomputeOrder, bootstrap: str, *, yes: bool, json: bool) -> None:
    from penstock.spark.deployments import generations  # noqa: PLC0415 -- for speed
    from penstock.spark.deployments.recompute_parts import (  # noqa: PLC0415 -- for speed
        running_parts,
        topics_read,
    )

    async def look() -> tuple[Deployment, dict[str, int]]:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            deployment = catalog.deployment(name)
            running = catalog.versions.get((name, deployment.version))
            graph = running_graph(catalog, name)
            parts = None if running is None else running_parts(graph, running.flows)
            check_recompute(deployment, running, parts, order)
        return deployment, await deleted_records(bootstrap, topics_read(graph))

    found, deleted = done(look())
    confirm_deleted(deleted, yes=yes)

    def begin(old: Deployment) -> Deployment:
        if old.version != found.version:
            from penstock.spark.deployments.catalog_errors import (  # noqa: PLC0415 -- rare
                ChangeConflict,
            )

            raise ChangeConflict(name)
        return generations.begun(old, old.version, order, SystemClock().wall_ms())

    text = f"{', '.join(order.tables)}, with version {found.version}"
    made = _changed(name, bootstrap, begin, "recompute", text)
    tell_begun(made, json=json)


def running_graph(catalog: Catalog, name: str) -> dict[str, Any]:
    """Returns the graph that Spark has planned for the running version; empty if unknown."""
    status = catalog.statuses.get(name)
    graph = None if status is None else status.run.get("graph")
    return graph if isinstance(graph, dict) else {}


def tell_begun(made: Deployment, *, json: bool) -> None:
    with pipe_guard():
        if json:
            emit_json(_as_json(made))
            return
        recompute = made.recompute
        assert recompute is not None, "it has begun"
        name = printable(made.name)
        tables = printable(", ".join(recompute.tables))
        emit(f"{tables} of {name} are computed again, with version {recompute.version}")
        emit(f"see how far they are with: penstock pipeline status {name} --deployed")
        if recompute.swap == MANUAL:
            emit(f"when they have caught up, swap them with: penstock pipeline swap {name}")


def _cancel(name: str, bootstrap: str, *, json: bool) -> None:
    from penstock.spark.deployments import generations  # noqa: PLC0415 -- for speed

    made = _changed(name, bootstrap, generations.cancelled, "recompute-cancelled", "")
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
    from penstock.spark.deployments import generations  # noqa: PLC0415 -- for speed

    if back:

        def change(old: Deployment) -> Deployment:
            return generations.swapped_back(old, SystemClock().wall_ms())

        made = _changed(name, bootstrap, change, "swapped-back", "")
        text = f"{printable(name)} returns to version {made.version} and the tables before the swap"
    else:
        made = _changed(name, bootstrap, generations.swap_asked, "swap-asked", "")
        text = f"the tables of {printable(name)} are swapped as soon as the new ones have caught up"
    _tell(made, text, json)


def _changed(
    name: str, bootstrap: str, change: Callable[[Deployment], Deployment], what: str, text: str
) -> Deployment:
    async def work() -> Deployment:
        async with open_catalog(bootstrap) as catalog:
            await catalog.caught_up()
            change(catalog.deployment(name))  # A refusal comes before a transaction is begun.
            return await catalog.change(name, change, what, text)

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
