"""`penstock quota`: sets, lists and deletes the quotas of users, client ids and addresses."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import CommandFailed, emit, emit_json, parse_settings, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, connect, run
from penstock.cli.tables import Column, table
from penstock.client.admin.access import ANY_NAME
from penstock.client.admin.fair_sharing import fair_sharing_text, find_fair_sharing
from penstock.security.quotas import CLIENT_ID, IP, USER, QuotaEntity

_SET_HELP = """Set quotas of a user, a client id, both together, or an address.

The keys are Kafka's: producer_byte_rate, consumer_byte_rate, request_percentage,
controller_mutation_rate, and connection_creation_rate for addresses. A limit holds for each broker.
The name "default" stands for all that have no quota of their own.

\b
Examples:
  penstock quota set --user alice producer_byte_rate=1048576
  penstock quota set --user default consumer_byte_rate=1048576
  penstock quota set --user alice --client-id etl request_percentage=50
  penstock quota set --ip 10.0.0.7 connection_creation_rate=5
"""
_LIST_HELP = """List quotas, all or those of one user, client id or address.

The last line says whether an overloaded broker gives each user an equal share, also without quotas
(the setting fair.sharing.enabled).

\b
Examples:
  penstock quota list
  penstock quota list --user alice
  penstock quota list --json
"""
_DELETE_HELP = """Delete quotas: the given keys, or all.

\b
Examples:
  penstock quota delete --user alice
  penstock quota delete --user alice producer_byte_rate
"""
_DEFAULT = "default"

_User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user, or default.")]
_Client = Annotated[
    str | None, typer.Option("--client-id", metavar="NAME", help="A client id, or default.")
]
_Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address, or default.")]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Set, list and delete quotas.", no_args_is_help=True)
    group.command("set", help=_SET_HELP)(set_quotas)
    group.command("list", help=_LIST_HELP)(list_quotas)
    group.command(help=_DELETE_HELP)(delete)
    root.add_typer(group, name="quota")


def set_quotas(
    values: Annotated[list[str], typer.Argument(metavar="KEY=RATE...", help="The limits.")],
    *,
    user: _User = None,
    client_id: _Client = None,
    ip: _Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    entity = _entity(user, client_id, ip)
    limits = {key: _rate(key, text) for key, text in parse_settings(values, "KEY=RATE").items()}

    async def main() -> None:
        async with connect(bootstrap) as admin:
            await admin.alter_client_quotas(entity, set_values=limits)

    run(main())
    _done("set", entity, sorted(limits), json=json)


def list_quotas(
    *,
    user: _User = None,
    client_id: _Client = None,
    ip: _Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    entity = {} if user is client_id is ip is None else _entity(user, client_id, ip)

    async def main() -> tuple[dict[QuotaEntity, dict[str, float]], dict[int, bool]]:
        async with connect(bootstrap) as admin:
            found = await admin.describe_client_quotas(entity)
            brokers = (await admin.describe_cluster()).brokers
            return found, await find_fair_sharing(admin, [each.id for each in brokers])

    found, sharing = run(main())
    if json:
        quotas = [{"entity": dict(e.parts), "limits": limits} for e, limits in found.items()]
        emit_json({"quotas": quotas, "fair_sharing": sharing})
        return
    rows = [
        (str(e), key, f"{rate:,g}") for e, limits in found.items() for key, rate in limits.items()
    ]
    emit(table((Column("for"), Column("quota"), Column("limit", right=True)), rows))
    emit(fair_sharing_text(sharing))


def delete(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="The limits.")
    ] = None,
    *,
    user: _User = None,
    client_id: _Client = None,
    ip: _Ip = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    entity = _entity(user, client_id, ip)

    async def main() -> list[str]:
        async with connect(bootstrap) as admin:
            wanted = list(keys or ())
            if not wanted:
                found = await admin.describe_client_quotas(entity, strict=True)
                wanted = sorted({key for limits in found.values() for key in limits})
            if wanted:
                await admin.alter_client_quotas(entity, delete=wanted)
            return wanted

    _done("deleted", entity, run(main()), json=json)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = {USER: user, CLIENT_ID: client_id, IP: ip}
    entity = {k: None if v == _DEFAULT else v for k, v in given.items() if v is not None}
    if not entity:
        raise CommandFailed("give --user, --client-id or --ip: a quota needs an owner")
    if ANY_NAME in entity.values():
        raise CommandFailed("'*' is not a name: leave the option out, or write default")
    return entity


def _rate(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandFailed(f"{printable(key)}: {printable(text)!r} is not a number") from None


def _done(what: str, entity: dict[str, str | None], keys: list[str], *, json: bool) -> None:
    if json:
        emit_json({what: keys, "entity": entity})
    else:
        emit(f"{what}: {', '.join(map(printable, keys)) or 'nothing'}")
