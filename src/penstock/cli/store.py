"""`penstock store`: moves the metadata of a stopped cluster to another store."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict
from typing import Annotated, Final

import typer

from penstock.cli.options import Json
from penstock.cli.output import CommandFailed, count, emit, emit_json
from penstock.cli.store_copying import Copied, CopyRefused, copy_store
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.runtime import SystemClock, SystemRandom, Threads
from penstock.stores import opening
from penstock.stores.errors import StoreError

_COPY_HELP = """Copy the metadata of a stopped cluster to another store.

FROM and TO are what `store` is in the config file of a broker: a SQLite file, an etcd address or a
ZooKeeper address. Stop all brokers first: the copy is refused while a broker holds a lease. TO must
have no metadata yet. Everything is read back and compared. The data directories of the brokers
stay as they are. When the copy has ended, set `store` for every broker, and start them.

Keep FROM until the cluster runs, and then remove it: two clusters would share one identity.

\b
Examples:
  penstock store copy penstock-data/metadata.db zk://zk1,zk2,zk3/prod
  penstock store copy etcd://e1,e2,e3/prod zk://zk1,zk2,zk3/prod
"""
_THREADS: Final = 4
_WAIT_S: Final = 60.0

From = Annotated[str, typer.Argument(metavar="FROM", help="The store to copy.")]
To = Annotated[str, typer.Argument(metavar="TO", help="The empty store to copy it to.")]
Wait = Annotated[
    float,
    typer.Option("--wait", help="Seconds to wait for the leases of killed brokers to end."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Move the metadata of a stopped cluster to another store: copy.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @app.callback()
    def _group() -> None:
        """Without this, typer would leave out the name of the only command."""

    app.command("copy", help=_COPY_HELP)(copy)
    root.add_typer(app, name="store")


def copy(
    source: From,
    target: To,
    *,
    wait: Wait = _WAIT_S,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    try:
        names = opening.shown(source), opening.shown(target)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if names[0] == names[1]:
        raise CommandFailed(f"FROM and TO are both {names[0]}: name two different stores")
    if "://" not in source and not os.path.isfile(source):
        raise CommandFailed(f"{source} does not exist: give the SQLite file of the cluster")
    try:
        copied = asyncio.run(_copy(source, target, wait, _Lines(quiet=quiet)))
    except CopyRefused as error:
        raise CommandFailed(str(error), code=1) from error
    except (StoreError, MetadataInvalid, ValueError) as error:
        raise CommandFailed(str(error)) from error
    if json:
        emit_json({"from": names[0], "to": names[1], **asdict(copied)})
        return
    emit(
        f"copied {count(copied.keys, 'key')} with {count(copied.value_bytes, 'byte')} from "
        f"{names[0]} to {names[1]}, and compared them"
    )
    emit(
        f"the revision was {copied.source_revision} and is now {copied.target_revision}; set "
        f"`store` for every broker, then start them"
    )


async def _copy(source: str, target: str, wait_s: float, lines: _Lines) -> Copied:
    clock, random, threads = SystemClock(), SystemRandom(), Threads(_THREADS)
    try:
        origin = await opening.open_store(source, clock, random, threads)
        try:
            destination = await opening.open_store(target, clock, random, threads)
            try:
                return await copy_store(
                    origin, destination, clock, lease_wait_s=wait_s, progress=lines
                )
            finally:
                await destination.close()
        finally:
            await origin.close()
    finally:
        threads.close()


class _Lines:
    """Prints the progress on stderr: one line for each tenth."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._told: tuple[str, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if self._quiet or self._told == (what, tenth):
            return
        self._told = (what, tenth)
        print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)
