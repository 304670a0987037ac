"""The console's snapshot of the queues: share groups and their topics. Pure.

`Queues` replaces it as it polls the cluster. Pages are made from the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.client.queues.dead_letters import DeadLetters
from penstock.client.queues.queue_stats import GroupQueues, QueueStats
from penstock.console.history import History, Scope

DETAILED_MAX: Final = 20
"""If there are at most this many queues, all figures of each are recorded. Otherwise only the
depth, and the rest for those that a page has shown in the last hour."""


class QueueName(NamedTuple):
    topic: str
    group: str

    @property
    def scope(self) -> Scope:
        """The name of its history. A topic's name has no slash."""
        return "queue", f"{self.topic}/{self.group}"


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A share group as it was seen last."""

    found: GroupQueues
    letters_topic: str | None
    """The dead-letter topic; empty if there is none, None if the user may not see the setting."""
    letters: DeadLetters | None
    """None: there are none, or the user may not see them."""


@dataclass(frozen=True, slots=True)
class Queue:
    stats: QueueStats
    group: KnownGroup

    @property
    def members(self) -> int:
        """The members that have partitions of the topic."""
        return sum(
            any(where.topic == self.stats.topic for where in member.assignment)
            for member in self.group.found.info.members
        )

    @property
    def put(self) -> int:
        """Offsets that were ever written."""
        return sum(part.end_offset for part in self.stats.partitions)

    def as_row(self) -> dict[str, Any]:
        stats, letters = self.stats, self.group.letters
        return {
            "topic": stats.topic,
            "group": stats.group,
            "state": stats.state,
            "members": self.members,
            "depth": stats.depth,
            "in_flight": stats.in_flight,
            "redelivered": stats.redelivered,
            "oldest_ms": stats.oldest_ms,
            "letters_topic": self.group.letters_topic,
            "letters": None if letters is None else letters.waiting,
        }


@dataclass(slots=True)
class QueueTable:
    queues: dict[QueueName, Queue] = field(default_factory=dict)
    unlisted: int = 0
    """Share groups that were not looked at, because there are too many."""
    is_surveyed: bool = False

    def replace(
        self, groups: Mapping[str, KnownGroup], unlisted: int
    ) -> dict[QueueName, Queue | None]:
        """Stores what was found. Returns each queue as it was before; None if it is new."""
        before = self.queues
        self.queues = {
            QueueName(stats.topic, stats.group): Queue(stats, known)
            for known in groups.values()
            for stats in known.found.queues
        }
        self.unlisted = unlisted
        self.is_surveyed = True
        return {name: before.get(name) for name in self.queues}

    def named(self, search: str) -> list[QueueName]:
        """Returns the queues whose topic and group have all words of the search."""
        words = search.casefold().split()
        return [
            name
            for name in sorted(self.queues)
            if all(word in f"{name.topic} {name.group}".casefold() for word in words)
        ]

    def record(
        self,
        history: History,
        now_ms: int,
        seconds: float,
        before: Mapping[QueueName, Queue | None],
    ) -> None:
        """Records the figures. `seconds` is the time since the last call; 0 at first."""
        since_ms = now_ms - int(seconds * 1000)
        few = len(self.queues) <= DETAILED_MAX
        for name, queue in self.queues.items():
            stats = queue.stats
            depth: dict[str, float] = {"not done": stats.depth}
            values: dict[str, dict[str, float]] = {"depth": depth}
            if few or history.is_followed(name.scope, now_ms):
                if stats.in_flight is not None:
                    depth["in flight"] = stats.in_flight
                values |= _details(queue, now_ms)
                last = before.get(name)
                if seconds > 0 and last is not None:
                    values["rates"] = _rates(last, queue, seconds)
            history.record(name.scope, since_ms, now_ms, values)


def _details(queue: Queue, now_ms: int) -> dict[str, dict[str, float]]:
    stats, letters = queue.stats, queue.group.letters
    values: dict[str, dict[str, float]] = {"members": {"members": queue.members}}
    if not stats.depth:
        values["oldest_s"] = {"oldest job": 0}
    elif stats.oldest_ms is not None:
        values["oldest_s"] = {"oldest job": max(0, now_ms - stats.oldest_ms) / 1000}
    if stats.redelivered is not None:
        values["redelivered"] = {"delivered before": stats.redelivered}
    if letters is not None:
        values["letters"] = {"dead letters": letters.waiting}
    return values


def _rates(last: Queue, queue: Queue, seconds: float) -> dict[str, float]:
    """Jobs per second that were put and done. Markers of transactions count as jobs."""
    done = (queue.put - queue.stats.depth) - (last.put - last.stats.depth)
    return {"put": max(0, queue.put - last.put) / seconds, "done": max(0, done) / seconds}


def partition_rows(stats: QueueStats) -> list[dict[str, Any]]:
    return [
        {
            "partition": part.partition,
            "start_offset": part.start_offset,
            "end_offset": part.end_offset,
            "depth": part.depth,
            "in_flight": part.in_flight,
            "redelivered": part.redelivered,
            "oldest_ms": part.oldest_ms,
        }
        for part in stats.partitions
    ]


def member_rows(known: KnownGroup, topic: str) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "partitions": _partitions(member.assignment, topic),
        }
        for member in known.found.info.members
    ]


def _partitions(assignment: Sequence[Any], topic: str) -> list[int]:
    return sorted(where.partition for where in assignment if where.topic == topic)
