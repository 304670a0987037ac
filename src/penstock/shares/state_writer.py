"""Writes the state log of one partition, for all share groups that read the partition. Pure.

    handle(event, now)      returns effects; the shell carries them out in order

Deltas that arrive in one turn of the event loop, or while an append is under way, are appended as
one batch: a group commit. At most one append is under way. So whenever a batch is built, everything
before it is settled, and `images` is exactly what the log has.

A group gets a snapshot at the start of a batch after `snapshot_after` deltas. Nothing below the
oldest snapshot of a group is needed, so the log is trimmed there. A group that is seldom used would
keep the log long: it gets a snapshot when `trim_after` records follow its last one.

Deltas and resets of a group are stored in the order of their events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import Append, LogRecord, Now, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.records.batch import HEADER_SIZE
from penstock.shares.formats import delta_record, removal_record, snapshot_record
from penstock.shares.image import Delta, ShareImage
from penstock.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class WriterSettings:
    batch_bytes_max: int = 1_000_000
    snapshot_after: int = 500
    trim_after: int = 10_000


@dataclass(frozen=True, slots=True)
class Store:
    """A share partition's `Write`."""

    group_id: str
    write_id: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Reset:
    """The group begins with this image, or is removed. Its share partition was dropped before."""

    token: Token
    group_id: str
    image: ShareImage | None


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Follows `FlushSoon`: the turn of the event loop is over."""


@dataclass(frozen=True, slots=True)
class AppendCommitted:
    append_id: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The records are not in the log, and never will be."""

    append_id: int
    error: ErrorCode


Event = Store | Reset | TurnEnded | AppendCommitted | AppendFailed


@dataclass(frozen=True, slots=True)
class FlushSoon:
    """Send `TurnEnded` at the end of this turn of the event loop."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to `Store`. `error` is NONE if the delta is committed."""

    group_id: str
    write_id: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The answer to `Reset`."""

    token: Token
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Nothing below this offset is needed any more."""

    offset: int


Effect = FlushSoon | Append | Stored | ResetDone | TrimLog
Entry = Store | Reset


@dataclass(slots=True)
class StoredGroup:
    """A group in the state log: what a load has found, or what was written since."""

    image: ShareImage
    snapshot_offset: int
    """Where its last snapshot is in the state log."""
    deltas: int = 0
    """How many deltas follow it."""


@dataclass(frozen=True, slots=True)
class _Batch:
    append_id: int
    entries: list[Entry]
    snapshots: list[str]
    """Groups whose snapshots begin the batch, before the records of the entries."""


