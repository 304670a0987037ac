"""`penstock console`: runs the web console.

The console is a separate program that replaces this process, so that nothing of the command line
stays in memory.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from penstock.cli.console_process import DEFAULT_PORT, PROGRAM
from penstock.cli.options import Bootstrap
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked

TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"  # noqa: S105 -- the name of it, not a token

_HELP = """Serve the web console of a cluster.

It shows topics, messages, groups, brokers and pipelines.

Prints `console URL` when browsers can connect. By default only browsers on this machine can. With
any other --host, browsers need a token: give one with --token, or use the generated one, which is
printed with the URL.

\b
Examples:
  penstock console
  penstock console --port 8100 --read-only
  penstock console --bootstrap kafka1:9092
  penstock console --host 0.0.0.0 --allow-host console.example.org
"""


def register(root: typer.Typer) -> None:
    root.command("console", help=_HELP)(console)


def console(
    *,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, metavar="P", help="0: any free port.")
    ] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option("--host", metavar="H", help="Listen address; 0.0.0.0: all interfaces.")
    ] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not allow changes.")] = False,
    token: Annotated[
        str,
        typer.Option(
            "--token", envvar=TOKEN_VARIABLE, metavar="TEXT", help="The token for browsers."
        ),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Allow this host name in URLs."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    command = [*PROGRAM, "--bootstrap", checked(bootstrap), "--host", host, "--port", str(port)]
    command += ["--read-only"] if read_only else []
    for name in allow_host or ():
        command += ["--allow-host", name]
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, TOKEN_VARIABLE: token})  # noqa: S606 -- our own
