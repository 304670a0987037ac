"""`penstock token`: delegation tokens, with which programs log in for a user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.cert_files import write_file
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import CommandFailed, emit, emit_json, printable, time_text
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, confirm, connect, run
from penstock.cli.tables import Column, table
from penstock.client.admin.admin import Admin
from penstock.client.admin.delegation_tokens import DelegationToken
from penstock.client.times import parse_duration_ms

_CREATE_HELP = """Create a token with which programs log in for you.

The id of the token is their user name, and its HMAC the password: everyone who has the HMAC can act
as the owner until the token expires. With --hmac-file the HMAC is written to a file that only you
can read, and is not shown.

\b
Examples:
  penstock token create --hmac-file job-token
  penstock token create --renewer spark --lifetime 2d
  penstock token create --owner alice
"""
_LIST_HELP = """List the tokens that you may see, without their HMACs.

\b
Examples:
  penstock token list
  penstock token list --owner alice --json
"""
_RENEW_HELP = """Let a token last longer, up to its maximum lifetime.

\b
Examples:
  penstock token renew u7HkYzQ0R1mV5p2d8sL3wA
  penstock token renew u7HkYzQ0R1mV5p2d8sL3wA --for 12h
"""
_EXPIRE_HELP = """Remove a token at once, or let it expire soon.

When the command has succeeded, no broker accepts the token, and sessions that began with it end.

\b
Examples:
  penstock token expire u7HkYzQ0R1mV5p2d8sL3wA
  penstock token expire u7HkYzQ0R1mV5p2d8sL3wA --in 10m
"""

_Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the token.")]
_HmacFile = Annotated[
    Path | None,
    typer.Option("--hmac-file", metavar="FILE", help="Write the HMAC to this new file."),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(
        help="Create, list, renew and expire delegation tokens.", no_args_is_help=True
    )
    group.command(help=_CREATE_HELP)(create)
    group.command("list", help=_LIST_HELP)(list_tokens)
    group.command(help=_RENEW_HELP)(renew)
    group.command(help=_EXPIRE_HELP)(expire)
    root.add_typer(group, name="token")


def create(
    *,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner", metavar="USER", help="The user that the token logs in as. Default: you."
        ),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            "--renewer", metavar="USER", help="Another user who may renew it. Repeatable."
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option("--lifetime", metavar="TIME", help="The maximum lifetime, such as 2d."),
    ] = None,
    hmac_file: _HmacFile = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    lifetime_ms = -1 if lifetime is None else _duration(lifetime)
    if hmac_file is not None and hmac_file.exists():
        raise CommandFailed(f"{hmac_file} exists: give the name of a new file")

    async def main() -> DelegationToken:
        async with connect(bootstrap) as admin:
            return await admin.create_delegation_token(
                owner, renewers=renewer or (), max_lifetime_ms=lifetime_ms
            )

    token = run(main())
    if hmac_file is not None:
        write_file(hmac_file, f"{token.hmac}\n", secret=True)
    shown = {} if hmac_file is not None else {"hmac": token.hmac}
    if json:
        emit_json({**_fields(token), **shown})
        return
    emit(f"created token {token.token_id} of {printable(token.owner)}")
    emit(f"expires {time_text(token.expires_ms)}, renewable until {time_text(token.max_ms)}")
    emit(f"HMAC {token.hmac}" if hmac_file is None else f"HMAC in {hmac_file}")


def list_tokens(
    *,
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner",
            metavar="USER",
            help="Only tokens that this user owns, requested or may renew. Repeatable.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> list[DelegationToken]:
        async with connect(bootstrap) as admin:
            return await admin.describe_delegation_tokens(owner or None)

    found = run(main())
    if json:
        emit_json({"tokens": [_fields(token) for token in found]})
        return
    columns = (Column("token"), Column("owner"), Column("expires"), Column("renewers"))
    rows = [
        (each.token_id, each.owner, time_text(each.expires_ms), ", ".join(each.renewers))
        for each in found
    ]
    emit(table(columns, rows))


def renew(
    token_id: _Id,
    *,
    period: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long from now on, such as 12h.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    period_ms = -1 if period is None else _duration(period)
    expires_ms = _change(
        token_id, bootstrap, lambda admin, hmac: admin.renew_delegation_token(hmac, period_ms)
    )
    _done("renewed", token_id, expires_ms, json=json)


def expire(
    token_id: _Id,
    *,
    period: Annotated[
        str | None,
        typer.Option(
            "--in", metavar="TIME", help="When the token expires, such as 10m. Default: now."
        ),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    period_ms = -1 if period is None else _duration(period)
    confirm(f"Expire token {printable(token_id)}?", yes=yes)
    expires_ms = _change(
        token_id, bootstrap, lambda admin, hmac: admin.expire_delegation_token(hmac, period_ms)
    )
    _done("expired", token_id, expires_ms, json=json)


def _change(token_id: str, bootstrap: str, change: Callable[[Admin, str], Any]) -> int:
    """Changes a token by its id. The cluster knows tokens by their HMACs, so that is found first:
    it should not be on a command line."""

    async def main() -> int:
        async with connect(bootstrap) as admin:
            for token in await admin.describe_delegation_tokens():
                if token.token_id == token_id:
                    expires_ms: int = await change(admin, token.hmac)
                    return expires_ms
        raise CommandFailed(
            f"there is no token {printable(token_id)} that you may see; to list them: "
            "penstock token list",
            EXIT_REFUSED,
        )

    return run(main())


def _done(what: str, token_id: str, expires_ms: int, *, json: bool) -> None:
    if json:
        emit_json({what: token_id, "expires_ms": expires_ms})
    else:
        emit(f"{what} token {printable(token_id)}: it expires {time_text(expires_ms)}")


def _fields(token: DelegationToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }


def _duration(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise CommandFailed(str(error)) from None
