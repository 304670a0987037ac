"""`penstock key`: makes and changes the key file of encrypted topics, and shows what is encrypted.

`penstock.storage.key_file` has the format of the file. Keys in HashiCorp Vault or another service
are managed there.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from penstock.cli.key_options import readable_disk
from penstock.cli.options import Json, Yes
from penstock.cli.output import CommandFailed, count, emit, emit_json, time_text
from penstock.cli.session import confirm
from penstock.cli.tables import Column, table
from penstock.runtime import SystemClock, SystemRandom
from penstock.storage.data_keys import KeyUnavailable
from penstock.storage.encrypted_disk import EncryptedDisk
from penstock.storage.files import LOG, parse_offset_name, parse_partition_directory
from penstock.storage.key_file import KEY_NAME, KeySet, read_keys, write_keys
from penstock.storage.sealed_format import DATA_KEY_BYTES

_NEW_HELP = """Make a key for encrypted topics, in a key file. Makes the file if there is none.

Copy the file to every broker, readable by the broker's user only, and keep a backup: without the
key, the topic's data is lost. Then set encryption.key.provider=file:PATH for the brokers and
encryption=NAME for the topics.

\b
Examples:
  penstock key new orders-key --key-file /etc/penstock/keys.json
  penstock topic create orders --config encryption=orders-key
"""
_ROTATE_HELP = """Make a new version of a key. It encrypts new segments; old ones stay readable.

Nothing is rewritten. Copy the file to every broker again; they notice it without a restart.

\b
Examples:
  penstock key rotate orders-key --key-file /etc/penstock/keys.json
"""
_DROP_HELP = """Remove a key for good. What it has encrypted can never be read again.

The brokers take the topics of this key offline within half a minute. Remove the key from every copy
and every backup of the file, too: this command changes one file. Then delete the topics. The name
cannot be used again.

\b
Examples:
  penstock key drop orders-key --key-file /etc/penstock/keys.json
"""
_LIST_HELP = """List the keys of a key file, and their versions. Shows no key.

\b
Examples:
  penstock key list --key-file /etc/penstock/keys.json
"""
_SEGMENTS_HELP = """Show which segments are encrypted, and with which key, and which are plain.

DIRECTORY is the directory of one log or of all logs of a broker. Needs no key.

\b
Examples:
  penstock key segments data/logs
  penstock key segments data/logs/orders-0 --json
