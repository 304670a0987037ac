"""`penstock pipeline deploy`: makes a project an object of the cluster, which workers run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import Json, Yes
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    emit,
    emit_json,
    parse_settings,
    pipe_guard,
    printable,
    size_text,
)
from penstock.cli.pipeline_recompute import (
    Keep,
    Recompute,
    Swap,
    deploy_beside,
    parse_order,
)
from penstock.cli.pipeline_session import KeepCheckpoint, Reset, done, open_catalog, told
from penstock.cli.progress import progress_bar
from penstock.cli.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, checked, confirm

if TYPE_CHECKING:
    from penstock.spark.deployments.change_plan import NewVersion
    from penstock.spark.deployments.checkpoint_rules import Decision
    from penstock.spark.deployments.deploy_plan import DeployOptions
    from penstock.spark.deployments.model import Deployment, Status
    from penstock.spark.deployments.project_files import PreparedFiles

HELP = """Deploy a pipeline: a project, or a script (job.py) with its folder.

The cluster stores its files. A worker (penstock pipeline worker) runs it, restarts it and keeps its
logs. Deploying again creates a new version. An option that you leave out keeps its earlier value;
--conf and --secret replace all earlier ones.

Before a change, deploy says what happens to the checkpoint of each flow. A flow that cannot keep
its checkpoint needs --reset or --keep-checkpoint. With --recompute, the running version continues
until the new version has computed the tables from the beginning.

\b
Examples:
  penstock pipeline deploy
  penstock pipeline deploy views --name views-eu --every 10m --auto-rollback
  penstock pipeline deploy job.py --cron '0 3 * * *' --secret DB_PASSWORD
  penstock pipeline deploy --reset sessions --note 'shorter sessions' --wait
  penstock pipeline deploy --recompute sessions --swap manual
