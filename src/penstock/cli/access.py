"""`penstock access check`: says whether a user may do something, and by which rule."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.access_words import named, parse_resource
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import emit, emit_json, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, connect, run
from penstock.client.admin.roles import AccessAnswer
from penstock.security.acls import AclOperation

_CHECK_HELP = """Say whether a user may do something, and by which rule.

The exit code is 0 if it is allowed and 1 if it is denied. With --host, rules for that client
address also apply.

\b
Examples:
  penstock access check alice read topic:orders
  penstock access check alice alter cluster:kafka-cluster --host 10.0.0.7
"""


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Explain what users may do.", no_args_is_help=True)
    group.command(help=_CHECK_HELP)(check)
    group.callback()(_group)
    root.add_typer(group, name="access")


def _group() -> None:
    """Keeps `check` a command of its own, although it is the only one."""


def check(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.")],
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="The operation, such as read.")
    ],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="The resource, such as topic:orders.")
    ],
    *,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Check access from this client address. Default: any address.",
        ),
    ] = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    pattern = parse_resource(resource)
    wanted = named(AclOperation, operation, "operation")

    async def main() -> AccessAnswer:
        async with connect(bootstrap) as admin:
            return await admin.check_access(f"User:{user}", wanted, pattern, host)

    answer = run(main())
    if json:
        emit_json({"allowed": answer.allowed, "reason": answer.reason, "roles": list(answer.roles)})
    else:
        roles = f" (role {', '.join(answer.roles)})" if answer.roles else ""
        emit(f"{'yes' if answer.allowed else 'no'}: {printable(answer.reason)}{roles}")
    if not answer.allowed:
        raise typer.Exit(EXIT_REFUSED)
