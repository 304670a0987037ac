"""`penstock consume`: records out of a topic, as lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import typer

from penstock.cli import completion
from penstock.cli.consume_format import FORMAT_HELP, Formatter, compile_format, json_formatter
from penstock.cli.output import CommandFailed, Shown, pipe_guard, printable
from penstock.cli.session import DEFAULT_BOOTSTRAP, Bootstrap, connect, run
from penstock.cli.times import TIME_FORMS, parse_time_ms
from penstock.client.cluster import Cluster
from penstock.client.errors import TopicNotFound
from penstock.client.model import TopicPartition
from penstock.client.offsets import EARLIEST, LATEST, list_offsets
from penstock.client.reader import Reader
from penstock.runtime import SystemClock

_HELP = f"""Show the records of TOPIC: new ones as they come, or from where you say.

\b
Where to begin (one of them; the default is: now, at the end):
  --from-beginning   the oldest record there is
  --offset N         this offset in each partition; -N begins N before the end
  --since TIME       {TIME_FORMS}

\b
Where to stop (the default is: never; Ctrl-C):
  --max-messages N, --timeout SECONDS without a record, --until-end as of now

\b
A format has {FORMAT_HELP}
and %%; \\n, \\t and \\\\ mean what they do elsewhere. With --json each line is an object; what is
no text comes as "value_base64" instead of "value".

\b
Examples:
  penstock consume orders --from-beginning
  penstock consume orders --since 10m --format '%t %p/%o %k: %v'
  penstock consume orders --from-beginning --until-end --json | jq .value
"""
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Start:
    from_beginning: bool
    offset: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class _Stop:
    records_max: int | None
    idle_s: float | None
    until_end: bool


class _Range(NamedTuple):
    start: _Start
    stop: _Stop


def register(root: typer.Typer) -> None:
    root.command("consume", help=_HELP)(consume)


def consume(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="What to read.", autocompletion=completion.topics),
    ],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest record.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", metavar="N", help="Begin here; -N: before the end."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Begin at this time.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, metavar="N", help="Stop after so many."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="S", help="Stop when none came for so long."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at what is the end now.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="How a record is shown.")
    ] = "%v",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    keys: Annotated[Shown, typer.Option(help="How to show keys.")] = Shown.TEXT,
    values: Annotated[Shown, typer.Option(help="How to show values.")] = Shown.TEXT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    start = _start(from_beginning, offset, since)
    stop = _Stop(max_messages, timeout, until_end)
    formatter = _formatter(format_, json, keys, values)
    with pipe_guard():
        run(_consume(bootstrap, topic, partition, _Range(start, stop), formatter))


def _start(from_beginning: bool, offset: int | None, since: str | None) -> _Start:
    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise CommandFailed("give one of --from-beginning, --offset and --since")
    try:
        since_ms = None if since is None else parse_time_ms(since, SystemClock().wall_ms())
    except ValueError as error:
        raise CommandFailed(f"--since: {error}") from error
    return _Start(from_beginning, offset, since_ms)


def _formatter(text: str, as_json: bool, keys: Shown, values: Shown) -> Formatter:
    if as_json:
        return json_formatter(keys=keys, values=values)
    try:
        return compile_format(text, escaped=sys.stdout.isatty(), keys=keys, values=values)
    except ValueError as error:
        raise CommandFailed(f"--format: {error}") from error


async def _consume(
    bootstrap: str,
    topic: str,
    partitions: list[int] | None,
    span: _Range,
    formatter: Formatter,
) -> None:
    start, stop = span
    async with connect(bootstrap) as cluster:
        places = await _places(cluster, topic, partitions)
        ends = await _offsets(cluster, places, LATEST)
        positions = await _positions(cluster, ends, start)
        if sys.stderr.isatty() and sys.stdout.isatty() and positions == ends and not stop.until_end:
            sys.stderr.write(
                f"waiting for new records in {printable(topic)}; Ctrl-C ends "
                "(--from-beginning shows those that are there)\n"
            )
        async with Reader(cluster, positions) as reader:
            await _read(reader, ends, stop, formatter)


async def _read(
    reader: Reader, ends: dict[TopicPartition, int], stop: _Stop, formatter: Formatter
) -> None:
    clock = SystemClock()
    left = stop.records_max
    last = clock.monotonic()
    while True:
        if stop.until_end and all(reader.positions[place] >= end for place, end in ends.items()):
            return
        wait_s = _POLL_S
        if stop.idle_s is not None:
            wait_s = min(wait_s, last + stop.idle_s - clock.monotonic())
            if wait_s <= 0:
                return
        fetched = await reader.poll(wait_s)
        _warn(reader)
        for part in fetched:
            records = part.records
            if stop.until_end:
                records = [record for record in records if record.offset < ends[part.place]]
            if left is not None:
                records = records[:left]
                left -= len(records)
            _write(formatter.lines(part.place, records))
            if left == 0:
                return
        if fetched:
            last = clock.monotonic()


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _warn(reader: Reader) -> None:
    for reset in reader.resets:
        sys.stderr.write(
            f"penstock: offset {reset.lost_offset} of {printable(str(reset.place))} is gone; "
            f"going on from {reset.offset}\n"
        )
    reader.resets.clear()


async def _places(
    cluster: Cluster, topic: str, partitions: list[int] | None
) -> list[TopicPartition]:
    number = await cluster.partitions(topic)
    for partition in partitions or ():
        if partition >= number:
            raise TopicNotFound(topic, partition)
    chosen = range(number) if partitions is None else sorted(set(partitions))
    return [TopicPartition(topic, partition) for partition in chosen]


async def _offsets(
    cluster: Cluster, places: list[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    found = await list_offsets(cluster, dict.fromkeys(places, time_ms))
    return {place: found[place].offset for place in places}


async def _positions(
    cluster: Cluster, ends: dict[TopicPartition, int], start: _Start
) -> dict[TopicPartition, int]:
    places = list(ends)
    if start.since_ms is not None:
        found = await _offsets(cluster, places, start.since_ms)
        return {place: ends[place] if offset < 0 else offset for place, offset in found.items()}
    if not start.from_beginning and start.offset is None:
        return dict(ends)
    starts = await _offsets(cluster, places, EARLIEST)
    if start.offset is None:
        return starts
    return {
        place: min(
            max(start.offset if start.offset >= 0 else end + start.offset, starts[place]), end
        )
        for place, end in ends.items()
    }
