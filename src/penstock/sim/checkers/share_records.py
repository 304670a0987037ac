"""Follows the topics of share groups, and their topics for dead letters.

I24  A dead letter is for a record that its group has given up durably, and has not archived yet. It
     has the delivery count and the reason that are stored, and the record itself if the group
     copies records. A record has at most one.

`share_states` asks here when a record is due, when it expires, and whether it has a dead letter.
The times are those that the producer has written, compared with the clock of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.shares.dead_letters import letter_headers
from penstock.records.job_headers import DELIVER_AT, EXPIRES_AT, time_in
from penstock.records.record import Record
from penstock.shares.events import DeadLetter
from penstock.shares.share_schedule import FAR_MS
from penstock.shares.states import GiveUpReason, RecordState
from penstock.sim.checkers.coordinator_log import CoordinatorLog
from penstock.sim.checkers.metadata_invariants import InvariantBroken, broken

Source = tuple[str, str, int]
"""A group, a topic partition and an offset."""
WallRange = Callable[[int | None, float, float], tuple[int, int]]
"""Takes a broker, or None for all, and a period in virtual milliseconds. Returns the lowest and the
highest time that the clock has shown meanwhile."""


class Written(NamedTuple):
    """A record, as its producer has written it."""

    value: bytes
    due_ms: int = 0
    expires_ms: int | None = None
    is_far: bool = False
    """It is due so long after its timestamp that it is scheduled, and the window passes over it."""


class StoredRecord(NamedTuple):
    """What is stored of a record in the log of the share coordinator."""

    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    reason: GiveUpReason = GiveUpReason.NONE


def _now_only(broker: int | None, begun_ms: float, ended_ms: float) -> tuple[int, int]:
    return int(begun_ms), int(ended_ms)


@dataclass(slots=True)
class ShareRecords:
    """The committed records of these topics."""

    wall_range: WallRange = _now_only
    has_letters: bool = False
    copies_records: bool = False
    written: dict[tuple[str, int], Written] = field(default_factory=dict)
    """By topic partition and offset."""
    letters: dict[Source, int] = field(default_factory=dict)
    """By record: the offset of its dead letter."""
    last_due_ms: int = 0
    """The latest due time of all records."""

    def is_far(self, name: str, offset: int) -> bool:
        found = self.written.get((name, offset))
        return found is not None and found.is_far

    def is_due(self, name: str, offset: int, wall_ms: int) -> bool:
        found = self.written.get((name, offset))
        return found is None or found.due_ms <= wall_ms

    def is_expired(self, name: str, offset: int, wall_ms: int) -> bool:
        found = self.written.get((name, offset))
        return found is not None and found.expires_ms is not None and found.expires_ms <= wall_ms

    def may_be_expired(self, name: str, offset: int, now_ms: float) -> bool:
        """Returns whether the record has expired by the clock of any broker, at any time."""
        return self.is_expired(name, offset, self.wall_range(None, 0.0, now_ms)[1])

    def may_be_dropped(self, name: str, offset: int, now_ms: float) -> bool:
        """Returns whether the record may be skipped without a word: it has expired, and the groups
        have no dead letters. The log proves it, so it need not be stored."""
        return not self.has_letters and self.may_be_expired(name, offset, now_ms)

    def on_written(self, name: str, record: Record) -> None:
        due_ms, expires_ms = 0, None
        for header, value in record.headers:
            if header == DELIVER_AT:
                due_ms = time_in(value) or 0
            elif header == EXPIRES_AT:
                expires_ms = time_in(value)
        is_far = due_ms - record.timestamp > FAR_MS
        value = bytes(record.value or b"")
        self.written[name, record.offset] = Written(value, due_ms, expires_ms, is_far)
        self.last_due_ms = max(self.last_due_ms, due_ms)


class TopicRecords:
    """Notes what producers write to one topic."""

    def __init__(self, topic: str, records: ShareRecords) -> None:
        self.topic = topic
        self.names: dict[bytes, str] = {}
        self.broken: InvariantBroken | None = None
        self._records = records

    def on_committed(self, partition_name: str, offset: int, records: Iterable[Record]) -> None:
        for record in records:
            self._records.on_written(partition_name, record)


class TopicLetters:
    """Checks the dead letters of one group. `stored` returns what is stored of a record."""

    def __init__(
        self,
        topic: str,
        group: str,
        records: ShareRecords,
        stored: Callable[[str, str, int], StoredRecord],
    ) -> None:
        self.topic = topic
        self.names: dict[bytes, str] = {}
        self.broken: InvariantBroken | None = None
        self._group = group
        self._records = records
        self._stored = stored

    def on_committed(self, partition_name: str, offset: int, records: Iterable[Record]) -> None:
        for record in records:
            problem = self._problem(record)
            if problem:
                raise broken("I24", partition_name, f"group {self._group}: {problem}", offset)

    def _problem(self, record: Record) -> str:
        said = {name: bytes(value or b"").decode() for name, value in record.headers}
        topic, index = said["__dlq.errors.topic"], int(said["__dlq.errors.partition"])
        name, offset = f"{topic}-{index}", int(said["__dlq.errors.offset"])
        told = f"a dead letter for offset {offset} of {name}"
        source = self._group, name, offset
        if source in self._records.letters:
            return f"{told} was written at offsets {self._records.letters[source]}, {record.offset}"
        self._records.letters[source] = record.offset
        stored = self._stored(*source)
        if stored.state is not RecordState.ARCHIVING:
            return f"{told} was written, but the record is {stored.state.name}"
        letter = DeadLetter(offset, 0, stored.deliveries, stored.reason)
        expected = letter_headers(topic, index, self._group, letter)
        if any(said.get(header) != (value or b"").decode() for header, value in expected):
            return f"{told} says {said}, but {stored} is stored"
        if not self._records.copies_records:
            return "" if record.value is None else f"{told} has a copy of the record"
        written = self._records.written.get((name, offset))
        is_copy = written is not None and bytes(record.value or b"") == written.value
        return "" if is_copy else f"{told} has the value {record.value!r}, the record is {written}"


def logs_to_follow(
    records: ShareRecords,
    topics: Iterable[str],
    letter_topics: dict[str, str],
    stored: Callable[[str, str, int], StoredRecord],
) -> list[CoordinatorLog]:
    """Returns what checks these topics. `letter_topics` are those for dead letters, by group."""
    return [
        *(TopicRecords(topic, records) for topic in topics),
        *(TopicLetters(topic, group, records, stored) for group, topic in letter_topics.items()),
    ]
