"""`penstock profile`: stores how to connect to a cluster under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import Json, Yes
from penstock.cli.output import EXIT_UNUSABLE, CommandFailed, emit, emit_json, printable
from penstock.cli.passwords import PasswordFile, read_password
from penstock.cli.session import checked, confirm
from penstock.cli.tables import Column, table
from penstock.client import profiles
from penstock.client.errors import ClientError
from penstock.client.options import AdminOptions

_CREATE_HELP = """Store how to connect to a cluster.

Every command uses it with --profile NAME or PENSTOCK_PROFILE, Python with
Producer.from_profile("NAME"), Spark with the option profile. Only you can read the file.
Without --password-file and --password-env, the password is asked for and stored in it.

\b
Examples:
  penstock profile create local --bootstrap localhost:9092
  penstock profile create prod --bootstrap kafka1:9093 --tls --ca ca.pem
  penstock profile create prod -b kafka1:9093 --sasl scram-sha-512 --user ann
"""
_LIST_HELP = """List the profiles. A star marks the one in use.

\b
Examples:
  penstock profile list
"""
_SHOW_HELP = """Show a profile, without its secrets.

\b
Examples:
  penstock profile show prod
"""
_USE_HELP = """Use a profile for all commands that get no address and no profile.

\b
Examples:
  penstock profile use prod
  penstock profile use --none
"""
_DELETE_HELP = """Delete a profile.

\b
Examples:
  penstock profile delete prod
"""

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the profile.")]
_Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The private key (PEM) of the client certificate."),
]
_PasswordEnv = Annotated[
    str | None,
    typer.Option(
        "--password-env",
        metavar="VAR",
        help="Read the password from this environment variable.",
    ),
]
_TokenAuth = Annotated[
    bool,
    typer.Option(
        "--tokenauth",
        help="--user and the password are the id and the HMAC of a delegation token.",
    ),
]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Store how to connect to clusters: create, list, show, use, delete.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("create", help=_CREATE_HELP)(create)
    app.command("list", help=_LIST_HELP)(list_profiles)
    app.command("show", help=_SHOW_HELP)(show)
    app.command("use", help=_USE_HELP)(use)
    app.command("delete", help=_DELETE_HELP)(delete)
    root.add_typer(app, name="profile")


def create(
    name: _Name,
    *,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT,...", help="The brokers of the cluster."
        ),
    ],
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="The CA certificate (PEM) to trust.")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="The client certificate (PEM).")
    ] = None,
    key: _Key = None,
    sasl: Annotated[
        str | None, typer.Option("--sasl", metavar="MECHANISM", help="plain or scram-sha-512.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="The user to log in as.")] = None,
    password_file: PasswordFile = None,
    password_env: _PasswordEnv = None,
    tokenauth: _TokenAuth = False,
    json: Json = False,
) -> None:
    checked(bootstrap)
    values: dict[str, Any] = {}
    protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    if protocol != "PLAINTEXT":
        values["security_protocol"] = protocol
    for option, file in (("ssl_ca", ca), ("ssl_certificate", cert), ("ssl_key", key)):
        if file is not None:
            if not tls:
                raise CommandFailed(f"{file} is for TLS: add --tls")
            values[option] = str(file.expanduser().resolve())
    if sasl is not None:
        values |= _login(sasl, user, password_file, password_env)
        values |= {"sasl_tokenauth": True} if tokenauth else {}
    elif user is not None or password_file is not None or password_env is not None:
        raise CommandFailed("a user and a password need a mechanism: add --sasl scram-sha-512")
    try:
        # Only the combination is checked: a file or variable may get its password later.
        trial = {key: value for key, value in values.items() if key not in profiles.SOURCES}
        if values.keys() & profiles.SOURCES.keys():
            trial["sasl_password"] = name
        AdminOptions.parse(bootstrap, trial)
        path = profiles.save(name, bootstrap, values)
    except ClientError as error:
        raise CommandFailed(str(error)) from None
    if json:
        emit_json({"created": name, "path": str(path)})
    else:
        emit(f"created profile {printable(name)} in {path}")


def _login(
    mechanism: str, user: str | None, file: Path | None, variable: str | None
) -> dict[str, Any]:
    if user is None:
        raise CommandFailed("--sasl needs the name of a user: add --user NAME")
    values: dict[str, Any] = {"sasl_mechanism": mechanism.upper(), "sasl_username": user}
    if file is not None and variable is not None:
        raise CommandFailed("use --password-file or --password-env, not both")
    if variable is not None:
        values["sasl_password_env"] = variable
    elif file is not None and str(file) != "-":
        values["sasl_password_file"] = str(file.expanduser().resolve())
    else:
        what = f"Password of {printable(user)}"
        values["sasl_password"] = read_password(file, what=what, twice=False)
    return values


def list_profiles(*, json: Json = False) -> None:
    found = []
    for name in profiles.names():
        try:
            found.append((name, profiles.load(name).bootstrap))
        except ClientError as error:
            found.append((name, f"({error})"))
    used = profiles.current()
    if json:
        emit_json(
            {"profiles": [{"name": n, "bootstrap": b, "in_use": n == used} for n, b in found]}
        )
        return
    rows = [("*" if name == used else "", name, bootstrap) for name, bootstrap in found]
    emit(table((Column(""), Column("profile"), Column("bootstrap")), rows))


def show(name: _Name, *, json: Json = False) -> None:
    profile = _load(name)
    values = {"bootstrap": profile.bootstrap, **profile.shown}
    if json:
        emit_json({"profile": name, **values})
        return
    for key, value in values.items():
        emit(printable(f"{key} = {value}"))


def use(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile to use by default.")
    ] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Stop using a profile.")] = False,
    json: Json = False,
) -> None:
    if (name is None) != none:
        raise CommandFailed("give the name of a profile, or --none")
    try:
        profiles.use(name)
    except ClientError as error:
        raise CommandFailed(str(error), EXIT_UNUSABLE) from None
    if json:
        emit_json({"in_use": name})
    else:
        emit("no profile is in use" if name is None else f"profile {printable(name)} is in use")


def delete(name: _Name, *, yes: Yes = False, json: Json = False) -> None:
    confirm(f"Delete profile {printable(name)}?", yes=yes)
    try:
        profiles.delete(name)
    except ClientError as error:
        raise CommandFailed(str(error), EXIT_UNUSABLE) from None
    if json:
        emit_json({"deleted": name})
    else:
        emit(f"deleted profile {printable(name)}")


def _load(name: str) -> profiles.Profile:
    try:
        return profiles.load(name)
    except ClientError as error:
        raise CommandFailed(str(error), EXIT_UNUSABLE) from None
