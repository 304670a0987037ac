"""`penstock acl`: adds, lists and deletes access rules."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.access_words import named, parse_resource
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import CommandFailed, count, emit, emit_json, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, report, run
from penstock.cli.tables import Column, table
from penstock.client.errors import BrokerError
from penstock.security.access_text import acl_fields, pattern_text, split_list, text_of
from penstock.security.acl_filters import AclFilter
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    host_warning,
)

_ADD_HELP = """Add access rules.

A resource is TYPE:NAME with the type topic, group, cluster, transactional-id or user. A name that
ends in * is a prefix, and * alone is every name. The cluster is cluster:kafka-cluster.

\b
Examples:
  penstock acl add --user alice --allow read,describe topic:orders
  penstock acl add --user alice --allow read 'group:billing-*'
  penstock acl add --user bob --deny write 'topic:*' --host 10.0.0.7
"""
_LIST_HELP = """List access rules, all or those that match.

With a resource, the rules that apply to it are listed, prefixes included.

\b
Examples:
  penstock acl list
  penstock acl list topic:orders --user alice
  penstock acl list --json
"""
_DELETE_HELP = """Delete the access rules that match.

\b
Examples:
  penstock acl delete topic:orders --user alice
  penstock acl delete topic:orders --user alice --operation read --yes
"""

_User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The user; * is every user.")
]
_Resource = Annotated[str, typer.Argument(metavar="RESOURCE", help="Such as topic:orders.")]
_MaybeResource = Annotated[
    str | None, typer.Argument(metavar="[RESOURCE]", help="Such as topic:orders.")
]
_Operation = Annotated[
    str | None, typer.Option("--operation", metavar="NAME", help="Only rules for this operation.")
]
_Rights = Annotated[
    str | None,
    typer.Option(metavar="OPERATION,...", help="Operations, such as read,write,describe or all."),
]
_Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this address.")]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Add, list and delete access rules.", no_args_is_help=True)
    group.command(help=_ADD_HELP)(add)
    group.command("list", help=_LIST_HELP)(list_acls)
    group.command(help=_DELETE_HELP)(delete)
    root.add_typer(group, name="acl")


def add(
    resource: _Resource,
    *,
    user: _User = None,
    allow: _Rights = None,
    deny: _Rights = None,
    host: _Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    if user is None:
        raise CommandFailed("--user is missing: give the name of a user, or '*' for every user")
    rights = [(PermissionType.ALLOW, each) for each in split_list(allow)]
    rights += [(PermissionType.DENY, each) for each in split_list(deny)]
    if not rights:
        raise CommandFailed("no right is given: add --allow or --deny, such as --allow read")
    pattern = parse_resource(resource)
    acls = [
        AclBinding(
            pattern.resource_type,
            pattern.pattern_type,
            pattern.name,
            f"User:{user}",
            host,
            named(AclOperation, each, "operation"),
            permission,
        )
        for permission, each in rights
    ]

    async def main() -> dict[AclBinding, BrokerError | None]:
        async with connect(bootstrap) as admin:
            return await admin.create_acls(acls)

    outcomes = run(main())
    if (warning := host_warning(acls[0])) is not None:
        sys.stderr.write(f"penstock: warning: {printable(warning)}\n")
    added = [acl for acl, error in outcomes.items() if error is None]
    _show("added", added, json=json)
    report(outcomes.values())


def list_acls(
    resource: _MaybeResource = None,
    *,
    user: _User = None,
    operation: _Operation = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    wanted = _filter(resource, user, operation, PatternType.MATCH)

    async def main() -> list[AclBinding]:
        async with connect(bootstrap) as admin:
            return await admin.describe_acls(wanted)

    found = run(main())
    if json:
        emit_json({"acls": [acl_fields(acl) for acl in found]})
        return
    columns = [Column(name) for name in ("resource", "user", "permission", "operation", "host")]
    rows = [
        (
            pattern_text(acl.pattern),
            acl.principal.removeprefix("User:"),
            text_of(acl.permission),
            text_of(acl.operation),
            acl.host,
        )
        for acl in found
    ]
    emit(table(columns, rows))


def delete(
    resource: _Resource,
    *,
    user: _User = None,
    operation: _Operation = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    wanted = _filter(resource, user, operation, parse_resource(resource).pattern_type)

    async def find() -> list[AclBinding]:
        async with connect(bootstrap) as admin:
            return await admin.describe_acls(wanted)

    async def main() -> list[AclBinding]:
        async with connect(bootstrap) as admin:
            (outcome,) = await admin.delete_acls([wanted])
            if isinstance(outcome, BrokerError):
                raise outcome
            return outcome

    if not yes:
        found = run(find())
        confirm(f"Delete {count(len(found), 'access rule')} of {printable(resource)}?", yes=False)
    _show("deleted", run(main()), json=json)


def _filter(
    resource: str | None, user: str | None, operation: str | None, pattern: PatternType
) -> AclFilter:
    kind, name = ResourceType.ANY, None
    if resource is not None:
        given = parse_resource(resource)
        kind, name = given.resource_type, given.name
    return AclFilter(
        kind,
        PatternType.ANY if resource is None else pattern,
        name,
        None if user is None else f"User:{user}",
        None,
        AclOperation.ANY if operation is None else named(AclOperation, operation, "operation"),
    )


def _show(what: str, acls: list[AclBinding], *, json: bool) -> None:
    if json:
        emit_json({what: [acl_fields(acl) for acl in acls]})
        return
    for acl in acls:
        emit(f"{what}: {printable(str(acl))}")
    if not acls:
        emit(f"{what} nothing")
