"""`penstock pipeline worker`: runs deployed pipelines on this machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.options import Bootstrap
from penstock.cli.output import CommandFailed, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked, exit_code, explain_client
from penstock.client.errors import ClientError

if TYPE_CHECKING:
    from penstock.spark.deployments.metrics.endpoint import MetricsOptions
    from penstock.spark.deployments.worker import Worker, WorkerOptions

DEFAULT_DATA: Final = "penstock-worker"
HELP: Final = """Run deployed pipelines on this machine, in the foreground.

Any number of workers, on any machines, share the deployed pipelines. Each pipeline runs on one of
them. When a worker ends or cannot be reached, the others take over its pipelines. Tables and
checkpoints are in the data folder, unless the pipeline was deployed with --storage. Without
--storage, only workers with the same data folder can take a pipeline over.

SIGTERM and Ctrl-C stop all pipelines after their rounds. A second one stops them at once.

\b
Examples:
  penstock pipeline worker
  penstock pipeline worker --data /var/lib/penstock-worker --memory 8192
  penstock pipeline worker --secrets /etc/penstock/secrets
  penstock pipeline worker --metrics-port 9405
  penstock pipeline worker --openlineage http://marquez:5000
"""

_MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="N",
        help="Serve metrics and health checks on this port. 0: any free port.",
    ),
]
_MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        metavar="H",
        help="Listen address. Any address other than loopback needs a token.",
    ),
]
_MetricsTokenFile = Annotated[
    str,
    typer.Option(
        "--metrics-token-file",
        metavar="FILE",
        help="The file with the token that requests must send.",
    ),
]
_MetricsKeystore = Annotated[
    str,
    typer.Option(
        "--metrics-keystore",
        metavar="FILE",
        help="PEM file with a key and certificates; turns TLS on.",
    ),
]
_OpenLineage = Annotated[
    str,
    typer.Option(
        "--openlineage",
        metavar="URL",
        help="Send OpenLineage events to a URL, a file or a topic (topic:NAME).",
    ),
]


def worker(
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="DIR", help="The data folder of the worker.")
    ] = DEFAULT_DATA,
    memory: Annotated[
        int,
        typer.Option(
            "--memory",
            min=0,
            metavar="MB",
            help="The most driver heap (MB) for all pipelines of this worker. 0: no limit.",
        ),
    ] = 0,
    secrets: Annotated[
        str,
        typer.Option("--secrets", metavar="DIR", help="A folder with one file for each secret."),
    ] = "",
    spare: Annotated[
        bool,
        typer.Option(
            "--spare/--no-spare", help="Keep a started Spark in reserve for the next pipeline."
        ),
    ] = True,
    metrics_port: _MetricsPort = None,
    metrics_host: _MetricsHost = "127.0.0.1",
    metrics_token_file: _MetricsTokenFile = "",
    metrics_keystore: _MetricsKeystore = "",
    metrics_moves: Annotated[bool, typer.Option("--metrics-moves", hidden=True)] = False,
    openlineage: _OpenLineage = "",
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    from penstock.spark.deployments.worker import WorkerOptions  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- for speed
    from penstock.spark.pipelines.runner import check_spark  # noqa: PLC0415 -- for speed

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    metrics = _metrics(
        metrics_port, metrics_host, metrics_token_file, metrics_keystore, moves=metrics_moves
    )
    options = WorkerOptions(
        checked(bootstrap), data, memory, secrets, spare, metrics=metrics, openlineage=openlineage
    )
    try:
        check_spark()
        asyncio.run(_run(options, stop_with_stdin=stop_with_stdin))
    except PipelineError as error:
        raise CommandFailed(printable(str(error))) from error
    except ClientError as error:
        raise CommandFailed(explain_client(error), exit_code(error)) from error
    except OSError as error:
        where = error.filename or data
        raise CommandFailed(
            f"{printable(str(where))}: {error.strerror}: choose another folder with --data"
        ) from error


def _metrics(
    port: int | None, host: str, token_file: str, keystore: str, *, moves: bool
) -> MetricsOptions | None:
    from penstock.spark.deployments.metrics.endpoint import (  # noqa: PLC0415 -- for speed
        MetricsOptions,
    )

    if port is None:
        if token_file or keystore:
            raise CommandFailed("--metrics-token-file and --metrics-keystore need --metrics-port N")
        return None
    return MetricsOptions(host, port, token_file, keystore, moves)


async def _run(options: WorkerOptions, *, stop_with_stdin: bool) -> None:
    from penstock.spark.deployments.worker import run_worker  # noqa: PLC0415 -- for speed

    loop = asyncio.get_running_loop()
    waiting = asyncio.current_task()
    started: list[Worker] = []

    def stop() -> None:
        if started:
            started[0].stop()
        elif waiting is not None:
            waiting.cancel()

    def on_ready(running: Worker) -> None:
        started.append(running)
        running.on_metrics = lambda url: tell(f"metrics of pipelines: {url}/metrics")
        tell(f"worker {running.id} runs deployed pipelines; Ctrl-C stops")

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if stop_with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    with suppress(asyncio.CancelledError):
        await run_worker(options, on_ready)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Stops when the process that started this one has ended."""
    sys.stdin.buffer.read()
    with suppress(RuntimeError):  # The loop has ended already.
        loop.call_soon_threadsafe(stop)
