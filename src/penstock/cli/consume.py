"""`penstock consume`: records out of a topic, as lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from penstock.cli import completion
from penstock.cli.consume_format import FORMAT_HELP, Formatter, compile_format, json_formatter
from penstock.cli.consume_reading import RawConsumer, Reading, Stop
from penstock.cli.output import CommandFailed, Shown, pipe_guard, printable
from penstock.cli.session import (
    CLIENT_ID,
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    TIMEOUT_MS,
    Bootstrap,
    checked,
    run,
)
from penstock.cli.times import TIME_FORMS, parse_time_ms
from penstock.client.consuming.consumer import Consumer
from penstock.client.errors import TopicNotFound
from penstock.client.model import TopicPartition
from penstock.runtime import SystemClock

_HELP = f"""Show the records of TOPIC: new ones as they come, or from where you say.

\b
Where to begin (one of them; the default is: now, at the end):
  --from-beginning   the oldest record there is
  --offset N         this offset in each partition; -N begins N before the end
  --since TIME       a time, as below

With --group the partitions are shared with the group's other members, reading begins where the
group stopped (else at the end, or with --from-beginning at the oldest record), and what was shown
is committed.

\b
Where to stop (the default is: never; Ctrl-C):
  --max-messages N, --timeout SECONDS without a record, --until-end as of now

TIME is {TIME_FORMS}.

A format has {FORMAT_HELP}
and %%; \\n, \\t and \\\\ mean what they do elsewhere. With --json each line is an object; what is
no text comes as "value_base64" instead of "value".

\b
Examples:
  penstock consume orders --from-beginning
  penstock consume orders --since 10m --format '%t %p/%o %k: %v'
  penstock consume orders --from-beginning --until-end --json | jq .value
  penstock consume orders --group billing --max-messages 10
"""
_FETCH_BYTES: Final = 16 << 20
_PARTITION_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Start:
    from_beginning: bool
    offset: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class _Wanted:
    topic: str
    partitions: list[int] | None
    group: str | None
    start: _Start


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
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, and commit.",
            autocompletion=completion.groups,
        ),
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
    if group is not None and (offset is not None or since is not None or partition):
        raise CommandFailed(
            "a group goes on where it stopped, with the partitions it is given: leave out "
            "--offset, --since and --partition, or move it with: penstock group reset-offsets"
        )
    wanted = _Wanted(topic, partition, group, start)
    stop = Stop(max_messages, timeout, until_end)
    formatter = _formatter(format_, json, keys, values)
    consumer = Consumer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        group_id=group,
        auto_offset_reset=_reset(wanted),
        allow_auto_create_topics=False,
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=_PARTITION_BYTES,
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )
    with pipe_guard():
        run(_consume(consumer, wanted, stop, formatter))


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


def _reset(wanted: _Wanted) -> Literal["none", "earliest", "latest"]:
    """Without a group positions are sought out here, and one that is lost is told."""
    if wanted.group is None:
        return "none"
    return "earliest" if wanted.start.from_beginning else "latest"


async def _consume(
    consumer: RawConsumer, wanted: _Wanted, stop: Stop, formatter: Formatter
) -> None:
    async with consumer:
        places = await _places(consumer, wanted.topic, wanted.partitions)
        ends = await consumer.end_offsets(places)
        if wanted.group is not None:
            await consumer.subscribe(wanted.topic)
        else:
            positions = await _positions(consumer, ends, wanted.start)
            consumer.assign(places)
            for place, position in positions.items():
                consumer.seek(place, position)
            if positions == ends and not stop.until_end:
                _say_waiting(wanted.topic)
        await Reading(consumer, ends, stop, formatter).run()


def _say_waiting(topic: str) -> None:
    if sys.stderr.isatty() and sys.stdout.isatty():
        sys.stderr.write(
            f"waiting for new records in {printable(topic)}; Ctrl-C ends "
            "(--from-beginning shows those that are there)\n"
        )


async def _places(
    consumer: RawConsumer, topic: str, partitions: list[int] | None
) -> list[TopicPartition]:
    number = await consumer.partitions_for(topic)
    for partition in partitions or ():
        if partition >= number:
            raise TopicNotFound(topic, partition)
    chosen = range(number) if partitions is None else sorted(set(partitions))
    return [TopicPartition(topic, partition) for partition in chosen]


async def _positions(
    consumer: RawConsumer, ends: dict[TopicPartition, int], start: _Start
) -> dict[TopicPartition, int]:
    if start.since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(ends, start.since_ms))
        return {
            place: end if (at := found[place]) is None else at.offset for place, end in ends.items()
        }
    if not start.from_beginning and start.offset is None:
        return dict(ends)
    starts = await consumer.beginning_offsets(ends)
    if start.offset is None:
        return starts
    return {
        place: min(
            max(start.offset if start.offset >= 0 else end + start.offset, starts[place]), end
        )
        for place, end in ends.items()
    }
