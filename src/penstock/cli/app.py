"""The command tree, put together from one module per command.

To add a command, write a module with `register(root)` and name it in `COMMANDS`. Only the module
of the command that was asked for is loaded; help for the whole program loads them all.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from penstock.cli.output import EXIT_UNUSABLE, CommandFailed, PipeClosed, explain
from penstock.storage.errors import StorageError

COMMANDS: Final = {
    "up": "penstock.cli.up",
    "broker": "penstock.cli.broker_command",
    "console": "penstock.cli.console",
    "status": "penstock.cli.status",
    "doctor": "penstock.cli.doctor",
    "cluster": "penstock.cli.cluster",
    "topic": "penstock.cli.topic",
    "group": "penstock.cli.group",
    "txn": "penstock.cli.txn",
    "produce": "penstock.cli.produce",
    "consume": "penstock.cli.consume",
    "log": "penstock.cli.log",
    "pipeline": "penstock.cli.pipeline",
    "bench": "penstock.cli.bench",
    "sim": "penstock.cli.sim",
}

_HELP: Final = """Penstock: a distributed message log that speaks the Kafka protocol.

\b
Examples:
  penstock up                                     start a broker, here and now
  penstock topic create orders --partitions 3     a topic on it
  echo hello | penstock produce orders            records into it
  penstock consume orders --from-beginning        and out again
  penstock console                                all of it in a browser
  penstock status                                 who the cluster is, and whether it is well
  penstock doctor                                 whether this machine is fit for it
  penstock cluster rebalance                      who should hold what, and how to get there
  penstock txn list --hanging                     transactions that nobody will ever end
  penstock pipeline init views                    a pipeline on Spark to begin with
  penstock log verify penstock-data/broker-0      whether every log on disk is sound
  penstock bench produce                          how fast it is
"""


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; failures become one line on stderr."""
    try:
        build(_wanted(arguments))(args=arguments, prog_name="penstock")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CommandFailed as error:
        return _fail(str(error), error.code)
    except StorageError as error:
        return _fail(str(error), EXIT_UNUSABLE)
    except PipeClosed as closed:
        raise BrokenPipeError from closed
    except OSError as error:
        return _fail(explain(error), EXIT_UNUSABLE)
    return 0


def _wanted(arguments: list[str]) -> str:
    """The command that was asked for; a shell that completes one tells it by the environment."""
    words = arguments or os.environ.get("COMP_WORDS", "").split()[1:]
    return words[0] if words else ""


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"penstock: {message}\n")
    return code


def build(wanted: str) -> typer.Typer:
    """The program with the one command that is wanted, or with all where it is not known."""
    root = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    root.callback()(_root)
    for module in [COMMANDS[wanted]] if wanted in COMMANDS else COMMANDS.values():
        import_module(module).register(root)
    return root


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from importlib import metadata  # noqa: PLC0415 -- slow to load, and seldom asked for

        sys.stdout.write(f"penstock {metadata.version('penstock')}\n")
        raise typer.Exit
