"""Builds the command tree from one module per command.

To add a command, write a module with `register(root)` and list it in `COMMANDS`. A run loads only
the module of the command that was given. The help of the whole program loads them all.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from penstock.cli.output import EXIT_UNUSABLE, CommandFailed, PipeClosed, explain
from penstock.cli.profile_choice import with_profile, without_profile
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
    "queue": "penstock.cli.queue",
    "log": "penstock.cli.log",
    "cert": "penstock.cli.cert",
    "profile": "penstock.cli.profile",
    "user": "penstock.cli.user",
    "token": "penstock.cli.token",
    "acl": "penstock.cli.acl",
    "quota": "penstock.cli.quota",
    "key": "penstock.cli.key",
    "role": "penstock.cli.role",
    "access": "penstock.cli.access",
    "audit": "penstock.cli.audit",
    "store": "penstock.cli.store",
    "pipeline": "penstock.cli.pipeline",
    "bench": "penstock.cli.bench",
    "sim": "penstock.cli.sim",
}

_HELP: Final = """Penstock: a distributed message log that speaks the Kafka protocol.

\b
Examples:
  penstock up                                     start a broker
  penstock topic create orders --partitions 3     create a topic
  echo hello | penstock produce orders            send records
  penstock consume orders --from-beginning        read records
  penstock queue put jobs "resize cat.png"        put a job into a queue
  penstock console                                open a web console
  penstock status                                 show brokers and problems
  penstock doctor                                 check this machine
  penstock cluster rebalance                      plan how to spread replicas
  penstock txn list --hanging                     find transactions that no coordinator will end
  penstock pipeline init views                    create a Spark pipeline
  penstock log verify penstock-data/broker-0      check the logs on disk
  penstock bench produce                          measure throughput
  penstock status --profile prod                  use a profile (penstock profile)
"""


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code. A failure prints one line to stderr."""
    try:
        app = build(_wanted(arguments))
        app(args=with_profile(app, arguments), prog_name="penstock")
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
    """Returns the name of the command. During shell completion the environment has it."""
    words = without_profile(arguments) or os.environ.get("COMP_WORDS", "").split()[1:]
    return words[0] if words else ""


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"penstock: {message}\n")
    return code


def build(wanted: str) -> typer.Typer:
    """Returns the program with only the `wanted` command, or with all if that is not a command."""
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
