"""Parses the options of `penstock group reset-offsets`, and shows the moves.

`penstock queue reset-offsets` uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.cli.output import CommandFailed, emit, printable
from penstock.cli.tables import Column, table
from penstock.client.admin.group_reset import Kind, Move, Target
from penstock.client.errors import BrokerError
from penstock.client.times import parse_time_ms
from penstock.runtime import SystemClock
from penstock.topic_partition import TopicPartition


def target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> Target:
    """Returns the target that was given. Exactly one must be given."""
    given: list[Target] = []
    if to_earliest:
        given.append(Target(Kind.EARLIEST))
    if to_latest:
        given.append(Target(Kind.LATEST))
    if to_offset is not None:
        given.append(Target(Kind.OFFSET, to_offset))
    if to_datetime is not None:
        try:
            given.append(Target(Kind.TIME, parse_time_ms(to_datetime, SystemClock().wall_ms())))
        except ValueError as error:
            raise CommandFailed(f"--to-datetime: {error}") from error
    if shift_by is not None:
        given.append(Target(Kind.SHIFT, shift_by))
    if len(given) != 1:
        raise CommandFailed(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
        )
    return given[0]


def parse_topics(given: Sequence[str]) -> dict[str, list[int] | None]:
    """Parses `orders:0,1` to {orders: [0, 1]}. A topic alone means all its partitions (None)."""
    topics: dict[str, list[int] | None] = {}
    for item in given:
        name, separator, numbers = item.partition(":")
        parts = numbers.split(",") if separator else []
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise CommandFailed(f"--topic {printable(item)}: write TOPIC or TOPIC:0,1,2")
        topics[name] = [int(part) for part in parts] if separator else None
    return topics


def moves_json(
    moves: Sequence[Move], outcomes: Mapping[TopicPartition, BrokerError | None]
) -> list[dict[str, object]]:
    done = {topic_partition for topic_partition, error in outcomes.items() if error is None}
    return [
        {
            "topic": move.topic_partition.topic,
            "partition": move.topic_partition.partition,
            "from_offset": move.committed,
            "to_offset": move.offset,
            "lag": move.lag,
            "done": move.topic_partition in done,
        }
        for move in moves
    ]


def show(moves: Sequence[Move], *, executed: bool) -> None:
    columns = (
        Column("topic"),
        Column("partition", right=True),
        Column("from", right=True),
        Column("to", right=True),
        Column("lag then", right=True),
    )
    rows = [
        (
            move.topic_partition.topic,
            move.topic_partition.partition,
            move.committed,
            move.offset,
            move.lag,
        )
        for move in moves
    ]
    emit(table(columns, rows))
    emit(
        "\nthe offsets were set"
        if executed
        else "\nnothing was changed: add --execute to set the offsets"
    )
