"""`penstock role`: creates, grants, revokes, lists and deletes roles."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.access_words import parse_assignment, parse_grant
from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import emit, emit_json, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, confirm, connect, run
from penstock.cli.tables import Column, table
from penstock.client.admin.roles import RoleListing
from penstock.security.access_text import assignment_fields, grant_text
from penstock.security.role_edits import DefineRole, DeleteRole, GrantRole, RevokeRole, RoleEdit
from penstock.security.roles import Role

_CREATE_HELP = """Create a role, or replace it: its users then get the new rights.

A grant is TYPE=OPERATIONS, for the resource that the role is granted on, or
TYPE:NAME=OPERATIONS, always for that name. A name that ends in * is a prefix.

\b
Examples:
  penstock role create auditor --grant topic:__audit=read,describe
  penstock role create operator --grant topic=alter --grant cluster=describe
"""
_GRANT_HELP = """Give a user a role, on a resource: a name, or a prefix that ends in *.

The built-in roles are reader, writer, owner and admin. A consumer needs reader on its topics and on
its group. The type any stands for all types in the role. admin needs no resource.

\b
Examples:
  penstock role grant reader 'topic:orders.*' --user alice
  penstock role grant owner 'any:billing.*' --user bob
  penstock role grant admin --user carol
"""
_REVOKE_HELP = """Take a role back from a user. Rules that another role needs stay.

\b
Examples:
  penstock role revoke reader 'topic:orders.*' --user alice
"""
_LIST_HELP = """List the roles, and who has them.

\b
Examples:
  penstock role list
  penstock role list --user alice
  penstock role list --json
"""
_DELETE_HELP = """Delete a role of your own that no user has.

\b
Examples:
  penstock role delete auditor
"""
_Name = Annotated[str, typer.Argument(metavar="ROLE", help="The name of the role.")]
_Resource = Annotated[
    str | None, typer.Argument(metavar="[RESOURCE]", help="Such as topic:orders or 'topic:a.*'.")
]
_User = Annotated[str, typer.Option("--user", metavar="NAME", help="The user.")]
_MaybeUser = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Only roles that this user has.")
]
_Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this address.")]
_Grants = Annotated[
    list[str],
    typer.Option(
        "--grant",
        metavar="TYPE=OPERATIONS",
        help="What the role allows, such as topic=read,describe. Repeatable.",
    ),
]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Create, grant, revoke and list roles.", no_args_is_help=True)
    group.command(help=_CREATE_HELP)(create)
    group.command(help=_GRANT_HELP)(grant)
    group.command(help=_REVOKE_HELP)(revoke)
    group.command("list", help=_LIST_HELP)(list_roles)
    group.command(help=_DELETE_HELP)(delete)
    root.add_typer(group, name="role")


def create(
    role: _Name,
    *,
    grants: _Grants,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    made = Role(role, tuple(parse_grant(text) for text in grants))
    _alter(bootstrap, DefineRole(made))
    _tell(json, "created", role, f"created the role {printable(role)}")


def grant(
    role: _Name,
    resource: _Resource = None,
    *,
    user: _User,
    host: _Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    _alter(bootstrap, GrantRole(parse_assignment(role, resource, user, host)))
    _tell(json, "granted", role, f"granted {printable(role)} to {printable(user)}")


def revoke(
    role: _Name,
    resource: _Resource = None,
    *,
    user: _User,
    host: _Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    _alter(bootstrap, RevokeRole(parse_assignment(role, resource, user, host)))
    _tell(json, "revoked", role, f"revoked {printable(role)} from {printable(user)}")


def delete(
    role: _Name,
    *,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    confirm(f"Delete the role {printable(role)}?", yes=yes)
    _alter(bootstrap, DeleteRole(role))
    _tell(json, "deleted", role, f"deleted the role {printable(role)}")


def list_roles(
    *,
    user: _MaybeUser = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    async def main() -> RoleListing:
        async with connect(bootstrap) as admin:
            return await admin.describe_roles(None if user is None else f"User:{user}")

    found = run(main())
    if json:
        roles = [
            {"role": role.name, "built_in": role.name in found.built_in, "grants": _grants(role)}
            for role in found.roles.values()
        ]
        emit_json(
            {"roles": roles, "assignments": [assignment_fields(each) for each in found.assignments]}
        )
        return
    if user is None:
        rows = [(role.name, "; ".join(_grants(role))) for role in found.roles.values()]
        emit(table([Column("role"), Column("grants")], rows))
    columns = [Column(name) for name in ("user", "role", "resource", "host")]
    emit(table(columns, [tuple(assignment_fields(each).values()) for each in found.assignments]))


def _alter(bootstrap: str, edit: RoleEdit) -> None:
    async def main() -> None:
        async with connect(bootstrap) as admin:
            await admin.alter_roles([edit])

    run(main())


def _tell(json: bool, what: str, role: str, text: str) -> None:
    if json:
        emit_json({what: role})
    else:
        emit(text)


def _grants(role: Role) -> list[str]:
    return [grant_text(grant) for grant in role.grants]