class StateWriter:
    """See the module's docstring."""

    def __init__(
        self, settings: WriterSettings, groups: dict[str, StoredGroup], end_offset: int
    ) -> None:
        """`groups` is what the state log has, and `end_offset` where it ends."""
        self.settings = settings
        self.groups = groups
        self._end_offset = end_offset
        self._trimmed = self._oldest()
        self._waiting: deque[Entry] = deque()
        self._under_way: _Batch | None = None
        self._next_append_id = 0
        self._is_flush_asked = False
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        """The number of deltas and resets that are not settled."""
        return len(self._waiting) + (len(self._under_way.entries) if self._under_way else 0)

    def handle(self, event: Event, now: Now) -> list[Effect]:
        _HANDLERS[type(event)](self, event, now)
        effects, self._effects = self._effects, []
        return effects

    def _on_entry(self, event: Entry, now: Now) -> None:
        self._waiting.append(event)
        if self._under_way is None and not self._is_flush_asked:
            self._is_flush_asked = True
            self._effects.append(FlushSoon())

    def _on_turn_ended(self, event: TurnEnded, now: Now) -> None:
        self._is_flush_asked = False
        if self._under_way is None:
            self._append(now)

    def _on_committed(self, event: AppendCommitted, now: Now) -> None:
        batch = self._take(event.append_id)
        offset = event.base_offset
        for group_id in batch.snapshots:
            group = self.groups[group_id]
            group.snapshot_offset, group.deltas = offset, 0
            offset += 1
        for entry in batch.entries:
            self._apply(entry, offset)
            offset += 1
        self._end_offset = offset
        for entry in batch.entries:
            self._answer(entry, ErrorCode.NONE)
        oldest = self._oldest()
        if oldest > self._trimmed:
            self._trimmed = oldest
            self._effects.append(TrimLog(oldest))
        self._append(now)

    def _on_failed(self, event: AppendFailed, now: Now) -> None:
        batch = self._take(event.append_id)
        for group_id in batch.snapshots:
            # The snapshot may be what failed. The next deltas are stored without it.
            self.groups[group_id].deltas = 0
        for entry in batch.entries:
            self._answer(entry, event.error)
        self._append(now)

    # Batches

    def _append(self, now: Now) -> None:
        """Appends what waits, up to the size of a batch."""
        entries: list[Entry] = []
        known = set(self.groups)
        records: list[LogRecord] = []
        size = HEADER_SIZE
        while self._waiting:
            entry = self._waiting[0]
            if isinstance(entry, Store) and entry.group_id not in known:
                self._waiting.popleft()
                self._answer(entry, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            record = _record(entry)
            size += record_bytes(record)
            if entries and size > self.settings.batch_bytes_max:
                break
            entries.append(self._waiting.popleft())
            records.append(record)
            if isinstance(entry, Reset):
                known = (
                    known - {entry.group_id} if entry.image is None else known | {entry.group_id}
                )
        if not entries:
            return
        room = self.settings.batch_bytes_max - size
        snapshots = self._due_snapshots({entry.group_id for entry in entries}, room)
        append_id, self._next_append_id = self._next_append_id, self._next_append_id + 1
        self._under_way = _Batch(append_id, entries, list(snapshots))
        everything = (*snapshots.values(), *records)
        self._effects.append(Append(append_id, everything, now.wall_ms))

    def _due_snapshots(self, touched: set[str], room: int) -> dict[str, LogRecord]:
        """Returns the snapshots that begin the next batch, as far as they fit into it."""
        due = {
            group_id
            for group_id in touched & self.groups.keys()
            if self.groups[group_id].deltas >= self.settings.snapshot_after
        }
        coldest = min(
            self.groups, key=lambda group_id: self.groups[group_id].snapshot_offset, default=None
        )
        if coldest is not None:
            behind = self._end_offset - self.groups[coldest].snapshot_offset
            if behind > self.settings.trim_after:
                due.add(coldest)
        snapshots: dict[str, LogRecord] = {}
        for group_id in sorted(due):
            record = snapshot_record(group_id, self.groups[group_id].image)
            room -= record_bytes(record)
            if room < 0:
                break
            snapshots[group_id] = record
        return snapshots

    def _apply(self, entry: Entry, offset: int) -> None:
        if isinstance(entry, Store):
            group = self.groups[entry.group_id]
            group.image.apply(entry.delta)
            group.deltas += 1
        elif entry.image is None:
            self.groups.pop(entry.group_id, None)
        else:
            self.groups[entry.group_id] = StoredGroup(entry.image.copy(), offset)

    def _answer(self, entry: Entry, error: ErrorCode) -> None:
        if isinstance(entry, Store):
            self._effects.append(Stored(entry.group_id, entry.write_id, error))
        else:
            self._effects.append(ResetDone(entry.token, error))

    def _take(self, append_id: int) -> _Batch:
        batch, self._under_way = self._under_way, None
        if batch is None or batch.append_id != append_id:
            raise InvariantViolated(f"append {append_id} was reported, but is not under way")
        return batch

    def _oldest(self) -> int:
        """Where the oldest snapshot is that is still needed."""
        offsets = (group.snapshot_offset for group in self.groups.values())
        return min(offsets, default=self._end_offset)


def _record(entry: Entry) -> LogRecord:
    if isinstance(entry, Store):
        return delta_record(entry.group_id, entry.delta)
    if entry.image is None:
        return removal_record(entry.group_id)
    return snapshot_record(entry.group_id, entry.image)


_HANDLERS: Final[dict[type, Callable[[StateWriter, Any, Now], None]]] = {
    Store: StateWriter._on_entry,
    Reset: StateWriter._on_entry,
    TurnEnded: StateWriter._on_turn_ended,
    AppendCommitted: StateWriter._on_committed,
    AppendFailed: StateWriter._on_failed,
}
