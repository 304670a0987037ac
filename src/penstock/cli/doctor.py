"""`penstock doctor`: checks this machine and a cluster, and says what to do.

Each check is a function that returns findings. A check does not raise for the problem that it
looks for.
"""

from __future__ import annotations

import os
import ssl
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.config import METRICS_OFFSET
from penstock.broker.metrics.token_guard import TOKEN_VARIABLE
from penstock.cli import doctor_machine
from penstock.cli.console_process import DEFAULT_PORT as CONSOLE_PORT
from penstock.cli.doctor_cluster import check_cluster
from penstock.cli.doctor_finding import Finding, State
from penstock.cli.doctor_health import MetricsAccess
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    count,
    emit,
    emit_json,
    pipe_guard,
    printable,
    width,
)
from penstock.cli.passwords import read_password, read_variable
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked, run
from penstock.cli.up import DEFAULT_DATA

_HELP = """Check this machine and a cluster, and say what to do.

Checks Python, Java, optional packages, ports, the data directory and its disk, limits and the
clock. Then checks the brokers, if there are any. Changes nothing, except that it writes and removes
a small file to time the disk. With --probe it also creates and deletes a topic, to time every
broker and to compare clocks.

Exit code: 0; 1 if there is a problem (warnings do not count).

\b
Examples:
  penstock doctor
  penstock doctor --data /var/lib/penstock --port 9092
  penstock doctor --bootstrap kafka1:9092 --probe
  penstock doctor --metrics-token-file token --metrics-ca ca.pem
  penstock doctor --json | jq '.findings[] | select(.state != "ok")'
"""
_MARKS: Final = {State.OK: "ok", State.NOTE: "note", State.WARNING: "WARN", State.PROBLEM: "BAD"}


_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-token-file",
        metavar="FILE",
        help=f"The token of the brokers' metrics endpoints; or set {TOKEN_VARIABLE}.",
    ),
]
_Authority = Annotated[
    Path | None,
    typer.Option(
        "--metrics-ca",
        metavar="FILE",
        help="The CA certificate (PEM) of the brokers' metrics endpoints, if they use TLS.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command("doctor", help=_HELP)(doctor)


def doctor(
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", envvar="PENSTOCK_DATA", metavar="DIR", help="The data directory."
        ),
    ] = DEFAULT_DATA,
    port: Annotated[
        int, typer.Option("--port", "-p", min=1, max=64535, metavar="P", help="A broker's port.")
    ] = 9092,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Write and read a record on every broker, in a new topic."),
    ] = False,
    metrics_token_file: _TokenFile = None,
    metrics_ca: _Authority = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    checked(bootstrap)
    access = _metrics_access(metrics_token_file, metrics_ca)
    findings = [*doctor_machine.check_machine(data, (port, port + METRICS_OFFSET, CONSOLE_PORT))]
    findings += run(
        check_cluster(
            bootstrap, expected=bootstrap != DEFAULT_BOOTSTRAP, probe=probe, access=access
        )
    )
    problems = sum(each.state is State.PROBLEM for each in findings)
    warnings = sum(each.state is State.WARNING for each in findings)
    with pipe_guard():
        if json:
            emit_json(
                {
                    "problems": problems,
                    "warnings": warnings,
                    "findings": [asdict(each) for each in findings],
                }
            )
        else:
            emit(_text(findings))
            emit(f"\n{count(problems, 'problem')}, {count(warnings, 'warning')}")
    if problems:
        raise typer.Exit(EXIT_UNSOUND)


def _metrics_access(token_file: Path | None, authority: Path | None) -> MetricsAccess:
    token = None
    if token_file is not None:
        token = read_password(token_file, what="token", twice=False).strip()
    elif TOKEN_VARIABLE in os.environ:
        token = read_variable(TOKEN_VARIABLE).strip()
    if authority is None:
        return MetricsAccess(token)
    try:
        return MetricsAccess(token, ssl.create_default_context(cafile=str(authority)))
    except OSError as error:
        raise CommandFailed(f"{authority} cannot be used as --metrics-ca: {error}") from error


def _text(findings: Iterable[Finding]) -> str:
    shown = list(findings)
    names = max(len(each.name) for each in shown)
    lines: list[str] = []
    for each in shown:
        head = f"{_MARKS[each.state]:<4}  {each.name:<{names}}  "
        indent = " " * len(head)
        room = max(20, width() - 1)
        lines += textwrap.wrap(
            head + printable(each.found), room, subsequent_indent=indent, break_on_hyphens=False
        )
        if each.advice:
            lines += textwrap.wrap(
                "-> " + printable(each.advice),
                room,
                initial_indent=indent,
                subsequent_indent=indent + "   ",
                break_on_hyphens=False,
            )
    return "\n".join(lines)
