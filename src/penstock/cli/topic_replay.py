"""`penstock topic from-table`: sends Parquet files to a topic.

The files come from `to-table` or from another program. The command counts the rows of the files
before it sends anything, and afterwards the records that the cluster acknowledged. If the counts
differ it fails.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import Bootstrap, Json, NoProgressBar, TargetTopic
from penstock.cli.output import EXIT_UNSOUND, CommandFailed, count, emit, emit_json, printable
from penstock.cli.produce import Compression
from penstock.cli.progress import progress_bar
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    checked,
    connect,
    run,
)
from penstock.client.admin.admin import Admin
from penstock.client.admin.operations import BROKER_DEFAULT
from penstock.client.errors import BrokerError
from penstock.client.producing.producer import Producer
from penstock.records.batch import Codec
from penstock.runtime import SystemClock
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.producing.tables import TableDelivery, TableMetadata

_FROM_HELP = """Send the records of PATH to TOPIC.

PATH is a folder that to-table wrote, or any Parquet with a column `value`.

Keys, headers and timestamps are kept. A record's key decides its partition; with --keep-partitions
each record goes to the partition that it came from. If TOPIC does not exist, it is created with as
many partitions as the archived topic had.

\b
Examples:
  penstock topic from-table archive/orders orders-again --keep-partitions
  penstock topic from-table archive/orders orders --timestamps now
