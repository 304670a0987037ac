"""`penstock user`: adds users that log in with SCRAM or PLAIN, and changes their passwords."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import Bootstrap, Json, Yes
from penstock.cli.output import CommandFailed, emit, emit_json, printable
from penstock.cli.passwords import PasswordFile, read_password
from penstock.cli.session import DEFAULT_BOOTSTRAP, EXIT_REFUSED, confirm, connect, run
from penstock.cli.tables import Column, table
from penstock.cli.user_access import UserAccess, find_access, remove_access
from penstock.client.admin.access import ScramUser
from penstock.client.errors import BrokerError
from penstock.wire.errors import ErrorCode

_ADD_HELP = """Add a user.

The password is asked for, or read from a file. It does not leave this machine: the cluster gets a
key that is derived from it. A user has no rights before it gets some: see penstock acl.

\b
Examples:
  penstock user add alice
  penstock user add alice --password-file secret.txt
  penstock user add alice --mechanism SCRAM-SHA-256 --password-file -
"""
_CHANGE_HELP = """Set a new password for a user.

Connections that are open stay open. The next login needs the new password.

\b
Examples:
  penstock user passwd alice
"""
_LIST_HELP = """List the users and their mechanisms.

\b
Examples:
  penstock user list
  penstock user list --json
"""
_DELETE_HELP = """Delete a user.

Its roles and access rules stay, as in Kafka, and a new user of the same name would have them. The
command says which ones there are. --with-access removes them first.

\b
Examples:
  penstock user delete alice
  penstock user delete alice --with-access
"""

_Name = Annotated[str, typer.Argument(metavar="USER", help="The name of the user.")]
_Mechanism = Annotated[
    str, typer.Option("--mechanism", help="SCRAM-SHA-512 or SCRAM-SHA-256.", metavar="NAME")
]
_WithAccess = Annotated[
    bool, typer.Option("--with-access", help="Also remove the user's roles and access rules.")
]
_Iterations = Annotated[int, typer.Option("--iterations", help="4096 to 16384.")]


def register(root: typer.Typer) -> None:
    group = typer.Typer(help="Add users, list them, and change passwords.", no_args_is_help=True)
    group.command(help=_ADD_HELP)(add)
    group.command(help=_CHANGE_HELP)(passwd)
    group.command("list", help=_LIST_HELP)(list_users)
    group.command(help=_DELETE_HELP)(delete)
    root.add_typer(group, name="user")


def add(
    user: _Name,
    *,
    password_file: PasswordFile = None,
    mechanism: _Mechanism = "SCRAM-SHA-512",
    iterations: _Iterations = 4096,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    password = read_password(password_file, what=f"Password of {printable(user)}", twice=True)

    async def main() -> None:
        async with connect(bootstrap) as admin:
            found = (await admin.describe_scram_users([user])).get(user)
            if isinstance(found, ScramUser) and mechanism.upper() in found.mechanisms:
                raise CommandFailed(
                    f"user {printable(user)} already exists; to set a new password: "
                    f"penstock user passwd {printable(user)}",
                    EXIT_REFUSED,
                )
            await admin.upsert_scram_user(user, password, mechanism, iterations)

    run(main())
    _done("added", user, json=json)


def passwd(
    user: _Name,
    *,
    password_file: PasswordFile = None,
    iterations: _Iterations = 4096,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    password = read_password(password_file, what=f"New password of {printable(user)}", twice=True)

    async def main() -> None:
        async with connect(bootstrap) as admin:
            found = (await admin.describe_scram_users([user])).get(user)
            if isinstance(found, BrokerError) and found.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise found
            if not isinstance(found, ScramUser):
                raise CommandFailed(
                    f"there is no user {printable(user)}; to add the user: "
                    f"penstock user add {printable(user)}",
                    EXIT_REFUSED,
                )
            for mechanism in found.mechanisms:
                await admin.upsert_scram_user(user, password, mechanism, iterations)

    run(main())
    _done("changed", user, json=json)


def list_users(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    async def main() -> dict[str, ScramUser | BrokerError]:
        async with connect(bootstrap) as admin:
            return await admin.describe_scram_users()

    found = [user for user in run(main()).values() if isinstance(user, ScramUser)]
    if json:
        emit_json({"users": [{"user": u.user, "mechanisms": dict(u.mechanisms)} for u in found]})
        return
    rows = [
        (user.user, name, iterations)
        for user in found
        for name, iterations in user.mechanisms.items()
    ]
    emit(table((Column("user"), Column("mechanism"), Column("iterations", right=True)), rows))


def delete(
    user: _Name,
    *,
    with_access: _WithAccess = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    what = " and its access" if with_access else ""
    confirm(f"Delete user {printable(user)}{what}?", yes=yes)

    async def main() -> UserAccess:
        async with connect(bootstrap) as admin:
            # The rights go first: if something fails, the user has too few of them, not too many.
            look = remove_access if with_access else find_access
            found = await look(admin, user)
            await admin.delete_scram_user(user)
            return found

    found = run(main())
    state = "removed" if with_access else "remaining"
    if json:
        emit_json({"deleted": user, state: found.texts})
        return
    _done("deleted", user, json=False)
    for text in found.texts:
        emit(f"{state}: {printable(text)}")
    if not with_access and (commands := found.commands(user)):
        emit("A new user of this name would have these rights. To remove them:")
        for command in commands:
            emit(f"  {printable(command)}")


def _done(what: str, user: str, *, json: bool) -> None:
    if json:
        emit_json({what: user})
    else:
        emit(f"{what} user {printable(user)}")
