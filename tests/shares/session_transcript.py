"""Plays the scripts in `tests/scripts/share_sessions`: the share sessions of one broker.

A line at the margin is an event, what follows is indented below it. The text above the first empty
line says what the script shows. All members are of the group `g` and use a connection of their own,
unless the script says otherwise.

    limit 2                             group.share.max.share.sessions, before anything else
    anna fetches epoch 0: jobs-0 jobs-1
                                        the partitions that the request lists; also: (forgets
                                        jobs-0), (acknowledges), (by c2), (group h)
    anna acknowledges epoch 1           a ShareAcknowledge
    anna acquires jobs-0                the leader gave it records there
    connection anna is closed           the one that anna's session began on; also: c2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from penstock.shares.sessions import (
    Acknowledgements,
    ConnectionClosed,
    Effect,
    Fetch,
    GroupIdle,
    Proceed,
    Refuse,
    ReleaseRecords,
    SessionKey,
    SharedPartition,
    ShareSessions,
)

TOPIC = bytes(15) + b"\1"


class Player:
    def __init__(self) -> None:
        self.sessions = ShareSessions(100)
        self.output: list[str] = []
        self.events: tuple[tuple[str, Callable[..., None]], ...] = (
            (r"limit (\d+)", self._limit),
            (r"(\w+) fetches epoch (-?\d+)(?:: ([^(]+?))?(?: \((.+)\))?", self._fetch),
            (r"(\w+) acknowledges epoch (-?\d+)", self._acknowledge),
            (r"(\w+) acquires (\S+)", self._acquire),
            (r"connection (\w+) is closed", self._close),
        )

    def play(self, line: str) -> list[str]:
        self.output = []
        for pattern, act in self.events:
            found = re.fullmatch(pattern, line)
            if found is not None:
                act(*found.groups())
                return self.output
        raise AssertionError(f"no such event: {line}")

    def _limit(self, count: str) -> None:
        self.sessions.sessions_max = int(count)

    def _fetch(self, member: str, epoch: str, listed: str | None, given: str | None) -> None:
        options = dict(each.partition(" ")[::2] for each in (given or "").split(", ") if each)
        event = Fetch(
            SessionKey(options.pop("group", "g"), member),
            int(epoch),
            options.pop("by", member),
            partitions_in(listed or ""),
            partitions_in(options.pop("forgets", "")),
            options.pop("acknowledges", None) is not None,
        )
        assert not options, f"no such options: {options}"
        self._show(member, self.sessions.handle(event))

    def _acknowledge(self, member: str, epoch: str) -> None:
        effects = self.sessions.handle(Acknowledgements(SessionKey("g", member), int(epoch)))
        self._show(member, effects)

    def _acquire(self, member: str, partition: str) -> None:
        self.sessions.on_acquired(SessionKey("g", member), *partitions_in(partition))

    def _close(self, connection: str) -> None:
        self._show(connection, self.sessions.handle(ConnectionClosed(connection)))

    def _show(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Proceed(partitions):
                    self.output.append(f"{name}: proceed with {shown(partitions)}")
                case Refuse(error, is_held_back):
                    late = ", after max_wait_ms" if is_held_back else ""
                    self.output.append(f"{name} <- {error.name}{late}")
                case ReleaseRecords(key, partitions, with_backoff):
                    backoff = ", with back-off" if with_backoff else ""
                    self.output.append(
                        f"release what {key.member_id} has in {shown(partitions)}{backoff}"
                    )
                case GroupIdle(group_id):
                    self.output.append(f"{group_id} has no session any more")


def partitions_in(text: str) -> tuple[SharedPartition, ...]:
    return tuple(SharedPartition(TOPIC, int(each.rpartition("-")[2])) for each in text.split())


def shown(partitions: Iterable[SharedPartition]) -> str:
    return " ".join(f"jobs-{each.partition}" for each in partitions) or "nothing"
