"""`penstock broker`: one broker, set up by a file."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
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

_HELP = """Run one broker in the foreground, as a TOML file says.

When clients can connect, the line `ready bootstrap=HOST:PORT` is printed. SIGTERM and Ctrl-C stop
it cleanly.

\b
Examples:
  penstock broker --print-config > broker.toml
  penstock broker --config broker.toml
  penstock broker --config broker.toml --set port=9093
  penstock broker -c broker.toml --metrics 0.0.0.0:9404 --log-format json
"""
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Where Prometheus and health checks come; auto (the port plus 1000), or off.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", help="How log lines are written to stderr.")
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option("--log-level", help="What is logged, from this level on.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A key of the config file, or a Kafka setting."
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
        raise CommandFailed("give --config FILE; --print-config shows what can be in one")
    if stop_with_stdin:
        _stop_with_stdin()
    chosen = configured(
        lambda: watched(load_config(config), metrics, log_format, log_level), settings
    )
    raise typer.Exit(run_in_foreground(chosen, announce))


def configured(load: Callable[[], BrokerConfig], settings: list[str] | None) -> BrokerConfig:
    """The configuration with `--set` applied; what is wrong with it is said in one line."""
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
    """The configuration with the options for those who watch the broker, where they are given."""
    return replace(
        config,
        metrics=metrics or config.metrics,
        log_format=str(log_format or config.log_format),
        log_level=str(log_level or config.log_level),
    )


def announce(addresses: list[str]) -> None:
    """The line that scripts wait for; flushed, since they read it through a pipe."""
    sys.stdout.write(f"ready bootstrap={','.join(addresses)}\n")
    sys.stdout.flush()


def run_in_foreground(config: BrokerConfig, on_ready: Callable[[list[str]], None]) -> int:
    """Run until stopped; the exit code. What keeps it from starting is said in one line."""
    # --print-config needs none of it.
    from penstock.broker.main import run_broker  # noqa: PLC0415
    from penstock.broker.membership import Replaced  # noqa: PLC0415
    from penstock.metadata.keys import MetadataInvalid  # noqa: PLC0415

    try:
        return run_broker(config, on_ready)
    except (ConfigError, StoreError, MetadataInvalid, Replaced) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(explain_start(error, config)) from error


def explain_start(error: OSError, config: BrokerConfig) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{config.host}:{config.port} is in use: another broker may run already "
                "(penstock status), else choose another port"
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
                f"{error.filename} is a {kind}, where the broker needs something else: move it "
                "away, or choose another data directory"
            )
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space is left for {config.data_dir}: free some, or move the data"
        case errno.EIO:
            at = error.filename or config.data_dir
            return f"the disk failed at {at}: check it (dmesg), then start the broker again"
    return explain(error)


def _stop_with_stdin() -> None:
    """Stop cleanly when whoever started this goes away, even by SIGKILL: its end of our standard
    input closes then."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="penstock-parent").start()
