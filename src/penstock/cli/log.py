"""`penstock log`: looking into the files of a log, whoever wrote them.

Both commands only read, and work on the files of a running broker, a stopped one, a backup, or
Kafka. They need no cluster.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import log_dump, log_verify
from penstock.cli.output import EXIT_UNSOUND, Shown, pipe_guard
from penstock.storage.readonly import ReadOnlyDisk

_DUMP_HELP = """Show what is in PATH: a file of a log, or a partition's directory.

Files: .log .index .timeindex .snapshot leader-epoch-checkpoint partition.metadata
penstock-checkpoint, and what interrupted steps leave (.swap .cleaned .deleted .tmp).
A directory shows its small files, then the batches of all its segments.

With --json every line is an object with a "type": file, batch, record, bad_range, bad_records,
bad_file, index_entry, time_index_entry, index_remains, producer, leader_epoch, partition or
checkpoint. Keys and values that are not UTF-8 come as "key_base64" and "value_base64" instead of
"key" and "value".

Exit code: 0, 1 when something in it is damaged, 2 when it cannot be read at all.

\b
Examples:
  penstock log dump data/orders-0
  penstock log dump data/orders-0 --offset 1200 --max 10 --full
  penstock log dump data/orders-0 --json --values json | jq .value
  penstock log dump data/orders-0/00000000000000000000.index
"""

_VERIFY_HELP = """Check the log in DIRECTORY, or every log of a data directory, without changing it.

Every batch is read and its CRC checked, offsets and leader epochs must rise, indexes and
checkpoints must agree with the batches, and nothing that was promised to be on disk may be
missing. A torn tail, which the next start cuts off, is a warning; damage is an error. A log in
use may be verified; findings at its very end then only mean that it grew.

Exit code: 0 when sound (warnings allowed), 1 when there are errors, 2 when it cannot be read.

\b
Examples:
  penstock log verify data
  penstock log verify data/orders-0 --deep
  penstock log verify data --json | jq '.logs[].findings'
"""


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Look into the files of a log: dump, verify.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("dump", help=_DUMP_HELP)(dump)
    app.command("verify", help=_VERIFY_HELP)(verify)
    root.add_typer(app, name="log")


def dump(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file of a log, or a partition's directory.")
    ],
    *,
    records: Annotated[bool, typer.Option(help="Show the records of each batch.")] = True,
    offset: Annotated[
        int, typer.Option(min=0, metavar="N", help="Begin with the batch that holds this offset.")
    ] = 0,
    maximum: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, metavar="N", help="Stop after so many records (else batches, entries)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    keys: Annotated[Shown, typer.Option(help="How to show keys.")] = Shown.TEXT,
    values: Annotated[Shown, typer.Option(help="How to show values.")] = Shown.TEXT,
    full: Annotated[bool, typer.Option("--full", help="Show long values whole.")] = False,
) -> None:
    options = log_dump.Options(records, offset, maximum, keys, values, full)
    with pipe_guard():
        sound = log_dump.show(ReadOnlyDisk(), path, options, as_json=json)
    if not sound:
        raise typer.Exit(EXIT_UNSOUND)


def verify(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIRECTORY", help="A partition's directory, or a data directory."),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    with pipe_guard():
        sound = log_verify.show(ReadOnlyDisk(), directory, deep=deep, as_json=json)
    if not sound:
        raise typer.Exit(EXIT_UNSOUND)
