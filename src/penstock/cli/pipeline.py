"""`penstock pipeline`: creates, checks, runs and shows Spark pipelines."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import (
    pipeline_backfill,
    pipeline_deploy,
    pipeline_dev,
    pipeline_operate,
    pipeline_recompute,
    pipeline_records,
    pipeline_redrive,
    pipeline_status,
    pipeline_worker,
)
from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    emit,
    emit_json,
    parse_settings,
    pipe_guard,
    printable,
)
from penstock.cli.pipeline_session import told
from penstock.cli.pipeline_view import COLUMNS, flow_rows, shown
from penstock.cli.session import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    checked,
)
from penstock.cli.tables import Column, table
from penstock.client.errors import ClientError
from penstock.runtime import SystemClock

if TYPE_CHECKING:
    from penstock.spark.pipelines.project import Project
    from penstock.spark.pipelines.runner import Run, RunOptions

_INIT_HELP = """Create a pipeline project in a new folder NAME. It runs without changes.

The project has definitions, a generator of sample records, tests and a README. Change it as you
need. If a broker answers, the topics of the project are also created.

\b
Examples:
  penstock pipeline init views
  cd views && python generate.py && penstock pipeline run
  penstock pipeline init crm --template change-data
"""
_TEMPLATES_HELP = """List the templates for penstock pipeline init.

\b
Examples:
  penstock pipeline templates
"""
_TEST_HELP = """Run the tests of a pipeline: tests/ in the project, with pytest.

The tests run the project's definitions on rows instead of topics, so they need no broker. They use
the fixture penstock_pipeline. Arguments after -- are passed on to pytest.

\b
Examples:
  penstock pipeline test
  penstock pipeline test views -- -k sessions -x
"""
_RUN_HELP = """Run a pipeline once, or with --continuous until Ctrl-C.

A run reads the pipeline's topics, brings its tables up to date and stops. With --continuous, it
repeats this, and starts Spark only once. Ctrl-C waits for the current round, so that no table is
left incomplete; a second Ctrl-C stops at once. The progress of each flow is saved, so a run
continues where the last one ended.

--master says where Spark runs: on this machine, on a cluster (spark://HOST:PORT, yarn, k8s://...)
or on a Connect server (sc://HOST).

\b
Examples:
  penstock pipeline run
  penstock pipeline run views --continuous --interval 5
  penstock pipeline run --master 'local[4]' --conf spark.driver.memory=4g
  penstock pipeline run --json | jq 'select(.event == "progress")'
"""
_DRY_HELP = """Check a pipeline's definitions without running any of them.

\b
Examples:
  penstock pipeline dry-run
"""
_Directory = Annotated[
    str,
    typer.Argument(metavar="[PROJECT]", help="The project's folder. Default: the current folder."),
]
_Master = Annotated[
    str, typer.Option("--master", metavar="URL", envvar="MASTER", help="Where Spark runs.")
]
_Brokers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Brokers to use instead of those in the project file.",
    ),
]
_Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting. Repeatable."),
]
_LOCAL: Final = "local[*]"


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Pipelines on Spark: create, try, test, run, deploy, watch.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("init", help=_INIT_HELP)(init)
    app.command("templates", help=_TEMPLATES_HELP)(templates)
    app.command("test", help=_TEST_HELP)(test)
    app.command("run", help=_RUN_HELP)(run)
    app.command("dry-run", help=_DRY_HELP)(dry_run)
    pipeline_dev.register(app)
    pipeline_status.register(app)
    pipeline_deploy.register(app)
    pipeline_operate.register(app)
    pipeline_records.register(app)
    pipeline_recompute.register(app)
    pipeline_redrive.register(app)
    pipeline_backfill.register(app)
    app.command("worker", help=pipeline_worker.HELP)(pipeline_worker.worker)
    root.add_typer(app, name="pipeline")


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the new folder and of the pipeline.")
    ],
    *,
    template: Annotated[
        str, typer.Option("--template", metavar="NAME", help="See penstock pipeline templates.")
    ] = "clickstream",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    from penstock.spark.pipelines import scaffold, state_files  # noqa: PLC0415 -- for speed

    with told():
        written = scaffold.make_project(Path.cwd(), name, checked(bootstrap), template)
        root = written[0].parent
        state_files.remember(root)
        topics, reason = _created_topics(root, bootstrap)
    if json:
        files = [str(path) for path in written]
        emit_json({"name": name, "path": str(root), "files": files, "topics": topics})
        return
    for path in written:
        emit(f"created {path.relative_to(Path.cwd())}")
    for topic in topics:
        emit(f"created topic {topic}")
    if reason:
        emit(f"created no topics, the first run will: {reason}")
    emit(
        "\nnext, with a broker running (penstock up):\n"
        f"  cd {shlex.quote(name)}\n"
        f"  {_python()} generate.py      # sample records\n"
        "  penstock pipeline run\n"
        "  penstock pipeline test       # needs no broker"
    )


def _created_topics(root: Path, bootstrap: str) -> tuple[list[str], str]:
    """Creates the project's topics. Returns their names, and the reason if that was impossible."""
    from penstock.spark.pipelines.project_topics import create_topics  # noqa: PLC0415 -- for speed

    try:
        return create_topics(root, bootstrap), ""
    except ClientError as error:
        return [], printable(str(error))


def templates(*, json: Json = False) -> None:
    from penstock.spark.pipelines.templates import TEMPLATES  # noqa: PLC0415 -- for speed

    with pipe_guard():
        if json:
            emit_json(
                {
                    "templates": [
                        {"name": each.name, "summary": each.summary} for each in TEMPLATES.values()
                    ]
                }
            )
        else:
            rows = [(each.name, each.summary) for each in TEMPLATES.values()]
            emit(table((Column("template"), Column("what it shows")), rows))


def test(
    directory: _Directory = ".",
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments for pytest.")
    ] = None,
) -> None:
    from penstock.spark.pipelines.project_tests import run_tests  # noqa: PLC0415 -- for speed

    given = list(arguments or ())
    if directory.startswith("-"):
        # Without a project, the first argument after -- takes its place.
        directory, given = ".", [directory, *given]
    with told():
        code = run_tests(_project(directory), given)
    raise typer.Exit(code)


def _python() -> str:
    """Returns how to call the Python that has penstock: it may not be the shell's default."""
    folder = Path(sys.executable).parent
    on_path = str(folder) in os.environ.get("PATH", "").split(os.pathsep)
    return "python" if on_path else shlex.quote(sys.executable)


def run(
    directory: _Directory = ".",
    *,
    continuous: Annotated[bool, typer.Option("--continuous", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0, metavar="S", help="Seconds between rounds.")
    ] = 1.0,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Empty all tables and read everything again.")
    ] = False,
    master: _Master = _LOCAL,
    conf: _Conf = None,
    bootstrap: _Brokers = None,
    json: Json = False,
) -> None:
    from penstock.spark.pipelines.runner import RunOptions  # noqa: PLC0415 -- for speed

    with told():
        project = _project(directory)
        options = RunOptions(
            master=master,
            bootstrap=_bootstrap(project, bootstrap),
            continuous=continuous,
            interval_s=interval,
            full_refresh=full_refresh,
            settings=parse_settings(conf or (), "--conf"),
        )
        _run(project, options, json=json)


