"""The entry point of the console process: `python -m penstock.console.main`.

`penstock console` and `penstock up` start it. The token is passed in the environment, since every
user of the machine can read a process's arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from penstock.client import profiles
from penstock.client.environment import default_environment
from penstock.client.errors import OptionError
from penstock.console.config import (
    DEFAULT_PORT,
    BadConsoleConfig,
    ConsoleConfig,
    OAuthConfig,
)
from penstock.console.oauth import is_safe
from penstock.console.server import check_certificate, listen, serve
from penstock.runtime import SystemRandom, Threads
from penstock.security.addresses import is_loopback

TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"  # noqa: S105 -- the name of it, not a token
OAUTH_SECRET_VARIABLE: Final = "PENSTOCK_CONSOLE_OAUTH_SECRET"  # noqa: S105 -- as above
_EXIT_UNUSABLE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parsed(arguments)
    token = os.environ.pop(TOKEN_VARIABLE, "")
    try:
        config = _config(given, token)
        listening = _listen(given)
    except (BadConsoleConfig, OptionError, OSError) as error:
        sys.stderr.write(f"penstock: {_explain(error, given)}\n")
        return _EXIT_UNUSABLE
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if given.stop_with_stdin:
        _stop_with_stdin()

    def on_ready(port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        # Browsers do not send the fragment of a URL, so the token gets into no server's log.
        secret = f"#token={config.token}" if config.token else ""
        scheme = "https" if config.tls_certificate else "http"
        sys.stdout.write(f"console {scheme}://{host}:{port}/{secret}\n")
        sys.stdout.flush()

    threads = Threads(2)
    try:
        asyncio.run(serve(config, listening, default_environment(), threads, on_ready))
    finally:
        threads.close()
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="penstock console")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--any-port", action="store_true", help="any free port if that is in use")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--allow-host", action="append", default=[])
    parser.add_argument("--stop-with-stdin", action="store_true")
    parser.add_argument("--sign-in", action="append", default=[], metavar="MECHANISM")
    parser.add_argument("--security-protocol", default="")
    parser.add_argument("--ssl-ca", default="")
    parser.add_argument("--oauth-issuer", default="")
    parser.add_argument("--oauth-client-id", default="")
    parser.add_argument("--oauth-scope", default="openid")
    parser.add_argument("--tls-certificate", default="")
    parser.add_argument("--tls-key", default="")
    return parser.parse_args(arguments)


def _config(given: argparse.Namespace, token: str) -> ConsoleConfig:
    bootstrap, security = _cluster(given)
    if not token and not given.sign_in and not is_loopback(given.host):
        # Other machines can connect and no token was given: generate one, which is printed.
        token = SystemRandom().bytes(16).hex()
    config = ConsoleConfig(
        bootstrap=bootstrap,
        host=given.host,
        token=token,
        read_only=given.read_only,
        allowed_hosts=tuple(given.allow_host),
        security=security,
        sign_in=tuple(given.sign_in),
        oauth=_oauth(given),
        tls_certificate=given.tls_certificate,
        tls_key=given.tls_key,
    )
    check_certificate(config)
    return config


def _cluster(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns the addresses and the options of connections.

    If users sign in, a profile gives only the addresses and TLS: its login is not used.
    """
    security: dict[str, Any] = {}
    bootstrap: str = given.bootstrap
    if given.sign_in and bootstrap.startswith(profiles.PREFIX):
        profile = profiles.load(bootstrap.removeprefix(profiles.PREFIX))
        bootstrap = profile.bootstrap
        security = {key: value for key, value in profile.values.items() if "sasl" not in key}
    if given.security_protocol:
        security["security_protocol"] = given.security_protocol
    if given.ssl_ca:
        security["ssl_ca"] = given.ssl_ca
    return bootstrap, security


def _oauth(given: argparse.Namespace) -> OAuthConfig | None:
    secret = os.environ.pop(OAUTH_SECRET_VARIABLE, "")
    if not given.oauth_issuer and not given.oauth_client_id:
        return None
    if not is_safe(given.oauth_issuer):
        raise BadConsoleConfig(
            "the OpenID provider must be an https address: correct --oauth-issuer"
        )
    if not given.oauth_client_id:
        raise BadConsoleConfig("give the client id of this console too: --oauth-client-id")
    return OAuthConfig(
        issuer=given.oauth_issuer,
        client_id=given.oauth_client_id,
        client_secret=secret,
        scope=given.oauth_scope,
    )


def _listen(given: argparse.Namespace) -> socket.socket:
    try:
        return listen(given.host, given.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not given.any_port:
            raise
        return listen(given.host, 0)


def _explain(error: Exception, given: argparse.Namespace) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"port {given.port} is in use: choose another with --port"
        case errno.EADDRNOTAVAIL:
            return f"{given.host} is not an address of this machine: choose another with --host"
        case errno.EACCES:
            return f"port {given.port} needs privileges: choose one above 1023"
    return str(error)


def _stop_with_stdin() -> None:
    """Stops the console when its parent ends, even by SIGKILL: standard input then closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="penstock-parent").start()


if __name__ == "__main__":
    sys.exit(main())
