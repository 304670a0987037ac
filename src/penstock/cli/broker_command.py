"""`penstock broker`: runs one broker, configured by a file."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

import typer

from penstock.broker.config import (
    BrokerConfig,
    ConfigError,
    LogFormat,
    LogLevel,
    load_config,
)
from penstock.cli.output import CommandFailed, emit, explain, parse_settings, pipe_guard
from penstock.stores.errors import StoreError

_HELP = """Run one broker in the foreground, configured by a TOML file.

Prints the line `ready bootstrap=HOST:PORT` when clients can connect. SIGTERM and Ctrl-C stop the
broker cleanly.

\b
Examples:
  penstock broker --print-config > broker.toml
  penstock broker --config broker.toml
  penstock broker --config broker.toml --set port=9093
  penstock broker -c broker.toml --metrics 127.0.0.1:9404 --log-format json
"""
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Address for Prometheus and health checks; auto (port + 1000), or off.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", help="Format of the log lines on stderr.")
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option("--log-level", help="The lowest level that is logged.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the config file or a Kafka setting. Repeatable.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command("broker", help=_HELP)(broker)


def broker(
    *,
    config: Annotated[
        str | None, typer.Option("--config", "-c", metavar="FILE", help="The config file.")
    ] = None,
    metrics: Metrics = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = None,
    settings: Settings = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print a commented config file and exit.")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", hidden=True, help="Stop when stdin is closed.")
    ] = False,
) -> None:
    if print_config:
        from penstock.cli.broker_files import default_text  # noqa: PLC0415 -- only here

        with pipe_guard():
            emit(default_text())
        return
    if config is None:
        raise CommandFailed("give --config FILE; --print-config prints a commented example")
    if stop_with_stdin:
        _stop_with_stdin()
    chosen = configured(
        lambda: watched(load_config(config), metrics, log_format, log_level), settings
    )
    raise typer.Exit(run_in_foreground(chosen, announce))


def configured(load: Callable[[], BrokerConfig], settings: list[str] | None) -> BrokerConfig:
    """Returns the configuration with `--set` applied. An error in it becomes `CommandFailed`."""
    try:
        return load().with_overrides(parse_settings(settings or (), "--set"))
    except ConfigError as error:
        raise CommandFailed(str(error)) from error


def watched(
    config: BrokerConfig,
    metrics: str | None,
    log_format: LogFormat | None,
    log_level: LogLevel | None,
) -> BrokerConfig:
    """Returns the configuration with the options for metrics and logging that were given."""
    return replace(
        config,
        metrics=metrics or config.metrics,
        log_format=str(log_format or config.log_format),
        log_level=str(log_level or config.log_level),
    )


def announce(addresses: list[str]) -> None:
    """Prints the line that scripts wait for. Flushes it, since they read it through a pipe."""
    sys.stdout.write(f"ready bootstrap={','.join(addresses)}\n")
    sys.stdout.flush()


def run_in_foreground(
    config: BrokerConfig,
    on_ready: Callable[[list[str]], None],
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Runs the broker until it is stopped, and returns the exit code.

    A broker that cannot start raises `CommandFailed`, whose message is one line.
    """
    from penstock.broker.control.membership import Replaced  # noqa: PLC0415 - not for --print-config
    from penstock.broker.main import run_broker  # noqa: PLC0415 - as above
    from penstock.metadata.stored_fields import MetadataInvalid  # noqa: PLC0415 - as above

    try:
        return run_broker(config, on_ready, before_stop)
    except (ConfigError, StoreError, MetadataInvalid, Replaced) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(explain_start(error, config)) from error


def explain_start(error: OSError, config: BrokerConfig) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{config.host}:{config.port} is in use: another broker may be running "
                "(see penstock status); if not, choose another port"
            )
        case errno.EADDRNOTAVAIL:
            return f"{config.host} is not an address of this machine: choose another host"
        case errno.EACCES | errno.EPERM | errno.EROFS if error.filename:
            return f"{error.filename} is not writable: choose another data directory"
        case errno.EACCES:
            return f"port {config.port} needs privileges: choose one above 1023"
        case errno.EEXIST | errno.ENOTDIR | errno.EISDIR if error.filename:
            kind = "directory" if error.errno == errno.EISDIR else "file"
            return (
                f"{error.filename} is a {kind}, which the broker did not expect there: move it "
                "away, or choose another data directory"
            )
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space is left on the disk of {config.data_dir}: free some, or move the data"
        case errno.EIO:
            at = error.filename or config.data_dir
            return f"the disk failed at {at}: check it (dmesg), then start the broker again"
    return explain(error)


def _stop_with_stdin() -> None:
    """Stops the broker cleanly when its parent process ends, even by SIGKILL.

    The parent holds the other end of the broker's standard input, which closes when it ends.
    """

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="penstock-parent").start()
