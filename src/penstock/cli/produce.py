"""`penstock produce`: lines into a topic."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from penstock.cli import completion
from penstock.cli.line_source import read_lines
from penstock.cli.output import CommandFailed, count, emit_json, printable, size_text
from penstock.cli.produce_input import BadLine, InputRecord, parse_json_line, split_key
from penstock.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, connect, run
from penstock.client.sender import ACKS_ALL, Sender, SenderConfig, SenderStats
from penstock.records.batch import Codec
from penstock.runtime import SystemClock

_HELP = """Send the lines of standard input, or of a file, to TOPIC.

Each line is a record's value. With --key-separator what stands before it is the key; records of
one key keep their order. With --json-lines each line is an object with "value" and, if wanted,
"key", "headers", "partition" and "timestamp": what `penstock consume --json` writes.

A record counts as sent when the cluster has it as --acks says: all (on disk on every in-sync
replica, each record once), 1 (on the leader) or 0 (nobody asked).

\b
Examples:
  echo hello | penstock produce greetings
  penstock produce orders --key-separator : --file orders.txt --compression zstd
  penstock consume orders --from-beginning --until-end --json | penstock produce copy --json-lines
"""
_PROGRESS_EVERY_S: Final = 0.25


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


def register(root: typer.Typer) -> None:
    root.command("produce", help=_HELP)(produce)


def produce(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Where to.", autocompletion=completion.topics),
    ],
    *,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines are KEY TEXT VALUE."),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each line is a JSON object.")
    ] = False,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read this instead of standard input."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="All to this partition.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option(help="How batches are compressed.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option(help="Who must have a record before it counts.")] = Acks.ALL,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no summary.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="The summary as JSON on standard output.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    if key_separator is not None and json_lines:
        raise CommandFailed("give --key-separator or --json-lines: a JSON object has its own key")
    if key_separator == "":
        raise CommandFailed("--key-separator is empty: give the text between key and value")
    separator = None if key_separator is None else key_separator.encode()
    config = SenderConfig(
        acks=ACKS_ALL if acks is Acks.ALL else int(acks), codec=Codec[compression.name]
    )
    if file is None and sys.stdin is None:
        raise CommandFailed("there is no standard input: give --file FILE")
    descriptor = sys.stdin.fileno() if file is None else file.fileno()
    typed = file is None and sys.stdin.isatty()
    if typed and not quiet:
        sys.stderr.write("one record per line; Ctrl-D ends\n")
    progress = _Progress(topic, shown=sys.stderr.isatty() and not quiet and not typed)
    feed = _Feed(separator, json_lines, partition)

    async def main() -> SenderStats:
        async with connect(bootstrap) as cluster:
            progress.start()
            async with Sender(cluster, topic, config) as sender:
                async for lines in read_lines(descriptor):
                    feed.lines(sender, lines)
                    await sender.drain()
                    progress.show(sender.stats)
            return sender.stats

    try:
        stats = run(main())
    except BadLine as error:
        raise CommandFailed(f"{error}; the records before it were sent") from error
    finally:
        progress.clear()
    if json:
        emit_json(progress.summary_json(stats))
    elif not quiet:
        sys.stderr.write(progress.summary(stats) + "\n")


class _Feed:
    """Gives lines to the sender as records, and counts them for messages."""

    def __init__(self, separator: bytes | None, as_json: bool, partition: int | None) -> None:
        self._separator = separator
        self._as_json = as_json
        self._partition = partition
        self._number = 0
        self._clock = SystemClock()

    def lines(self, sender: Sender, lines: list[bytes]) -> None:
        now_ms = self._clock.wall_ms()
        if self._separator is None and not self._as_json and self._partition is None:
            sender.append_values(lines, now_ms)
            self._number += len(lines)
            return
        for line in lines:
            self._number += 1
            if self._as_json and not line.strip():
                continue
            record = self._parse(line)
            partition = self._partition if record.partition is None else record.partition
            sender.append(
                record.key,
                record.value,
                now_ms if record.timestamp is None else record.timestamp,
                headers=record.headers,
                partition=partition,
            )

    def _parse(self, line: bytes) -> InputRecord:
        try:
            if self._as_json:
                return parse_json_line(line)
            if self._separator is not None:
                return split_key(line, self._separator)
        except BadLine as error:
            raise BadLine(f"line {self._number}: {printable(str(error))}") from error
        return InputRecord(None, line)


class _Progress:
    """One line on stderr that is written over, while a person is there to see it."""

    def __init__(self, topic: str, *, shown: bool) -> None:
        self._topic = printable(topic)
        self._shown = shown
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self._last = self._started
        self._drawn = False

    def start(self) -> None:
        self._started = self._last = self._clock.monotonic()

    def show(self, stats: SenderStats) -> None:
        now = self._clock.monotonic()
        if self._shown and now - self._last >= _PROGRESS_EVERY_S:
            self._last = now
            self._drawn = True
            sys.stderr.write(f"\r\x1b[K{self._text(stats)}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")

    def _seconds(self) -> float:
        return max(self._clock.monotonic() - self._started, 1e-9)

    def _text(self, stats: SenderStats) -> str:
        seconds = self._seconds()
        return (
            f"{count(stats.records, 'record')} ({size_text(stats.payload_bytes)}) to "
            f"{self._topic} in {seconds:.1f} s: {stats.records / seconds:,.0f} records/s, "
            f"{size_text(int(stats.payload_bytes / seconds))}/s"
        )

    def summary(self, stats: SenderStats) -> str:
        return f"sent {self._text(stats)}"

    def summary_json(self, stats: SenderStats) -> dict[str, object]:
        return {
            "topic": self._topic,
            "records": stats.records,
            "payload_bytes": stats.payload_bytes,
            "wire_bytes": stats.wire_bytes,
            "batches": stats.batches,
            "seconds": round(self._seconds(), 3),
            "partitions": [
                {"partition": partition, "first_offset": first, "next_offset": after}
                for partition, (first, after) in sorted(stats.partitions.items())
            ],
        }