"""
_SCALE_MS: Final = 1000
_BATCH_BYTES: Final = 512 << 10
_REQUEST_BYTES_MAX: Final = 32 << 20
_BUFFER_BYTES: Final = 64 << 20
_UNDER_WAY_MAX: Final = 64
"""Tables that may wait for their acknowledgment. The producer limits the memory that they use."""


class Times(StrEnum):
    KEEP = "keep"
    NOW = "now"


def register(topics: typer.Typer) -> None:
    topics.command("from-table", help=_FROM_HELP)(from_table)


def from_table(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder or file to send.")],
    topic: TargetTopic,
    *,
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="Keep each record's partition.")
    ] = False,
    timestamps: Annotated[
        Times, typer.Option(help="Timestamps: keep those of the archive, or use the time now.")
    ] = Times.KEEP,
    compression: Annotated[
        Compression, typer.Option(help="Compression of batches.")
    ] = Compression.NONE,
    quiet: NoProgressBar = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    from penstock.cli.archive_files import BadArchive  # noqa: PLC0415 -- pyarrow

    clock = SystemClock()
    begun = clock.monotonic()
    try:
        plan = _plan(path, topic, keep_partitions, timestamps)
        sent = run(_replay(plan, bootstrap, compression, quiet))
    except BadArchive as error:
        raise CommandFailed(printable(str(error)), EXIT_UNSOUND) from error
    seconds = clock.monotonic() - begun
    if json:
        emit_json(_sent_json(plan, sent, seconds))
    if sent.records != plan.rows or sent.offsets != plan.rows:
        raise CommandFailed(
            f"the counts do not match: {printable(path)} has {count(plan.rows, 'row')}, the "
            f"cluster acknowledged {count(sent.records, 'record')} at {sent.offsets:,} offsets: "
            f"compare with penstock topic describe {printable(topic)}",
            EXIT_UNSOUND,
        )
    if not json:
        emit(
            f"sent {count(sent.records, 'record')} of {printable(path)} to {printable(topic)} in "
            f"{seconds:.1f} s: the cluster acknowledged all of them"
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    path: str
    topic: str
    columns: tuple[str, ...]
    rows: int
    partition_count: int | None
    """The least number of partitions that the topic needs; None if any number will do."""
    partitions_wanted: int
    """How many partitions to create if the topic does not exist."""


class _Sent:
    """What the cluster acknowledged."""

    def __init__(self) -> None:
        self.records = 0
        self.offsets = 0
        self.partitions: dict[int, tuple[int, int]] = {}

    def add(self, metadata: TableMetadata) -> None:
        self.records += metadata.records
        for partition, ranges in metadata.ranges.items():
            for first, last in ranges:
                self.offsets += last - first + 1
                low, after = self.partitions.get(partition, (first, 0))
                self.partitions[partition] = min(low, first), max(after, last + 1)


def _plan(path: str, topic: str, keep_partitions: bool, timestamps: Times) -> _Plan:
    from penstock.cli import archive_files as files  # noqa: PLC0415 -- pyarrow

    kinds = files.columns_of(path)
    if "value" not in kinds:
        raise files.BadArchive(
            f"{path} has no column named value (it has {', '.join(kinds)}): rename the column "
            "that holds the values"
        )
    if keep_partitions and "partition" not in kinds:
        raise files.BadArchive(f"{path} has no column named partition: leave out --keep-partitions")
    note = files.read_note(path)
    counted = files.count_rows(path) if "partition" in kinds else {}
    if note is not None:
        files.check_counts(note, counted)
    wanted = ["key", "value", "headers"]
    wanted += ["timestamp"] if timestamps is Times.KEEP else []
    wanted += ["partition"] if keep_partitions else []
    known = note.partition_count if note is not None else max(counted, default=0) + 1
    return _Plan(
        path,
        topic,
        tuple(name for name in wanted if name in kinds),
        files.total_rows(path),
        max(counted, default=0) + 1 if keep_partitions else None,
        known if keep_partitions or note is not None else BROKER_DEFAULT,
    )


async def _replay(plan: _Plan, bootstrap: str, compression: Compression, quiet: bool) -> _Sent:
    from penstock.cli.archive_files import read_batches  # noqa: PLC0415 -- pyarrow

    sent = _Sent()
    oldest_ms: int | None = None
    async with connect(bootstrap) as admin:
        await _prepare(admin, plan)
        under_way: list[TableDelivery] = []
        async with _producer(bootstrap, compression) as producer:
            with progress_bar(plan.rows, quiet) as advance:
                for batch in read_batches(plan.path):
                    rows = batch.select(list(plan.columns))
                    oldest_ms = _oldest(rows, oldest_ms)
                    under_way.append(await producer.send_table(plan.topic, rows))
                    if len(under_way) >= _UNDER_WAY_MAX:
                        sent.add(await under_way.pop(0))
                    advance(len(batch))
                await producer.flush()
                for delivery in under_way:
                    sent.add(await delivery)
        if oldest_ms is not None:
            await _warn_of_retention(admin, plan.topic, oldest_ms)
    return sent


def _producer(bootstrap: str, compression: Compression) -> Producer[Any, Any]:
    return Producer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        compression_type=Codec[compression.name],
        batch_size=_BATCH_BYTES,
        max_request_size=_REQUEST_BYTES_MAX,
        buffer_memory=_BUFFER_BYTES,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


async def _prepare(admin: Admin, plan: _Plan) -> None:
    found = (await admin.describe_topics([plan.topic]))[plan.topic]
    if isinstance(found, BrokerError):
        if found.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise found
        created = await admin.create_topic(plan.topic, plan.partitions_wanted)
        sys.stderr.write(
            f"created topic {printable(plan.topic)} with {count(created.partitions, 'partition')}\n"
        )
    elif plan.partition_count is not None and len(found.partitions) < plan.partition_count:
        raise CommandFailed(
            f"{printable(plan.topic)} has {count(len(found.partitions), 'partition')} but the "
            f"archive needs {plan.partition_count}: leave out --keep-partitions, or add partitions "
            f"with penstock topic alter {printable(plan.topic)} --partitions {plan.partition_count}"
        )


def _oldest(rows: pa.RecordBatch, oldest_ms: int | None) -> int | None:
    if "timestamp" not in rows.schema.names:
        return oldest_ms
    import pyarrow.compute as pc  # noqa: PLC0415 -- as above

    found = pc.min(rows.column("timestamp")).as_py()
    if found is None:
        return oldest_ms
    if isinstance(found, datetime):
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        found = round(aware.timestamp() * _SCALE_MS)
    return int(found) if oldest_ms is None else min(oldest_ms, int(found))


async def _warn_of_retention(admin: Admin, topic: str, oldest_ms: int) -> None:
    """Warns if retention will soon delete the records, since they keep their old timestamps."""
    configs = await admin.describe_configs(topic=topic)
    policy, retention = configs.get("cleanup.policy"), configs.get("retention.ms")
    if policy is None or retention is None or "delete" not in (policy.value or ""):
        return
    kept_ms = int(retention.value or -1)
    if 0 <= kept_ms < SystemClock().wall_ms() - oldest_ms:
        sys.stderr.write(
            f"warning: {printable(topic)} keeps records for {kept_ms / 86_400_000:.3g} days, "
            "and some of these records are older: they will be deleted. Raise the retention with "
            f"penstock topic alter {printable(topic)} --config retention.ms=-1, or send the "
            "records with --timestamps now\n"
        )


def _sent_json(plan: _Plan, sent: _Sent, seconds: float) -> dict[str, object]:
    return {
        "topic": plan.topic,
        "path": plan.path,
        "rows": plan.rows,
        "records": sent.records,
        "seconds": round(seconds, 3),
        "partitions": [
            {"partition": number, "first_offset": first, "next_offset": after}
            for number, (first, after) in sorted(sent.partitions.items())
        ],
    }
