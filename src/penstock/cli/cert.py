"""`penstock cert`: makes certificates for development, and shows certificates.

`penstock.security.certificates` makes and describes them; this module reads and writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.cert_files import authority_of, own_names, paths_of, write_file
from penstock.cli.options import Json
from penstock.cli.output import EXIT_UNSOUND, CommandFailed, count, emit, emit_json, time_text
from penstock.cli.tables import Column, table
from penstock.runtime import SystemClock, SystemRandom
from penstock.security.certificates import (
    CERTIFICATE_DAYS,
    CertificatesInvalid,
    Description,
    Subject,
    describe,
    new_client,
    new_server,
)

_NEW_HELP = """Create the certificate of a broker or a user in DIRECTORY, for development and tests.

The first call also creates a certificate authority (CA) that signs the certificates: ca.pem and
ca-key.pem. Brokers and clients trust ca.pem. Keep ca-key.pem secret: its owner can create a
certificate for any name. Key files are readable by their owner only. Existing files are kept,
unless you renew a certificate with --force.

Without --host and --user, the certificate is for a broker on this machine. In production, use the
CA of your organization.

\b
Examples:
  penstock cert new certs
  penstock cert new certs --host kafka-1.example.com --host 10.0.0.11
  penstock cert new certs --user alice --days 90
"""

_SHOW_HELP = """Show the certificates in a PEM file: subject, names, lifetime, fingerprint.

The subject is written as ssl.principal.mapping.rules sees it.

\b
Examples:
  penstock cert show certs/localhost.pem
  penstock cert show certs/ca.pem --json
"""

_EXPIRING_HELP = """List the certificates that expire soon, in files and directories.

In a directory, all files that end in .pem or .crt are read, except those that have no certificate.

Exit code: 0 if none expires within that time; 1 if some do or have expired; 2 if a file cannot be
read.

\b
Examples:
  penstock cert expiring certs
  penstock cert expiring /etc/penstock/broker.pem --days 14 --json
"""

_PEM_BYTES_MAX: Final = 16 << 20
"""The largest file that is read. The CA certificates that a system trusts take about 250 KiB."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Create and show certificates: new, show, expiring.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("new", help=_NEW_HELP)(new)
    app.command("show", help=_SHOW_HELP)(show)
    app.command("expiring", help=_EXPIRING_HELP)(expiring)
    root.add_typer(app, name="cert")


