"""`penstock produce`: sends lines to a topic."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final, Literal

import typer

from penstock.cli.line_source import read_lines
from penstock.cli.options import Bootstrap, TargetTopic
from penstock.cli.output import CommandFailed, count, emit_json, printable, size_text
from penstock.cli.produce_feed import Feed, Tally
from penstock.cli.produce_input import BadLine
from penstock.cli.session import CLIENT_ID, CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, checked, run
from penstock.client.metrics import ProducerMetrics
from penstock.client.producing.producer import Producer
from penstock.records.batch import Codec
from penstock.runtime import SystemClock

_HELP = """Send the lines of standard input, or of a file, to TOPIC.

Each line is a record's value. With --key-separator, the text before the separator is the key, and
records with the same key keep their order. With --json-lines, each line is an object with "value"
and optionally "key", "headers", "partition" and "timestamp", as `penstock consume --json` writes
it.

--acks says when a record counts as sent: all (every in-sync replica has it, by default on disk, and
no record is written twice), 1 (the leader has it) or 0 (without waiting for an answer).

\b
Examples:
  echo hello | penstock produce greetings
  penstock produce orders --key-separator : --file orders.txt
  penstock consume orders --from-beginning --until-end --json > orders.jsonl
  penstock produce copy --json-lines --file orders.jsonl --compression zstd
  penstock produce orders --header source=shop --file orders.txt
"""
_PROGRESS_EVERY_S: Final = 0.25
_BATCH_BYTES: Final = 512 << 10
_REQUEST_BYTES_MAX: Final = 32 << 20
"""Large, because the topic limits the size of a record."""
_BUFFER_BYTES: Final = 64 << 20
_DELIVERY_TIMEOUT_MS: Final = 60_000


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    ZERO = "0"


ACKS: Final[dict[Acks, Literal["all", 1, 0]]] = {Acks.ALL: "all", Acks.ONE: 1, Acks.ZERO: 0}


def register(root: typer.Typer) -> None:
    root.command("produce", help=_HELP)(produce)


def produce(
    topic: TargetTopic,
    *,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="The text between key and value."
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each line is a JSON object.")
    ] = False,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Read this file instead of standard input."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Send to this partition.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Give each record this header."),
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="Compression of batches.")
    ] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option(help="Which replicas must have a record before it counts as sent.")
    ] = Acks.ALL,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON to standard output.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    separator, headers = _separator(key_separator, json_lines), _headers(header or [])
    if file is None and sys.stdin is None:
        raise CommandFailed("there is no standard input: give --file FILE")
    descriptor = sys.stdin.fileno() if file is None else file.fileno()
    typed = file is None and sys.stdin.isatty()
    if typed and not quiet:
        sys.stderr.write("one record per line; Ctrl-D stops\n")
    progress = _Progress(topic, shown=sys.stderr.isatty() and not quiet and not typed)
    feed = Feed(topic, separator, json_lines, partition, headers)
    try:
        metrics = run(_send(_producer(bootstrap, acks, compression), feed, descriptor, progress))
    except BadLine as error:
        raise CommandFailed(f"{error}; the records before it were sent") from error
    finally:
        progress.clear()
    if json:
        emit_json(progress.summary_json(feed.tally, metrics))
    elif not quiet:
        sys.stderr.write(progress.summary(feed.tally) + "\n")


def _separator(key_separator: str | None, json_lines: bool) -> bytes | None:
    if key_separator is None:
        return None
    if json_lines:
        raise CommandFailed(
            "give --key-separator or --json-lines, not both: a JSON object has its own key"
        )
    if not key_separator:
        raise CommandFailed("--key-separator is empty: give the text between key and value")
    return key_separator.encode()


def _headers(given: list[str]) -> tuple[tuple[str, bytes], ...]:
    headers: list[tuple[str, bytes]] = []
    for each in given:
        name, sign, value = each.partition("=")
        if not name or not sign:
            raise CommandFailed(
                f"--header {printable(each)}: give a name and a value, such as --header origin=web"
            )
        headers.append((name, value.encode()))
    return tuple(headers)


def _producer(
    bootstrap: str, acks: Acks, compression: Compression
) -> Producer[bytes | None, bytes | None]:
    return Producer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        acks=ACKS[acks],
        compression_type=Codec[compression.name],
        batch_size=_BATCH_BYTES,
        max_request_size=_REQUEST_BYTES_MAX,
        buffer_memory=_BUFFER_BYTES,
        delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


async def _send(
    producer: Producer[bytes | None, bytes | None],
    feed: Feed,
    descriptor: int,
    progress: _Progress,
) -> ProducerMetrics:
    async with producer:
        await producer.partitions_for(feed.topic)
        progress.start()
        try:
            async for lines in read_lines(descriptor):
                await feed.send(producer, lines)
                progress.show(feed.tally)
        except BadLine:
            await producer.flush()
            feed.tally.check()
            raise
        await producer.flush()
        feed.tally.check()
        return producer.metrics()


class _Progress:
    """A progress line on stderr, overwritten in place. Shown only if stderr is a terminal."""

    def __init__(self, topic: str, *, shown: bool) -> None:
        self._topic = printable(topic)
        self._shown = shown
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._last = self._started
        self._drawn = False

    def start(self) -> None:
        self._started = self._last = self._clock.monotonic()

    def show(self, tally: Tally) -> None:
        now = self._clock.monotonic()
        if self._shown and now - self._last >= _PROGRESS_EVERY_S:
            self._last = now
            self._drawn = True
            sys.stderr.write(f"\r\x1b[K{self._text(tally)}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")

    def _seconds(self) -> float:
        return max(self._clock.monotonic() - self._started, 1e-9)

    def _text(self, tally: Tally) -> str:
        seconds = self._seconds()
        return (
            f"{count(tally.records, 'record')} ({size_text(tally.payload_bytes)}) to "
            f"{self._topic} in {seconds:.1f} s: {tally.records / seconds:,.0f} records/s, "
            f"{size_text(int(tally.payload_bytes / seconds))}/s"
        )

    def summary(self, tally: Tally) -> str:
        return f"sent {self._text(tally)}"

    def summary_json(self, tally: Tally, metrics: ProducerMetrics) -> dict[str, object]:
        return {
            "topic": self._topic,
            "records": tally.records,
            "payload_bytes": tally.payload_bytes,
            "wire_bytes": metrics.wire_bytes,
            "batches": metrics.batches,
            "seconds": round(self._seconds(), 3),
            "partitions": [
                {"partition": partition, "first_offset": first, "next_offset": after}
                for partition, (first, after) in sorted(tally.partitions.items())
            ],
        }