"""
NO_WORKER: Final = (
    "no worker is running, so nothing is run yet; start one with: penstock pipeline worker"
)
_Directory = Annotated[
    str,
    typer.Argument(metavar="[DIR]", help="Project folder or script. Default: the current folder."),
]
_Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Default: the project's name.")
]
_Continuous = Annotated[
    bool, typer.Option("--continuous", help="Run streams all the time. This is the default.")
]
_Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME", help="Run a round every 30s, 10m, 1h, ...")
]
_Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="WHEN", help="Run rounds at these times (cron, UTC)."),
]
_Interval = Annotated[
    float | None,
    typer.Option(
        "--interval", min=0, metavar="S", help="With --continuous: seconds between batches."
    ),
]
_Master = Annotated[str | None, typer.Option("--master", metavar="URL", help="Where Spark runs.")]
_Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Heap of the driver: 1024m, 2g.")
]
_Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting. Repeatable."),
]
_NoConf = Annotated[bool, typer.Option("--no-conf", help="Remove all Spark settings.")]
_NoSecrets = Annotated[bool, typer.Option("--no-secrets", help="Remove all secrets.")]
_Secret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret", metavar="NAME", help="The name of a secret that the workers hold. Repeatable."
    ),
]
_Storage = Annotated[
    str | None,
    typer.Option("--storage", metavar="URL", help="Where tables and checkpoints are stored."),
]
_AutoRollback = Annotated[
    bool | None,
    typer.Option(
        "--auto-rollback/--no-auto-rollback",
        help="Roll back to the last version that worked if this one fails.",
    ),
]
_Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="A note for the history.")]
_Stopped = Annotated[bool, typer.Option("--stopped", help="Deploy, but do not start.")]
_Wait = Annotated[bool, typer.Option("--wait", help="Wait until a round is completed.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=1, metavar="S", help="How long --wait waits, in seconds.")
]
_Brokers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Default: the brokers of the project.",
    ),
]
_MEMORY: Final = re.compile(r"(\d{1,7})\s*(m|mb|g|gb)?", re.IGNORECASE)
_FAILED: Final = ("FAILED", "BACKING OFF")


def register(app: typer.Typer) -> None:
    app.command("deploy", help=HELP)(deploy)


def deploy(
    directory: _Directory = ".",
    *,
    name: _Name = None,
    continuous: _Continuous = False,
    every: _Every = None,
    cron: _Cron = None,
    interval: _Interval = None,
    master: _Master = None,
    memory: _Memory = None,
    conf: _Conf = None,
    no_conf: _NoConf = False,
    secret: _Secret = None,
    no_secrets: _NoSecrets = False,
    storage: _Storage = None,
    auto_rollback: _AutoRollback = None,
    reset: Reset = None,
    keep_checkpoint: KeepCheckpoint = None,
    recompute: Recompute = None,
    swap: Swap = None,
    keep: Keep = None,
    note: _Note = "",
    stopped: _Stopped = False,
    wait: _Wait = False,
    timeout: _Timeout = 600.0,
    bootstrap: _Brokers = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    from penstock.spark.deployments.deploy_plan import (  # noqa: PLC0415 -- for speed
        DeployOptions,
        parse_schedule,
    )

    with told():
        schedule = parse_schedule(continuous=continuous, every=every, cron=cron, interval=interval)
    options = DeployOptions(
        schedule=schedule,
        master=master,
        memory_mb=None if memory is None else parse_memory_mb(memory),
        settings=_given_conf(conf, remove=no_conf),
        secrets=_given_secrets(secret, remove=no_secrets),
        storage=None if storage is None else parse_storage(storage),
        auto_rollback=auto_rollback,
        note=note,
        stopped=stopped,
        reset=reset or (),
        keep=keep_checkpoint or (),
    )
    folder = Path(directory)
    if recompute is not None:
        _check_alone(options, wait=wait)
        order = parse_order(recompute, swap, keep)
        deploy_beside(folder, name, note, order, bootstrap, _uploaded, yes=yes, json=json)
        return
    if swap is not None or keep is not None:
        raise CommandFailed("--swap and --keep need --recompute")
    wait_s = timeout if wait else None
    _deploy(folder, name, options, bootstrap, wait_s=wait_s, yes=yes, json=json)


def _deploy(
    directory: Path,
    given: str | None,
    options: DeployOptions,
    bootstrap: str | None,
    *,
    wait_s: float | None,
    yes: bool,
    json: bool,
) -> None:
    from penstock.spark.deployments.project_files import (  # noqa: PLC0415 -- for speed
        check_name,
        prepare,
    )

    with told():
        files = prepare(directory)
        name = check_name(given or files.name)
    address = checked(bootstrap or files.bootstrap or DEFAULT_BOOTSTRAP)
    plan, decision = done(_planned(address, name, files, options))
    with pipe_guard():
        if not json:
            for line in decision.texts():
                emit(printable(line))
            if files.unnamed:
                functions = printable(", ".join(files.unnamed))
                emit(
                    f"could not compare the flows of {functions} with the running version, "
                    "because their names or expectations are computed"
                )
        if decision.reset:
            flows = ", ".join(decision.reset)
            confirm(f"Restart {printable(flows)} without checkpoints?", yes=yes)
        made, workers = done(_uploaded(address, plan, quiet=json))
        if json:
            emit_json(_as_json(made, plan, decision, workers))
        else:
            state = "" if made.wanted == "RUNNING" else ", stopped"
            size = size_text(len(plan.archive))
            emit(f"deployed {printable(name)} version {made.version} ({size}{state})")
            if not workers:
                emit(NO_WORKER)
        if wait_s is not None and made.wanted == "RUNNING":
            done(_works(address, made, wait_s))
            if not json:
                emit(f"{printable(name)} version {made.version} completed a round")


def _check_alone(options: DeployOptions, *, wait: bool) -> None:
    """Raises `CommandFailed` for options that would change the running version."""
    given = (
        ("a schedule", options.schedule),
        ("--master", options.master),
        ("--memory", options.memory_mb),
        ("--conf", options.settings),
        ("--secret", options.secrets),
        ("--storage", options.storage),
        ("--auto-rollback", options.auto_rollback),
        ("--reset", options.reset or None),
        ("--keep-checkpoint", options.keep or None),
        ("--stopped", options.stopped or None),
        ("--wait", wait or None),
    )
    if wrong := [option for option, value in given if value is not None]:
        raise CommandFailed(
            f"{wrong[0]} cannot be combined with --recompute: use it in a deployment of its own, "
            "before the recompute or after the swap"
        )


async def _planned(
    bootstrap: str, name: str, files: PreparedFiles, options: DeployOptions
) -> tuple[NewVersion, Decision]:
    """Compares the project with the version that runs. Changes nothing."""
    from penstock.spark.deployments.deploy_plan import planned  # noqa: PLC0415 -- for speed

    async with open_catalog(bootstrap) as catalog:
        await catalog.caught_up()
        return planned(catalog, name, files, options)


async def _uploaded(bootstrap: str, plan: NewVersion, *, quiet: bool) -> tuple[Deployment, int]:
    async with open_catalog(bootstrap, create=True) as catalog:
        with progress_bar(len(plan.archive), quiet) as advance:
            made = await catalog.deploy(plan, progress=advance)
        return made, len(catalog.live_workers())


async def _works(bootstrap: str, made: Deployment, wait_s: float) -> None:
    """Waits until a round of the version is completed. Raises `CommandFailed` if it fails."""
    news = asyncio.Event()
    async with open_catalog(bootstrap) as catalog:
        catalog.on_change(news.set)
        await catalog.caught_up()
        try:
            async with asyncio.timeout(wait_s):
                while not _has_worked(
                    catalog.deployments.get(made.name), catalog.statuses.get(made.name), made
                ):
                    news.clear()
                    await news.wait()
        except TimeoutError:
            raise CommandFailed(
                f"{made.name} version {made.version} has not completed a round within "
                f"{wait_s:.0f} s: see penstock pipeline status {made.name} --deployed",
                EXIT_UNSOUND,
            ) from None


def _has_worked(now: Deployment | None, status: Status | None, made: Deployment) -> bool:
    if now is None or now.version != made.version:
        what = "was deleted" if now is None else f"is at version {now.version} now"
        raise CommandFailed(
            f"{made.name} {what}: see penstock pipeline history {made.name}", EXIT_UNSOUND
        )
    # A worker sees the change before it has stopped the version before.
    if status is None or status.revision < made.revision or status.version != made.version:
        return False
    if status.state in _FAILED:
        raise CommandFailed(
            f"{made.name} version {made.version} failed: {printable(status.error)} "
            f"(penstock pipeline logs {made.name})",
            EXIT_UNSOUND,
        )
    return status.good_version == made.version or status.state == "COMPLETED"


def _as_json(
    made: Deployment, plan: NewVersion, decision: Decision, workers: int
) -> dict[str, Any]:
    return {
        "name": made.name,
        "version": made.version,
        "revision": made.revision,
        "wanted": made.wanted,
        "bytes": len(plan.archive),
        "flows": [
            {
                "flow": each.flow,
                "outcome": each.outcome,
                "reason": each.reason,
                "reset": each.flow in decision.reset,
            }
            for each in decision.changes
        ],
        "workers": workers,
    }


def parse_memory_mb(text: str) -> int:
    found = _MEMORY.fullmatch(text.strip())
    size_mb = 0 if found is None else int(found[1]) * (1024 if _is_giga(found[2]) else 1)
    if size_mb < 1:
        raise CommandFailed(f"--memory {text}: give a size such as 1024m or 2g")
    return size_mb


def _is_giga(unit: str | None) -> bool:
    return unit is not None and unit.lower().startswith("g")


def parse_storage(text: str) -> str:
    """Returns the URL of a storage; a path becomes a file:// URL."""
    if "://" in text:
        return text.rstrip("/")
    if not text.startswith("/"):
        raise CommandFailed(
            f"--storage {text}: give a URL, or the absolute path of a folder that all workers "
            "can reach"
        )
    return Path(text).as_uri()


def _given_conf(given: list[str] | None, *, remove: bool) -> dict[str, str] | None:
    """Returns the new settings; None if they stay as they are."""
    if remove and given:
        raise CommandFailed("choose --conf or --no-conf: --conf replaces all earlier settings")
    return {} if remove else None if not given else parse_settings(given, "--conf")


def _given_secrets(given: list[str] | None, *, remove: bool) -> list[str] | None:
    """Returns the new secrets; None if they stay as they are."""
    if remove and given:
        raise CommandFailed(
            "choose --secret or --no-secrets: --secret replaces all earlier secrets"
        )
    return [] if remove else None if not given else _checked_secrets(given)


def _checked_secrets(names: Sequence[str]) -> list[str]:
    from penstock.spark.deployments.model import SECRET  # noqa: PLC0415 -- for speed

    for name in names:
        if not SECRET.fullmatch(name):
            raise CommandFailed(
                f"--secret {printable(name)}: give the name of a secret (letters, digits and "
                "underscores), not its value; the workers hold the value"
            )
    return sorted(set(names))