def new(
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Where the files are or will be.")
    ] = "certs",
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name or address of the broker. Repeatable."),
    ] = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="The user of a client that logs in by certificate.")
    ] = "",
    days: Annotated[
        int, typer.Option(min=1, max=3650, metavar="N", help="How long it is valid.")
    ] = CERTIFICATE_DAYS,
    organization: Annotated[
        str, typer.Option(metavar="TEXT", help="The organization (O) in the certificate's subject.")
    ] = "Penstock",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the certificate if it exists.")
    ] = False,
    json: Json = False,
) -> None:
    if host and user:
        raise CommandFailed("--host is for a broker and --user for a client: give one of them")
    now_ms, random_bytes = SystemClock().wall_ms(), SystemRandom().bytes
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    hosts = [] if user else host or own_names()
    subject = Subject(user or hosts[0], organization=organization)
    certificate_path, key_path = _own_paths(folder, user or hosts[0])
    for path in (certificate_path, key_path):
        if path.exists() and not force:
            raise CommandFailed(f"{path} exists: use --force to replace it")
    try:
        authority, is_new = authority_of(folder, organization, now_ms)
        if user:
            issued = new_client(authority, subject, now_ms, random_bytes, days)
        else:
            issued = new_server(authority, subject, hosts, now_ms, random_bytes, days)
    except CertificatesInvalid as error:
        raise CommandFailed(str(error)) from error
    write_file(key_path, issued.key, secret=True)
    write_file(certificate_path, issued.certificate)
    made = describe(issued.certificate)[0]
    paths = [*(paths_of(folder, "ca") if is_new else ()), certificate_path, key_path]
    written = [str(path) for path in paths]
    if json:
        emit_json({"files": written, "certificate": _as_json(made, now_ms)})
        return
    for name in written:
        emit(f"wrote {name}")
    _show_one(made, now_ms)


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A PEM file.")], *, json: Json = False
) -> None:
    now_ms = SystemClock().wall_ms()
    found = _described(Path(file))
    if json:
        emit_json([_as_json(each, now_ms) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            emit("")
        _show_one(each, now_ms)


def expiring(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="PEM files, or directories that contain them."),
    ],
    *,
    days: Annotated[
        int, typer.Option(min=0, metavar="N", help="List what expires within N days.")
    ] = 30,
    json: Json = False,
) -> None:
    now_ms = SystemClock().wall_ms()
    total, due = 0, []
    for path in _pem_files(paths):
        for each in _described(path):
            total += 1
            if each.days_left(now_ms) < days:
                due.append((path, each))
    if not total:
        raise CommandFailed(
            "no certificate was found: give PEM files, or directories that contain them"
        )
    due.sort(key=lambda item: item[1].not_after_ms)
    if json:
        emit_json([{"file": str(path), **_as_json(each, now_ms)} for path, each in due])
    elif due:
        columns = [Column("EXPIRES"), Column("DAYS", right=True), Column("SUBJECT"), Column("FILE")]
        rows = [
            (time_text(each.not_after_ms)[:10], each.days_left(now_ms), each.subject, str(path))
            for path, each in due
        ]
        emit(table(columns, rows))
    else:
        emit(f"none of {count(total, 'certificate')} expires within {count(days, 'day')}")
    if due:
        raise typer.Exit(EXIT_UNSOUND)


def _own_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Returns the files of a broker or user. They are never those of the CA, nor a file of
    another certificate."""
    if name.lower() in ("ca", "ca-key"):
        raise CommandFailed(f"{name!r} is reserved for the files of the CA: use another name")
    if name.lower().endswith("-key"):
        raise CommandFailed(
            f"the certificate of {name!r} would have the file of the key of {name[:-4]!r}: use "
            "another name"
        )
    return paths_of(folder, name)


def _pem_files(paths: Sequence[str]) -> Iterator[Path]:
    for given in map(Path, paths):
        if not given.is_dir():
            yield given
            continue
        for path in sorted(given.iterdir()):
            if path.suffix in (".pem", ".crt") and path.is_file() and _BEGIN in _text(path):
                yield path


def _described(path: Path) -> tuple[Description, ...]:
    try:
        return describe(_text(path))
    except CertificatesInvalid as error:
        raise CommandFailed(f"{path}: {error}") from error


def _text(path: Path) -> str:
    if path.stat().st_size > _PEM_BYTES_MAX:
        raise CommandFailed(f"{path} is larger than {_PEM_BYTES_MAX:,} bytes: give a PEM file")
    return path.read_text("utf-8", errors="replace")


def _as_json(each: Description, now_ms: int) -> dict[str, object]:
    return asdict(each) | {
        "days_left": each.days_left(now_ms),
        "is_valid": each.is_valid_at(now_ms),
    }


def _show_one(each: Description, now_ms: int) -> None:
    rows: list[tuple[str, object]] = [
        ("subject", each.subject),
        ("issuer", each.issuer),
        ("names", ", ".join(each.names) or None),
        ("valid from", time_text(each.not_before_ms)),
        ("valid until", f"{time_text(each.not_after_ms)} ({_days_text(each, now_ms)})"),
        ("fingerprint", f"SHA-256 {each.fingerprint}"),
        ("CA", each.is_authority),
    ]
    emit(table([Column(""), Column("")], rows))


def _days_text(each: Description, now_ms: int) -> str:
    days = each.days_left(now_ms)
    return f"{count(days, 'day')} left" if days >= 0 else "expired"
