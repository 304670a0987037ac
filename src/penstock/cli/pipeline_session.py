"""Shared code of the commands about deployed pipelines: connecting, errors, arguments."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.cli.output import EXIT_UNUSABLE, CommandFailed, printable
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    EXIT_REFUSED,
    checked,
    exit_code,
    explain_client,
    run,
)
from penstock.client.errors import ClientError
from penstock.client.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.spark.deployments.catalog import Catalog

T = TypeVar("T")

Deployed = Annotated[str, typer.Argument(metavar="NAME", help="Name of the deployment.")]
Reset = Annotated[
    list[str] | None,
    typer.Option(
        "--reset", metavar="FLOW", help="Restart this flow without its checkpoint. Repeatable."
    ),
]
KeepCheckpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-checkpoint",
        metavar="FLOW",
        help="Keep this flow's checkpoint although the flow has changed. Repeatable.",
    ),
]


@contextmanager
def told() -> Iterator[None]:
    """Turns errors of pipelines and clients into `CommandFailed`, which prints one line."""
    from penstock.spark.pipelines.errors import PipelineError  # noqa: PLC0415 -- for speed

    try:
        yield
    except PipelineError as error:
        raise CommandFailed(printable(str(error)), _code(error)) from error
    except ClientError as error:
        raise CommandFailed(explain_client(error), exit_code(error)) from error


def _code(error: Exception) -> int:
    from penstock.spark.deployments.catalog_errors import (  # noqa: PLC0415 -- for speed
        AccessRefused,
        ChangeConflict,
        NoSuchDeployment,
    )

    refused = isinstance(error, AccessRefused | ChangeConflict | NoSuchDeployment)
    return EXIT_REFUSED if refused else EXIT_UNUSABLE


def open_catalog(bootstrap: str, *, create: bool = False) -> Catalog:
    """Returns the deployed pipelines, to be used with `async with`."""
    from penstock.spark.deployments.catalog import Catalog  # noqa: PLC0415 -- for speed

    return Catalog(
        checked(bootstrap),
        create=create,
        client_id=CLIENT_ID,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


def done(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work of a command."""
    with told():
        return run(work)


def since_ms(text: str | None, now_ms: int) -> int:
    """Returns the time of --since, or 0."""
    if text is None:
        return 0
    try:
        return parse_time_ms(text, now_ms)
    except ValueError as error:
        raise CommandFailed(f"--since: {error}") from error
