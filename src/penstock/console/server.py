"""Assembles the console and serves it until a signal or until it is cancelled."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import uvicorn

from penstock.client.environment import ClientEnv
from penstock.console.brokers import Brokers
from penstock.console.config import ConsoleConfig
from penstock.console.groups import Groups
from penstock.console.guard import Guard
from penstock.console.jobs import Jobs
from penstock.console.link import Link
from penstock.console.messages import Messages
from penstock.console.picture import Picture
from penstock.console.pipelines import Pipelines
from penstock.console.queries import Queries
from penstock.console.topics import Topics
from penstock.console.watch import Watch
from penstock.console.web import Web
from penstock.ports import Executor

_BACKLOG: Final = 128
_STOP_S: Final = 1
"""Streams do not end by themselves. They are cut off when the console stops."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. It is bound here so that its port is known at the start."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only if the protocol is given does asyncio turn Nagle's algorithm off for the connections.
    # Otherwise every answer waits 40 ms for the browser's delayed acknowledgment of its headers.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


async def serve(
    config: ConsoleConfig,
    listening: socket.socket,
    env: ClientEnv,
    executor: Executor,
    on_ready: Callable[[int], None],
) -> None:
    """Serves until a signal. Calls `on_ready` with the port."""
    port: int = listening.getsockname()[1]
    link = Link(config, env)
    watch = Watch(link, Picture(config.bootstrap, config.read_only))
    jobs = Jobs(watch.tell)
    queries = Queries(link, watch)
    web = Web(
        Guard(config, port, env.clock, env.random),
        watch,
        jobs,
        Topics(link, watch),
        Messages(link, jobs),
        Groups(link, watch),
        Brokers(link, watch, jobs),
        Pipelines(executor, queries),
    )
    server = uvicorn.Server(
        uvicorn.Config(
            web.app(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            timeout_graceful_shutdown=_STOP_S,
        )
    )

    def on_signal(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        # Handles signals that arrive before uvicorn installs its handlers. After it has stopped,
        # uvicorn raises the signals that it received again, for the previous handlers. Those are
        # these handlers, for which a second signal changes nothing.
        signal.signal(number, on_signal)
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(owned) for owned in (watch.run(), jobs.run(), queries.run())
            ]
            on_ready(port)
            await server.serve([listening])
            for task in watching:
                task.cancel()
    finally:
        await link.close()
        with suppress(OSError):
            listening.close()
