"""`penstock log`: inspects the files of a log.

Both commands only read. They work on the files of a running broker, a stopped broker, a backup or
Kafka. They need no cluster.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import log_dump, log_verify
from penstock.cli.key_options import (
    KeyFileOption,
    KeyProviderOption,
    asking_for_keys,
    readable_disk,
)
from penstock.cli.output import EXIT_UNSOUND, Shown, pipe_guard

_DUMP_HELP = """Show the content of a log's file or directory.

Files: .log .index .timeindex .txnindex .snapshot leader-epoch-checkpoint partition.metadata
penstock-checkpoint, and files that interrupted operations leave behind (.swap .cleaned .deleted
.tmp). For a directory, shows its small files, then the batches of all its segments.

With --json, every line is an object with a "type": file, batch, record, bad_range, bad_records,
bad_file, index_entry, time_index_entry, index_remains, aborted_transaction, producer, leader_epoch,
partition or checkpoint. Keys and values that are not UTF-8 are in "key_base64" and "value_base64"
instead of "key" and "value".

Exit code: 0; 1 if something in it is damaged; 2 if it cannot be read at all.

\b
Examples:
  penstock log dump data/orders-0
  penstock log dump data/orders-0 --offset 1200 --max 10 --full
  penstock log dump data/orders-0 --json --values json | jq .value
  penstock log dump data/orders-0/00000000000000000000.index
  penstock log dump data/orders-0 --key-file keys.json
"""

_VERIFY_HELP = """Check the log in DIRECTORY, or all logs of a data directory.

Changes nothing. Reads every batch and checks its CRC. Offsets must increase, leader epochs must not
decrease, indexes and checkpoints must match the batches, and nothing that was synced may be
missing. A torn tail is a warning: a crash left it, and the next start of the broker cuts it off.
Damage is an error. Verification and recovery distinguish them in the same way. You can verify a log
that is in use; findings at its end then only mean that it grew.

Exit code: 0 if sound (warnings are allowed); 1 if there are errors; 2 if it cannot be read.

\b
Examples:
  penstock log verify data
  penstock log verify data/orders-0 --deep
  penstock log verify data --json | jq '.logs[].findings'
"""


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Inspect the files of a log: dump, verify.",
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
        int, typer.Option(min=0, metavar="N", help="Start at the batch with this offset.")
    ] = 0,
    maximum: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, metavar="N", help="Stop after N records (or batches, or entries)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    keys: Annotated[Shown, typer.Option(help="How to show keys.")] = Shown.TEXT,
    values: Annotated[Shown, typer.Option(help="How to show values.")] = Shown.TEXT,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long values.")] = False,
    key_file: KeyFileOption = "",
    key_provider: KeyProviderOption = "",
) -> None:
    options = log_dump.Options(records, offset, maximum, keys, values, full)
    with pipe_guard(), asking_for_keys():
        disk = readable_disk(key_file, key_provider)
        sound = log_dump.show(disk, path, options, as_json=json)
    if not sound:
        raise typer.Exit(EXIT_UNSOUND)


def verify(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIRECTORY", help="A partition's directory, or a data directory."),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every record.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    key_file: KeyFileOption = "",
    key_provider: KeyProviderOption = "",
) -> None:
    with pipe_guard(), asking_for_keys():
        disk = readable_disk(key_file, key_provider)
        sound = log_verify.show(disk, directory, deep=deep, as_json=json)
    if not sound:
        raise typer.Exit(EXIT_UNSOUND)