def dry_run(
    directory: _Directory = ".",
    *,
    master: _Master = _LOCAL,
    conf: _Conf = None,
    bootstrap: _Brokers = None,
    json: Json = False,
) -> None:
    from penstock.spark.pipelines.runner import RunOptions  # noqa: PLC0415 -- for speed

    with told():
        project = _project(directory)
        options = RunOptions(
            master=master,
            bootstrap=_bootstrap(project, bootstrap),
            dry=True,
            settings=parse_settings(conf or (), "--conf"),
        )
        _run(project, options, json=json)


def _project(directory: str) -> Project:
    from penstock.spark.pipelines.project import find_project  # noqa: PLC0415 -- for speed

    return find_project(Path(directory))


def _bootstrap(project: Project, given: str | None) -> str:
    return checked(given or project.bootstrap or DEFAULT_BOOTSTRAP)


def _run(project: Project, options: RunOptions, *, json: bool) -> None:
    from penstock.spark.pipelines import runner  # noqa: PLC0415 -- for speed

    runner.check_spark()
    made = runner.prepare_topics(options.bootstrap, project.topics)
    if made and not json:
        emit(f"created {'topics' if len(made) > 1 else 'topic'} {printable(', '.join(made))}")
        sys.stdout.flush()
    run = runner.Run(project, options, SystemClock())
    with pipe_guard(), _stopped_by_signals(run), shown(run.view, json=json) as view:
        for event in run.events():
            view.show(event)
    _conclude(run, options, json=json)


def _conclude(run: Run, options: RunOptions, *, json: bool) -> None:
    view = run.view
    if view.state == "FAILED":
        failed = [flow for flow in view.flows.values() if flow.error]
        where = f"{failed[0].name}: " if failed else ""
        reason = failed[0].error if failed else view.error
        raise CommandFailed(
            f"{printable(where + reason)}\n(the full log is {run.log_path})", EXIT_UNSOUND
        )
    if view.state == "STOPPED":
        if not json:
            emit(f"{printable(view.name)} was stopped; the next run continues where it ended")
        # A continuous run always ends by a stop. Any other run is then incomplete.
        raise typer.Exit(0 if options.continuous else EXIT_INTERRUPTED)
    if json:
        return
    if options.dry:
        emit(f"{printable(view.name)} is valid; nothing was run")
    else:
        if not sys.stdout.isatty():
            # On a terminal the live view stays visible.
            emit(table(COLUMNS, flow_rows(view.as_dict()["flows"])))
        emit(f"{printable(view.name)} is up to date")


@contextmanager
def _stopped_by_signals(run: Run) -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM stop the run but not this process, which reports the result."""

    def stop(signal_number: int, frame: object) -> None:
        run.stop()

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
