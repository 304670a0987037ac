"""Where a reset would move a group: asked of the cluster, bounded by what the logs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from penstock.cli.output import CommandFailed, printable
from penstock.cli.session import EXIT_REFUSED
from penstock.cli.times import parse_time_ms
from penstock.client.administration import Admin, When
from penstock.client.errors import BrokerError, TopicNotFound
from penstock.client.model import TopicPartition
from penstock.runtime import SystemClock
from penstock.wire.errors import ErrorCode

_MOVABLE_STATES = ("Empty", "Dead")


class Kind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIME = auto()
    SHIFT = auto()


class Target(NamedTuple):
    kind: Kind
    value: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    place: TopicPartition
    committed: int | None
    offset: int
    next_offset: int

    @property
    def lag(self) -> int:
        return self.next_offset - self.offset

    def json(self, done: bool) -> dict[str, object]:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "from_offset": self.committed,
            "to_offset": self.offset,
            "lag": self.lag,
            "done": done,
        }


def target(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
) -> Target:
    """The one target that was given; none or several are wrong usage."""
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
    """`orders:0,1` as {orders: [0, 1]}; a topic alone means all its partitions."""
    topics: dict[str, list[int] | None] = {}
    for item in given:
        name, separator, numbers = item.partition(":")
        parts = numbers.split(",") if separator else []
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise CommandFailed(f"--topic {printable(item)}: write TOPIC or TOPIC:0,1,2")
        topics[name] = [int(part) for part in parts] if separator else None
    return topics


async def plan(
    admin: Admin, group: str, topics: Mapping[str, list[int] | None], goal: Target
) -> list[Move]:
    await _refuse_members(admin, group)
    committed = await admin.group_offsets(group)
    places = await _places(admin, topics) if topics else list(committed)
    if not places:
        return []
    starts = await offsets_at(admin, places, "earliest")
    ends = await offsets_at(admin, places, "latest")
    wanted = await offsets_at(admin, places, goal.value) if goal.kind is Kind.TIME else {}
    moves = []
    for place in sorted(places):
        start, end = starts[place], ends[place]
        at = committed[place].offset if place in committed else None
        match goal.kind:
            case Kind.EARLIEST:
                offset = start
            case Kind.LATEST:
                offset = end
            case Kind.OFFSET:
                offset = goal.value
            case Kind.TIME:
                offset = wanted.get(place, end)
            case Kind.SHIFT:
                if at is None:
                    raise CommandFailed(
                        f"{place} has no committed offset to shift: use another target"
                    )
                offset = at + goal.value
        moves.append(Move(place, at, min(max(offset, start), end), end))
    return moves


async def offsets_at(
    admin: Admin, places: Sequence[TopicPartition], when: When
) -> dict[TopicPartition, int]:
    """Partitions of which no record is that young are left out."""
    found = await admin.list_offsets(dict.fromkeys(places, when))
    return {place: at.offset for place, at in found.items() if at is not None}


async def _refuse_members(admin: Admin, group: str) -> None:
    try:
        info = await admin.describe_group(group)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return  # setting offsets makes the group
        raise
    if info.state not in _MOVABLE_STATES:
        raise CommandFailed(
            f"group {printable(group)} is {info.state} with {len(info.members)} members, which "
            "would commit over it: stop its consumers first",
            EXIT_REFUSED,
        )


async def _places(admin: Admin, topics: Mapping[str, list[int] | None]) -> list[TopicPartition]:
    places = []
    for name, partitions in topics.items():
        number = len((await admin.describe_topic(name)).partitions)
        for partition in range(number) if partitions is None else partitions:
            if partition >= number:
                raise TopicNotFound(name, partition)
            places.append(TopicPartition(name, partition))
    return places
