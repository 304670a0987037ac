"""`penstock up`: runs a cluster on this machine, in the foreground.

A single broker runs in this process, which is the fastest start. Several brokers run as separate
processes. Each has a config file in the data directory, which `penstock broker` can use as well.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.broker.config import BrokerConfig, LogLevel
from penstock.cli.broker_command import (
    LogFormatOption,
    LogLevelOption,
    Metrics,
    Settings,
    announce,
    configured,
    run_in_foreground,
    watched,
)
from penstock.cli.broker_files import metrics_url
from penstock.cli.console_process import ConsoleProcess
from penstock.cli.output import CommandFailed
from penstock.cli.worker_process import WorkerProcess
from penstock.security.addresses import is_loopback

if TYPE_CHECKING:
    from penstock.cli.secure_setup import SecureSetup

DEFAULT_DATA: Final = "penstock-data"
_INTERNAL_REPLICAS: Final = 3

_HELP = """Run a cluster on this machine, in the foreground.

Broker i listens on port P+i and stores its data in DIR/broker-i. Prints the line
`ready bootstrap=HOST:PORT,...` when clients can connect, and then the address of the web console to
standard error. SIGTERM and Ctrl-C stop the cluster cleanly. The data is kept for the next start.

\b
Examples:
  penstock up
  penstock up --brokers 3 --data /var/lib/penstock
  penstock up --port 19092 --set auto.create.topics.enable=false
  penstock up --secure
"""


_Brokers = Annotated[
    int, typer.Option("--brokers", "-n", min=1, max=64, metavar="N", help="Number of brokers.")
]
_Data = Annotated[
    str,
    typer.Option("--data", "-d", envvar="PENSTOCK_DATA", metavar="DIR", help="The data directory."),
]
_Console = Annotated[
    bool,
    typer.Option(
        "--console/--no-console",
        envvar="PENSTOCK_CONSOLE",
        help="Also run the web console, for browsers on this machine.",
    ),
]
_Worker = Annotated[
    bool,
    typer.Option(
        "--worker/--no-worker",
        envvar="PENSTOCK_WORKER",
        help="Also run a worker for deployed pipelines, if Java and PySpark are installed.",
    ),
]
_Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="Create certificates and a first user, and accept only TLS and logins."
    ),
]


def register(root: typer.Typer) -> None:
    root.command("up", help=_HELP)(up)


def up(
    *,
    brokers: _Brokers = 1,
    data: _Data = DEFAULT_DATA,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, metavar="P", help="The first port.")
    ] = 9092,
    host: Annotated[
        str, typer.Option("--host", metavar="H", help="Listen address; 0.0.0.0: all interfaces.")
    ] = "127.0.0.1",
    with_console: _Console = True,
    with_worker: _Worker = True,
    secure: _Secure = False,
    metrics: Metrics = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    settings: Settings = None,
) -> None:
    directory = data.rstrip("/") or "/"
    setup: SecureSetup | None = _secure_setup().prepare(directory, host) if secure else None

    def config(number: int) -> BrokerConfig:
        plain = _config(directory, host, port, number, brokers)
        if setup is not None:
            plain = _with_security(plain, setup)
        return watched(plain, _metrics_of(metrics, number), log_format, log_level)

    configs = [configured(partial(config, number), settings) for number in range(brokers)]
    _make_directory(directory)
    if setup is not None:
        _secure_setup().add_admin(setup, configs[0].store_path)

    console = ConsoleProcess(wanted=with_console)
    # With --secure a worker needs a login of its own: penstock pipeline worker.
    worker = WorkerProcess(wanted=with_worker and not secure and all(map(_is_private, configs)))

    def on_ready(addresses: list[str]) -> None:
        announce(addresses)
        if setup is None:
            _hint(directory, addresses)
        else:
            sys.stderr.write(_secure_setup().snippets(setup, ",".join(addresses)))
        _tell_metrics(configs)
        console.start(addresses, *(() if setup is None else _secure_setup().console_options(setup)))
        worker.start(addresses, directory, with_metrics=configs[0].metrics_address is not None)

    try:
        if brokers == 1:
            raise typer.Exit(run_in_foreground(configs[0], on_ready, worker.stop))
        from penstock.cli import supervise  # noqa: PLC0415 -- a single broker starts without it

        security = None if setup is None else _secure_setup().admin_security(setup)
        code = supervise.run_brokers(directory, configs, on_ready, security, worker.stop)
        raise typer.Exit(code)
    finally:
        worker.close()
        console.close()


def _is_private(config: BrokerConfig) -> bool:
    """Returns whether only this machine can reach the broker. Without logins, everyone who can
    reach it can deploy code, and a worker would run it."""
    return all(is_loopback(each.host) for each in config.listeners.bound)


def _config(directory: str, host: str, port: int, number: int, brokers: int) -> BrokerConfig:
    # With Kafka's default of 3, groups and transactions would not work on smaller clusters.
    factor = str(min(_INTERNAL_REPLICAS, brokers))
    return BrokerConfig(
        kafka=(
            ("offsets.topic.replication.factor", factor),
            ("transaction.state.log.replication.factor", factor),
            ("audit.topic.replication.factor", factor),
            ("share.coordinator.state.topic.replication.factor", factor),
        ),
        broker_id=number,
        host=host,
        port=port + number if port else 0,
        data_dir=f"{directory}/broker-{number}",
        store=f"{directory}/metadata.db",
    )


def _secure_setup() -> ModuleType:
    from penstock.cli import secure_setup  # noqa: PLC0415 - loads a library for certificates

    return secure_setup


def _with_security(config: BrokerConfig, setup: SecureSetup) -> BrokerConfig:
    added = _secure_setup().broker_settings(setup, config.host, config.port)
    return replace(config, kafka=(*config.kafka, *added.items()))


def _metrics_of(first: str | None, number: int) -> str | None:
    """Returns the metrics address of a broker: broker i gets port + i, as for clients."""
    host, colon, port = (first or "").rpartition(":")
    is_counted = colon and port.isascii() and port.isdigit() and int(port)
    return f"{host}:{int(port) + number}" if is_counted else first


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be created ({error.strerror}): choose another directory with --data"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise CommandFailed(f"{path} is not writable: choose another directory with --data")


def _tell_metrics(configs: list[BrokerConfig]) -> None:
    found = [metrics_url(config.data_dir) for config in configs]
    pages = [f"{url}/metrics" for url in found if url is not None]
    if pages:
        sys.stderr.write(f"metrics: {' '.join(pages)}\n")


def _hint(directory: str, addresses: list[str]) -> None:
    at = "" if addresses[0] in ("127.0.0.1:9092", "localhost:9092") else f" -b {addresses[0]}"
    sys.stderr.write(
        f"data in {shlex.quote(os.path.abspath(directory))}; Ctrl-C stops\n"
        f"try: echo hello | penstock produce greetings{at}\n"
        f"     penstock consume greetings --from-beginning{at}\n"
    )
