"""`penstock pipeline dev`: shows what a pipeline makes of real records, at every save."""

from __future__ import annotations

import json as json_format
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import Json
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    count,
    emit,
    emit_json,
    pipe_guard,
    printable,
)
from penstock.cli.pipeline_session import told
from penstock.cli.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, checked
from penstock.cli.tables import Column, table

if TYPE_CHECKING:
    from penstock.spark.pipelines.project import Project

_HELP = """Preview a pipeline on real records while you edit it. Writes nowhere.

Reads the last records of the pipeline's topics, runs its definitions on them and shows the rows of
every table and of every topic that it would send to. When you save a file of the project, it shows
the new result, with the changed rows first. With --follow, it also does this when there are new
records. Ctrl-C stops it.

\b
Examples:
  penstock pipeline dev
  penstock pipeline dev views --rows 1000 --follow
  penstock pipeline dev --once --json | jq '.outputs[].rows'
"""
_STOP_S: Final = 15.0


def register(app: typer.Typer) -> None:
    app.command("dev", help=_HELP)(dev)


def dev(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="[PROJECT]", help="The project's folder. Default: the current folder."
        ),
    ] = ".",
    *,
    rows: Annotated[
        int, typer.Option("--rows", min=1, max=100_000, metavar="N", help="Records per topic.")
    ] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Preview again when there are new records.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Show one preview, then stop.")] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar=BOOTSTRAP_VARIABLE,
            metavar="HOST:PORT,...",
            help="Brokers to use instead of those in the project file.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    project = _project(directory)
    address = checked(bootstrap or project.bootstrap or DEFAULT_BOOTSTRAP)
    command = [sys.executable, "-m", "penstock.testing.pipelines.dev"]
    command += ["--project", str(project.root), "--bootstrap", address, "--rows", str(rows)]
    command += ["--follow"] * follow + ["--once"] * once
    error = ""
    with pipe_guard(), tempfile.TemporaryFile() as log, _process(command, log) as lines:
        try:
            for line in lines:
                event = json_format.loads(line)
                error = str(event.get("error") or "")
                _show(event, json=json)
        except KeyboardInterrupt:
            raise typer.Exit(0 if not once else EXIT_INTERRUPTED) from None
    if error:
        raise CommandFailed(printable(error), EXIT_UNSOUND)


def _project(directory: str) -> Project:
    from penstock.spark.pipelines import runner  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.project import find_project  # noqa: PLC0415 -- for speed

    with told():
        found = find_project(Path(directory))
        runner.check_spark()
    return found


@contextmanager
def _process(command: list[str], log: IO[bytes]) -> Iterator[IO[str]]:
    """Starts the process that makes the previews. It ends with the block."""
    process = subprocess.Popen(  # noqa: S603 (this program)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout
        process.wait(_STOP_S)
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
    if process.returncode:
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise CommandFailed(f"the preview ended: {printable(reason)}", EXIT_UNSOUND)


def _show(event: Mapping[str, Any], *, json: bool) -> None:
    if json:
        emit_json(event)
    elif event["event"] == "phase":
        emit(f"{printable(str(event['text']))} ...")
    elif event["event"] == "preview":
        _show_preview(event)
    sys.stdout.flush()


def _show_preview(event: Mapping[str, Any]) -> None:
    if event["error"]:
        emit(f"\nerror: {printable(str(event['error']))}\n")
        return
    read = ", ".join(
        f"{count(number, 'record')} of {printable(topic)}"
        for topic, number in event["topics"].items()
    )
    emit(f"\npreview {event['number']} in {event['seconds']:.1f} s from {read or 'no topic'}")
    for output in event["outputs"]:
        changed = f", {output['changed']:,} changed" if output["changed"] else ""
        emit(f"\n{printable(output['name'])}: {count(output['rows'], 'row')}{changed}")
        if output["shown"]:
            marked = any(row["changed"] for row in output["shown"])
            columns = [Column(""), *map(Column, output["columns"])][not marked :]
            cells = [
                [("+" if row["changed"] else ""), *map(_text, row["cells"])][not marked :]
                for row in output["shown"]
            ]
            emit(table(columns, cells))
        if output["rows"] > len(output["shown"]) > 0:
            emit(f"... and {output['rows'] - len(output['shown']):,} more")


def _text(cell: Any) -> str:
    return "null" if cell is None else printable(str(cell))
