"""`penstock bench`: measures how fast this machine can write to and read from a cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from penstock.cli import completion
from penstock.cli.options import Bootstrap, Json
from penstock.cli.output import CommandFailed, count, emit, emit_json, printable, size_text
from penstock.cli.produce import ACKS, Acks, Compression
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    TIMEOUT_MS,
    checked,
    connect,
    run,
)
from penstock.client.consumer import Consumer
from penstock.client.errors import BrokerError, ClientError
from penstock.client.metrics import Latency
from penstock.client.producing.producer import Producer
from penstock.records.batch import Codec
from penstock.runtime import SystemClock, SystemRandom
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

DEFAULT_TOPIC: Final = "penstock-bench"
_PRODUCE_HELP = """Send records to a topic as fast as the cluster accepts them.

Creates the topic if it does not exist. The topic is kept, so that `penstock bench consume` can read
it. Values are random bytes, which do not compress. --lane chooses the client API: tables of records
(Arrow columns), or single records.

\b
Examples:
  penstock bench produce
  penstock bench produce --records 10000000 --size 1000 --compression lz4
  penstock bench produce --lane records --json
"""
_CONSUME_HELP = """Read a topic from start to end as fast as possible.

\b
Examples:
  penstock bench consume
  penstock bench consume --topic orders --records 1000000 --lane records
