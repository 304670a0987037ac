"""`penstock consume`: reads a topic and prints its records as lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from penstock.cli import completion
from penstock.cli.consume_format import FORMAT_HELP, Formatter, compile_format, json_formatter
from penstock.cli.consume_reading import RawConsumer, Reading, Stop
from penstock.cli.options import Bootstrap
from penstock.cli.output import CommandFailed, Shown, pipe_guard, printable
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
from penstock.client.times import TIME_FORMS, parse_time_ms
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition

_HELP = f"""Show the records of TOPIC, from now on or from a given start.

\b
Where to start (at most one; the default is the end of the log):
  --from-beginning   the oldest record
  --offset N         this offset in each partition; -N: N before the end
  --since TIME       the first record at or after this time

With --group, this command joins the group and shares the partitions with its other members. It
starts at the group's committed offsets. Where there are none, it starts at the end, or with
--from-beginning at the oldest record. It commits the offsets of the records that it has shown.

\b
When to stop (the default is never, until Ctrl-C):
  --max-messages N    after N records
  --timeout SECONDS   when no record has arrived for this long
  --until-end         at the end of the log as it is now

TIME is {TIME_FORMS}.

A format may contain {FORMAT_HELP}
and %%; \\n, \\t and \\\\ are the usual escapes. With --json, each line is a JSON object; binary
values are in "value_base64" instead of "value".

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


_Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="S", help="Stop after S seconds without a new record."
    ),
]


def register(root: typer.Typer) -> None:
    root.command("consume", help=_HELP)(consume)


def consume(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="The topic to read.", autocompletion=completion.topics
        ),
    ],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset", "-o", metavar="N", help="Start at offset N; -N: N before the end."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Start at this time.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, and commit offsets.",
            autocompletion=completion.groups,
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, metavar="N", help="Stop after N records."),
    ] = None,
    timeout: _Timeout = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at the current end of the log.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", "-f", metavar="FORMAT", help="How to show a record.")
    ] = "%v",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    keys: Annotated[Shown, typer.Option(help="How to show keys.")] = Shown.TEXT,
    values: Annotated[Shown, typer.Option(help="How to show values.")] = Shown.TEXT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    wanted = _wanted(topic, partition, group, _start(from_beginning, offset, since))
    stop = Stop(max_messages, timeout, until_end)
    formatter = _formatter(format_, json, keys, values)
    consumer = _consumer(bootstrap, wanted)
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


def _wanted(topic: str, partitions: list[int] | None, group: str | None, start: _Start) -> _Wanted:
    chosen = start.offset is not None or start.since_ms is not None or partitions
    if group is not None and chosen:
        raise CommandFailed(
            "--group reads from the group's committed offsets, in the partitions that the group "
            "assigns: leave out --offset, --since and --partition; to change the offsets, use "
            "penstock group reset-offsets"
        )
    return _Wanted(topic, partitions, group, start)


def _formatter(text: str, as_json: bool, keys: Shown, values: Shown) -> Formatter:
    if as_json:
        return json_formatter(keys=keys, values=values)
    try:
        return compile_format(text, escaped=sys.stdout.isatty(), keys=keys, values=values)
    except ValueError as error:
        raise CommandFailed(f"--format: {error}") from error


def _reset(wanted: _Wanted) -> Literal["none", "earliest", "latest"]:
    """Returns `auto_offset_reset`.

    Without a group this command sets the positions itself, so a position that is out of range must
    raise an error, which is reported.
    """
    if wanted.group is None:
        return "none"
    return "earliest" if wanted.start.from_beginning else "latest"


def _consumer(bootstrap: str, wanted: _Wanted) -> RawConsumer:
    return Consumer(
        checked(bootstrap),
        client_id=CLIENT_ID,
        group_id=wanted.group,
        auto_offset_reset=_reset(wanted),
        allow_auto_create_topics=False,
        fetch_max_bytes=_FETCH_BYTES,
        max_partition_fetch_bytes=_PARTITION_BYTES,
        request_timeout_ms=TIMEOUT_MS,
        default_api_timeout_ms=TIMEOUT_MS,
        socket_connection_setup_timeout_ms=CONNECT_TIMEOUT_MS,
    )


async def _consume(
    consumer: RawConsumer, wanted: _Wanted, stop: Stop, formatter: Formatter
) -> None:
    async with consumer:
        topic_partitions = await _topic_partitions(consumer, wanted.topic, wanted.partitions)
        ends = await consumer.end_offsets(topic_partitions)
        if wanted.group is not None:
            await consumer.subscribe(wanted.topic)
        else:
            positions = await _positions(consumer, ends, wanted.start)
            consumer.assign(topic_partitions)
            for topic_partition, position in positions.items():
                consumer.seek(topic_partition, position)
            if positions == ends and not stop.until_end:
                _say_waiting(wanted.topic)
        await Reading(consumer, ends, stop, formatter).run()


def _say_waiting(topic: str) -> None:
    if sys.stderr.isatty() and sys.stdout.isatty():
        sys.stderr.write(
            f"waiting for new records in {printable(topic)}; Ctrl-C stops "
            "(--from-beginning also shows existing ones)\n"
        )


async def _topic_partitions(
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
            topic_partition: end if (at := found[topic_partition]) is None else at.offset
            for topic_partition, end in ends.items()
        }
    if not start.from_beginning and start.offset is None:
        return dict(ends)
    starts = await consumer.beginning_offsets(ends)
    if start.offset is None:
        return starts
    return {
        topic_partition: min(
            max(start.offset if start.offset >= 0 else end + start.offset, starts[topic_partition]),
            end,
        )
        for topic_partition, end in ends.items()
    }