"""

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]
InFile = Annotated[str, typer.Option("--key-file", metavar="FILE", help="The key file.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Manage the keys of encrypted topics: new, rotate, drop, list, segments.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("new", help=_NEW_HELP)(new)
    app.command("rotate", help=_ROTATE_HELP)(rotate)
    app.command("drop", help=_DROP_HELP)(drop)
    app.command("list", help=_LIST_HELP)(list_keys)
    app.command("segments", help=_SEGMENTS_HELP)(segments)
    root.add_typer(app, name="key")


def new(name: KeyName, key_file: InFile, *, json: Json = False) -> None:
    if not KEY_NAME.fullmatch(name) or name == "none":
        raise CommandFailed(
            f"{name!r} cannot be the name of a key: use up to 100 letters, digits, dots, hyphens "
            "and underscores; none means no encryption"
        )
    keys = _read(key_file) if os.path.lexists(key_file) else KeySet()
    if name in keys.keys:
        raise CommandFailed(f"{key_file} has the key {name!r} already: use `penstock key rotate`")
    if name in keys.dropped:
        raise CommandFailed(f"the key {name!r} was dropped, and its name cannot be used again")
    number = _add(keys, name, key_file)
    told = f"created the key {name!r} in {key_file}: keep a backup, the data is lost without it"
    _tell(told, {"key": name, "version": number, "file": key_file}, as_json=json)


def rotate(name: KeyName, key_file: InFile, *, json: Json = False) -> None:
    keys = _read(key_file)
    _check_there(keys, name, key_file)
    number = _add(keys, name, key_file)
    told = f"version {number} of the key {name!r} encrypts new segments from now on"
    _tell(told, {"key": name, "version": number, "file": key_file}, as_json=json)


def drop(name: KeyName, key_file: InFile, *, yes: Yes = False, json: Json = False) -> None:
    keys = _read(key_file)
    _check_there(keys, name, key_file)
    confirm(
        f"Drop the key {name!r}? What it has encrypted can never be read again.",
        yes=yes,
    )
    del keys.keys[name]
    keys.dropped[name] = SystemClock().wall_ms()
    write_keys(key_file, keys)
    told = f"dropped the key {name!r} from {key_file}: remove it from all copies and backups, too"
    _tell(told, {"dropped": name, "file": key_file}, as_json=json)


def _tell(text: str, value: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        emit_json(value)
    else:
        emit(text)


def list_keys(key_file: InFile, *, json: Json = False) -> None:
    keys = _read(key_file)
    if json:
        versions = {
            name: [{"version": each.number, "created_ms": each.created_ms} for each in held]
            for name, held in keys.keys.items()
        }
        emit_json({"keys": versions, "dropped": keys.dropped})
        return
    rows: list[tuple[object, ...]] = [
        (name, held[-1].number, time_text(held[-1].created_ms), len(held))
        for name, held in sorted(keys.keys.items())
    ]
    rows += [(name, "", f"dropped {time_text(at)}", 0) for name, at in sorted(keys.dropped.items())]
    columns = [
        Column("KEY"),
        Column("VERSION", right=True),
        Column("SINCE"),
        Column("VERSIONS", right=True),
    ]
    emit(table(columns, rows) if rows else f"{key_file} has no keys")


@dataclass(frozen=True, slots=True)
class SegmentState:
    directory: str
    base_offset: int
    key: str | None
    """None if the segment is plain."""


def segments(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="One log, or all logs.")],
    *,
    json: Json = False,
) -> None:
    disk = readable_disk()
    found = [state for path in _logs(disk, directory) for state in _segments(disk, path)]
    if json:
        emit_json([asdict(each) for each in found])
        return
    counts: dict[str, Counter[str]] = {}
    for each in found:
        counts.setdefault(each.directory, Counter())[each.key or ""] += 1
    rows = [
        (path.rpartition("/")[2], key or "(plain)", number)
        for path, keys in counts.items()
        for key, number in sorted(keys.items())
    ]
    columns = [Column("LOG"), Column("KEY"), Column("SEGMENTS", right=True)]
    plain = sum(each.key is None for each in found)
    emit(table(columns, rows))
    emit(f"{plain} of {count(len(found), 'segment')} {'is' if plain == 1 else 'are'} plain")


def _logs(disk: EncryptedDisk, directory: str) -> list[str]:
    path = directory.rstrip("/") or "/"
    names = disk.listdir(path)
    if any(parse_offset_name(name, LOG) is not None for name in names):
        return [path]
    logs = [f"{path}/{name}" for name in names if parse_partition_directory(name) is not None]
    if not logs:
        raise CommandFailed(f"{directory} has no logs: give the directory of a log, or of all logs")
    return logs


def _segments(disk: EncryptedDisk, path: str) -> list[SegmentState]:
    states = []
    for name in disk.listdir(path):
        base = parse_offset_name(name, LOG)
        if base is not None:
            header = disk.header_of(f"{path}/{name}")
            states.append(SegmentState(path, base, header.wrapped.key_name if header else None))
    return states


def _read(key_file: str) -> KeySet:
    try:
        return read_keys(key_file)
    except KeyUnavailable as error:
        raise CommandFailed(str(error)) from error


def _check_there(keys: KeySet, name: str, key_file: str) -> None:
    if name not in keys.keys:
        known = ", ".join(sorted(keys.keys)) or "none"
        raise CommandFailed(f"{key_file} has no key {name!r}: its keys are {known}")


def _add(keys: KeySet, name: str, key_file: str) -> int:
    version = keys.add(name, SystemRandom().bytes(DATA_KEY_BYTES), SystemClock().wall_ms())
    write_keys(key_file, keys)
    return version.number
