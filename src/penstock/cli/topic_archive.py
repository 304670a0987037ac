"""`penstock topic to-table`: writes a range of a topic to Parquet files.

`topic_replay` sends them back. No Spark is needed: records go from the client to the files as
Arrow batches, in bounded memory. At the end the records that were received are compared with the
rows in the files. If the counts differ the command fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import completion
from penstock.cli.options import Bootstrap, Json, NoProgressBar
from penstock.cli.output import (
    EXIT_UNSOUND,
    CommandFailed,
    count,
    emit,
    emit_json,
    printable,
    size_text,
)
from penstock.cli.produce import Compression
from penstock.cli.progress import progress_bar
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    TIMEOUT_MS,
    checked,
    run,
)
from penstock.client.consumer import Consumer
from penstock.client.errors import TopicNotFound
from penstock.client.times import parse_time_ms
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition

if TYPE_CHECKING:
    from penstock.cli.archive_files import Note

_TO_HELP = """Archive TOPIC, or a range of it, as Parquet files.

\b
The range starts at --from and ends before --to. The default is the whole
topic. Each bound is one of:
  1000                   this offset in every partition, or the nearest one
  0:1000,2:40            offsets of some partitions; no limit for the others
  2026-01-31T12:00:00Z   a time, or 10m (ago: s m h d w), or @milliseconds
  earliest, latest

Any program that reads Parquet can use the folder. `penstock topic from-table` sends it back to a
topic. Offsets without a record (removed by compaction, or transaction markers) are counted as gaps.

\b
Examples:
  penstock topic to-table orders archive/orders
  penstock topic to-table orders orders-jan --from 2026-01-01 --to 2026-02-01
  penstock topic to-table orders tail --from 1h --json
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """Has one of: a mark, an offset for all partitions, offsets for some partitions, a time."""

    mark: str = ""
    offset: int | None = None
    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None


def register(topics: typer.Typer) -> None:
    topics.command("to-table", help=_TO_HELP)(to_table)


def parse_bound(text: str, option: str, now_ms: int) -> Bound:
    given = text.strip()
    if given in ("earliest", "latest"):
        return Bound(mark=given)
    if re.fullmatch(r"\d+", given):
        return Bound(offset=int(given))
    if re.fullmatch(r"\d+:\d+(,\d+:\d+)*", given):
        pairs = (part.split(":") for part in given.split(","))
        return Bound(offsets={int(partition): int(offset) for partition, offset in pairs})
    try:
        return Bound(time_ms=parse_time_ms(given.removeprefix("@"), now_ms))
    except ValueError:
        raise CommandFailed(
            f"{option} {printable(text)}: write an offset (1000), offsets of partitions "
            "(0:1000,2:40), a time (2026-01-31T12:00:00Z, 10m, @ms), earliest or latest"
        ) from None


def to_table(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic to archive.", autocompletion=completion.topics
        ),
    ],
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder to create.")],
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="Start of the range (inclusive).")
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="End of the range (exclusive).")
    ] = "latest",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing archive.")
    ] = False,
    compression: Annotated[
        Compression, typer.Option(help="Compression of the files.")
    ] = Compression.ZSTD,
    file_bytes: Annotated[
        int, typer.Option("--file-bytes", min=1, help="Start a new file after this many bytes.")
    ] = 256 << 20,
    quiet: NoProgressBar = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    now_ms = SystemClock().wall_ms()
    bounds = parse_bound(start, "--from", now_ms), parse_bound(end, "--to", now_ms)
    _check_target(path, overwrite=overwrite)
    from penstock.cli.archive_files import ArchiveWriter, BadArchive  # noqa: PLC0415 -- pyarrow

    async def main() -> Note:
        async with _consumer(bootstrap) as consumer:
            note = await _noted(consumer, topic, *bounds)
            total = sum(each.next_offset - each.first_offset for each in note.partitions.values())
            settings: dict[str, Any] = {"compression": compression, "file_bytes": file_bytes}
            with (
                ArchiveWriter(path, note, **settings) as writer,
                progress_bar(total, quiet) as advance,
            ):
                await _archive(consumer, writer, advance)
        return note

    clock = SystemClock()
    begun = clock.monotonic()
    try:
        note = run(main())
    except BadArchive as error:
        raise CommandFailed(str(error), EXIT_UNSOUND) from error
    seconds = clock.monotonic() - begun
    if json:
        emit_json(_note_json(note, path, seconds))
    else:
        emit(_note_text(note, path, seconds))


