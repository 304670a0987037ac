"""Assembles the console and serves it until a signal or until it is cancelled."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import uvicorn

from penstock.client.environment import ClientEnv
from penstock.console.config import BadConsoleConfig, ConsoleConfig
from penstock.console.guard import Guard
from penstock.console.oauth import OAuth
from penstock.console.sessions import Sessions
from penstock.console.sign_in import SignIn
from penstock.console.uploads import Uploads
from penstock.console.web import Web
from penstock.console.workspace import Workspace
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


def check_certificate(config: ConsoleConfig) -> None:
    """Raises `BadConsoleConfig` if the files for https cannot be used."""
    if not config.tls_certificate:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.tls_certificate, config.tls_key or None, _no_password)
    except (OSError, ValueError) as error:
        # Errors of TLS are errors of the operating system, with or without the name of a file.
        files = " and ".join(each for each in (config.tls_certificate, config.tls_key) if each)
        reason = getattr(error, "strerror", None) or error
        raise BadConsoleConfig(
            f"{files} cannot be used for https ({reason}): give a certificate and its key as PEM "
            "files, with --tls-certificate and --tls-key"
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


async def serve(
    config: ConsoleConfig,
    listening: socket.socket,
    env: ClientEnv,
    executor: Executor,
    on_ready: Callable[[int], None],
) -> None:
    """Serves until a signal. Calls `on_ready` with the port."""
    port: int = listening.getsockname()[1]
    uploads = Uploads(executor)
    sessions = Sessions(
        env.clock,
        lambda user, login: Workspace(
            config, env, executor, uploads, {**config.security, **login}, user
        ),
        needs_sign_in=bool(config.sign_in),
    )
    oauth = None
    if config.oauth is not None:
        oauth = OAuth(config.oauth, env.clock, env.random, executor)
    guard = Guard(config, port, env.clock, env.random)
    web = Web(guard, sessions, SignIn(config, guard, sessions, oauth))
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
            ssl_certfile=config.tls_certificate or None,
            ssl_keyfile=config.tls_key or config.tls_certificate or None,
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
        async with sessions.running():
            on_ready(port)
            await server.serve([listening])
    finally:
        with suppress(OSError):
            listening.close()
