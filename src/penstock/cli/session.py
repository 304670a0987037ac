"""Shared code of the commands that talk to a cluster: connecting, and reporting errors.

Exit codes: 2 if the cluster could not be reached or did not answer, 1 if it refused the request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from penstock.cli.output import EXIT_UNUSABLE, CommandFailed, emit, emit_json, printable
from penstock.client.address import parse_bootstrap
from penstock.client.admin.admin import Admin
from penstock.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    OptionError,
    RecordTooLarge,
    TlsFailed,
    TopicNotFound,
)
from penstock.client.profiles import PREFIX, load
from penstock.wire.errors import ErrorCode

T = TypeVar("T")
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
BOOTSTRAP_VARIABLE: Final = "PENSTOCK_BOOTSTRAP"
EXIT_REFUSED: Final = 1
CLIENT_ID: Final = "penstock-cli"
CONNECT_TIMEOUT_MS: Final = 5_000
TIMEOUT_MS: Final = 30_000

_HINTS: Final = {
    # Used only if the broker's answer is an error code without its own message.
    ErrorCode.TOPIC_ALREADY_EXISTS: "see it with: penstock topic describe",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first",
    ErrorCode.INVALID_REPLICATION_FACTOR: "see the brokers with: penstock status",
    ErrorCode.NOT_ENOUGH_REPLICAS: "see which brokers are missing with: penstock status",
}


def connect(bootstrap: str) -> Admin:
    """Returns an admin client, to be used with `async with`."""
    return Admin(
        checked(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


def checked(bootstrap: str) -> str:
    """Returns `bootstrap` unchanged, or raises `CommandFailed` with an error about --bootstrap."""
    if bootstrap.startswith(PREFIX):
        try:
            load(bootstrap.removeprefix(PREFIX))
        except OptionError as error:
            raise CommandFailed(str(error)) from error
        return bootstrap
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise CommandFailed(f"--bootstrap: {error}") from error
    return bootstrap


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine. Errors of the client become `CommandFailed`, which prints one line."""
    try:
        return asyncio.run(main)
    except ClientError as error:
        raise CommandFailed(explain_client(error), exit_code(error)) from error
    except RuntimeError as error:
        # asyncio reports a second Ctrl-C during the loop's shutdown in this way.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def exit_code(error: ClientError) -> int:
    return EXIT_REFUSED if isinstance(error, BrokerError | RecordTooLarge) else EXIT_UNUSABLE


def explain_client(error: ClientError) -> str:
    text = printable(str(error)).rstrip(".")
    match error:
        case TlsFailed():
            return text
        case ConnectFailed():
            return f"{text}; to start a broker: penstock up"
        case TopicNotFound(partition=None):
            name = printable(error.topic)
            return f"{text}: see penstock topic list, or penstock topic create {name}"
        case TopicNotFound():
            return f"{text}: see penstock topic describe {printable(error.topic)}"
        case RecordTooLarge():
            return f"{text} (penstock topic alter TOPIC --config max.message.bytes=BYTES)"
        case BrokerError() if error.code in _HINTS and error.message == error.code.message:
            return f"{text}: {_HINTS[error.code]}"
    return text


def report(outcomes: Iterable[BrokerError | None]) -> None:
    """Raises `CommandFailed` with all refusals on one line, if there are any."""
    refused = [explain_client(error) for error in outcomes if error is not None]
    if refused:
        raise CommandFailed("; ".join(refused), EXIT_REFUSED)


def report_deleted(
    what: str,
    outcomes: Mapping[str, BrokerError | None],
    *,
    json: bool,
    fine: ErrorCode | None = None,
) -> None:
    """Prints what was deleted, then fails with what was refused. The code `fine` is no failure."""
    gone = [name for name, error in outcomes.items() if error is None]
    if json:
        refused = {name: error.message for name, error in outcomes.items() if error is not None}
        emit_json({"deleted": gone, "refused": refused})
    else:
        for name in gone:
            emit(f"deleted {what} {printable(name)}")
    report(error for error in outcomes.values() if error is None or error.code != fine)


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation on stderr. Without a terminal, `--yes` must be given."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailed(f"{question} Add --yes to confirm: there is no terminal to ask on")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was changed", EXIT_REFUSED)