"""
_ROWS: Final = 50_000
_TABLE_BYTES: Final = 16 << 20
_BATCH_BYTES: Final = 256 << 10
_BUFFER_BYTES: Final = 64 << 20
_RECORDS_PER_POLL: Final = 5_000
_SILENCE_S: Final = 30.0
_POLL_MS: Final = 1_000


class Lane(StrEnum):
    TABLES = "tables"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class _Result:
    what: str
    topic: str
    lane: Lane
    records: int
    value_bytes: int
    seconds: float
    latency: Latency

    def json(self) -> dict[str, object]:
        return {
            "benchmark": self.what,
            "topic": self.topic,
            "lane": self.lane.value,
            "records": self.records,
            "bytes": self.value_bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records / self.seconds),
            "bytes_per_s": round(self.value_bytes / self.seconds),
            "request_p50_ms": round(self.latency.p50_ms, 2),
            "request_p99_ms": round(self.latency.p99_ms, 2),
        }

    def text(self) -> str:
        speed = size_text(int(self.value_bytes / self.seconds))
        return (
            f"{self.what}d {count(self.records, 'record')} ({size_text(self.value_bytes)}) of "
            f"{printable(self.topic)} in {self.seconds:.2f} s: "
            f"{self.records / self.seconds:,.0f} records/s, {speed}/s; requests took "
            f"{self.latency.p50_ms:.1f} ms (median), {self.latency.p99_ms:.1f} ms (p99)"
        )


_Topic = Annotated[
    str, typer.Option("--topic", "-t", help="The topic.", autocompletion=completion.topics)
]
_LaneOption = Annotated[
    Lane,
    typer.Option(
        "--lane", help="Which client API to measure: tables of records, or single records."
    ),
]


def register(root: typer.Typer) -> None:
    app = typer.Typer(
        help="Measure the throughput of a cluster: produce, consume.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.command("produce", help=_PRODUCE_HELP)(produce)
    app.command("consume", help=_CONSUME_HELP)(consume)
    root.add_typer(app, name="bench")


def produce(
    *,
    topic: _Topic = DEFAULT_TOPIC,
    records: Annotated[
        int, typer.Option("--records", "-n", min=1, help="Number of records.")
    ] = 5_000_000,
    size: Annotated[int, typer.Option("--size", "-s", min=0, help="Bytes of each value.")] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Partitions of a new topic.")
    ] = 4,
    compression: Annotated[
        Compression, typer.Option(help="Compression of batches.")
    ] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option(help="Which replicas must have a record before it counts as sent.")
    ] = Acks.ALL,
    lane: _LaneOption = Lane.TABLES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    producer = Producer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        acks=ACKS[acks],
        compression_type=Codec[compression.name],
        batch_size=_BATCH_BYTES,
        buffer_memory=_BUFFER_BYTES,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )

    async def main() -> _Result:
        await _make_topic(bootstrap, topic, partitions)
        async with producer:
            await producer.partitions_for(topic)
            send = _send_tables if lane is Lane.TABLES else _send_records
            clock = SystemClock()
            failures: list[ClientError] = []
            begun = clock.monotonic()
            await send(producer, topic, records, size, failures)
            await producer.flush()
            seconds = clock.monotonic() - begun
            if failures:
                raise failures[0]
            latency = producer.metrics().request_latency
        return _Result("produce", topic, lane, records, records * size, seconds, latency)

    _show(run(main()), json)


async def _make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    async with connect(bootstrap) as admin:
        try:
            await admin.create_topic(topic, partitions)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


async def _send_tables(
    producer: Producer[Any, Any], topic: str, records: int, size: int, failures: list[ClientError]
) -> None:
    import pyarrow as pa  # noqa: PLC0415 -- the other lane does not need it

    rows = max(1, min(_ROWS, records, _TABLE_BYTES // max(size, 1)))
    data = SystemRandom().bytes(rows * size)
    values = [data[at : at + size] for at in range(0, rows * size, size)] if size else [b""] * rows
    table = pa.table({"value": pa.array(values, pa.binary())})

    def told(_: object, error: ClientError | None) -> None:
        if error is not None:
            failures.append(error)

    left = records
    while left > 0 and not failures:
        delivery = await producer.send_table(topic, table.slice(0, left))
        delivery.add_callback(told)
        left -= rows


async def _send_records(
    producer: Producer[Any, Any], topic: str, records: int, size: int, failures: list[ClientError]
) -> None:
    value = SystemRandom().bytes(size)

    def told(_: object, error: ClientError | None) -> None:
        if error is not None:
            failures.append(error)

    for number in range(records):
        delivery = await producer.send(topic, value)
        if number % _RECORDS_PER_POLL == 0 or number == records - 1:
            # A callback for one record in thousands detects failure soon; metrics count the rest.
            delivery.add_callback(told)
            if failures:
                return
    await producer.flush()
    if producer.metrics().failed_records and not failures:
        raise CommandFailed(f"{producer.metrics().failed_records:,} records were not delivered")


def consume(
    *,
    topic: _Topic = DEFAULT_TOPIC,
    records: Annotated[
        int | None, typer.Option("--records", "-n", min=1, help="Stop after this many records.")
    ] = None,
    lane: _LaneOption = Lane.TABLES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    consumer = Consumer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        allow_auto_create_topics=False,
        max_partition_fetch_bytes=_TABLE_BYTES // 4,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )

    async def main() -> _Result:
        async with consumer:
            number = await consumer.partitions_for(topic)
            topic_partitions = [TopicPartition(topic, partition) for partition in range(number)]
            starts = await consumer.beginning_offsets(topic_partitions)
            ends = await consumer.end_offsets(topic_partitions)
            if starts == ends:
                raise CommandFailed(
                    f"topic {printable(topic)} is empty: fill it with: penstock bench produce"
                )
            consumer.assign(topic_partitions)
            consumer.seek_to_beginning()
            read, size, seconds = await _read(consumer, ends, records, lane)
            latency = consumer.metrics().fetch_latency
        return _Result("consume", topic, lane, read, size, seconds, latency)

    _show(run(main()), json)


async def _read(
    consumer: Consumer[bytes | None, bytes | None],
    ends: dict[TopicPartition, int],
    records: int | None,
    lane: Lane,
) -> tuple[int, int, float]:
    """Returns the number of records, the bytes of their values, and the time it took to read."""
    clock = SystemClock()
    if lane is Lane.TABLES:
        # Loaded before the measurement begins.
        import pyarrow.compute as pc  # noqa: PLC0415 -- only when used
    begun = heard = clock.monotonic()
    read = size = 0
    while records is None or read < records:
        left = None if records is None else records - read
        if lane is Lane.TABLES:
            table = await consumer.poll_table(_POLL_MS, max_rows=left, headers=False)
            got = table.num_rows
            size += pc.sum(pc.binary_length(table["value"])).as_py() or 0
        else:
            some = await consumer.poll(_POLL_MS, min(left or _RECORDS_PER_POLL, _RECORDS_PER_POLL))
            got = len(some)
            size += sum([len(record.value or b"") for record in some])
        read += got
        now = clock.monotonic()
        heard = now if got else heard
        positions = consumer.positions()
        if all(
            topic_partition in positions
            and positions[topic_partition].offset >= ends[topic_partition]
            for topic_partition in ends
        ):
            break
        if now - heard > _SILENCE_S:
            raise CommandFailed(f"no records arrived for {_SILENCE_S:g} s: see penstock status")
    return read, size, max(clock.monotonic() - begun, 1e-9)


def _show(result: _Result, as_json: bool) -> None:
    if as_json:
        emit_json(result.json())
    else:
        emit(result.text())
    sys.stdout.flush()