def _check_target(path: str, *, overwrite: bool) -> None:
    target = Path(path)
    if not target.exists():
        return
    from penstock.cli.archive_files import is_archive  # noqa: PLC0415 -- pyarrow

    if not target.is_dir() or (any(target.iterdir()) and not is_archive(path)):
        raise CommandFailed(f"{printable(path)} exists and is not an archive: choose another path")
    if not overwrite and is_archive(path):
        raise CommandFailed(
            f"{printable(path)} contains an archive: choose another path, or add --overwrite"
        )


def _consumer(bootstrap: str) -> Consumer[Any, Any]:
    return Consumer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        allow_auto_create_topics=False,
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


async def _noted(consumer: Consumer[Any, Any], topic: str, start: Bound, end: Bound) -> Note:
    """Resolves the range to offsets, once. Records that arrive later are not part of it."""
    from penstock.cli.archive_files import Note, PartitionNote  # noqa: PLC0415 -- pyarrow

    number = await consumer.partitions_for(topic)
    topic_partitions = [TopicPartition(topic, partition) for partition in range(number)]
    for bound in (start, end):
        for partition in bound.offsets or ():
            if partition >= number:
                raise TopicNotFound(topic, partition)
    earliest = await consumer.beginning_offsets(topic_partitions)
    latest = await consumer.end_offsets(topic_partitions)
    starts = await _settled(consumer, start, earliest, latest, earliest)
    ends = await _settled(consumer, end, earliest, latest, latest)
    note = Note(topic, number)
    for topic_partition in topic_partitions:
        first, after = starts[topic_partition], max(starts[topic_partition], ends[topic_partition])
        note.partitions[topic_partition.partition] = PartitionNote(first, after)
    return note


async def _settled(
    consumer: Consumer[Any, Any],
    bound: Bound,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    otherwise: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if bound.mark:
        return dict(earliest if bound.mark == "earliest" else latest)
    if bound.time_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(latest, bound.time_ms))
        return {
            topic_partition: end if (at := found[topic_partition]) is None else at.offset
            for topic_partition, end in latest.items()
        }
    settled = dict(otherwise)
    for topic_partition in latest:
        if bound.offset is not None:
            settled[topic_partition] = min(
                max(bound.offset, earliest[topic_partition]), latest[topic_partition]
            )
        elif topic_partition.partition in (bound.offsets or {}):
            settled[topic_partition] = _within(
                topic_partition, (bound.offsets or {})[topic_partition.partition], earliest, latest
            )
    return settled


def _within(
    topic_partition: TopicPartition,
    offset: int,
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
) -> int:
    """Returns the offset. An offset that the user gave for a partition must exist in it."""
    if not earliest[topic_partition] <= offset <= latest[topic_partition]:
        raise CommandFailed(
            f"{topic_partition} does not have offset {offset}: choose one from "
            f"{earliest[topic_partition]} to {latest[topic_partition]}, the range of its log"
        )
    return offset


async def _archive(consumer: Consumer[Any, Any], writer: Any, advance: Any) -> None:
    from penstock.client.consuming.tables import schema_of  # noqa: PLC0415 -- pyarrow

    note = writer.note
    batches = consumer.read_batches(
        note.topic,
        {number: each.first_offset for number, each in note.partitions.items()},
        {number: each.next_offset for number, each in note.partitions.items()},
    )
    async for batch in batches:
        writer.write(batch)
        advance(len(batch))
    writer.finish(schema_of(headers=True))


def _note_text(note: Note, path: str, seconds: float) -> str:
    gaps = f", {count(note.gaps, 'offset')} without a record" if note.gaps else ""
    return (
        f"archived {count(note.records, 'record')} ({size_text(note.payload_bytes)}) of "
        f"{printable(note.topic)} to {printable(path)} in {seconds:.1f} s; the files have all of "
        f"them{gaps}"
    )


def _note_json(note: Note, path: str, seconds: float) -> dict[str, object]:
    return {
        "topic": note.topic,
        "path": path,
        "records": note.records,
        "payload_bytes": note.payload_bytes,
        "gaps": note.gaps,
        "seconds": round(seconds, 3),
        "partitions": [
            {
                "partition": number,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "records": each.records,
                "gaps": each.gaps,
            }
            for number, each in sorted(note.partitions.items())
        ],
    }
