"""The content of a ZooKeeper store as one handle knows it: a pure machine.

It changes only by log entries, which are applied in the order of their revisions, without a gap. So
all handles go through the same states. It also keeps the last changes for watches.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from penstock.ports import Compare, Delete, KeyValue, Put, WatchEvent
from penstock.stores.errors import RevisionNotKept
from penstock.stores.zk_format import LogEntry

HISTORY_REVISIONS: Final = 10_000
HISTORY_BYTES: Final = 64 << 20
"""How many changes a handle keeps for its watches, and the size of their keys and values."""


class _Applied(NamedTuple):
    entry_id: bytes
    events: tuple[WatchEvent, ...]
    size: int
    """In memory. The log entry may be much smaller, because it is compressed."""


class Replica:
    def __init__(self) -> None:
        self.revision = 0
        self.log_bytes = 0
        """The size of the entries that were applied since the last snapshot."""
        self._entries: dict[str, KeyValue] = {}
        self._order: list[str] = []
        self._by_lease: dict[int, set[str]] = {}
        self._history: deque[_Applied] = deque()
        self._history_bytes = 0

    @property
    def first_kept(self) -> int:
        """The first revision whose changes this handle still knows."""
        return self.revision - len(self._history) + 1

    def reset(self, entries: Iterable[KeyValue], revision: int) -> None:
        """Continues from a snapshot. The changes before it are not known."""
        self._entries = {entry.key: entry for entry in entries}
        self._order = sorted(self._entries)
        self._by_lease = {}
        for entry in self._entries.values():
            self._attach(entry.key, entry.lease)
        self._history.clear()
        self._history_bytes = self.log_bytes = 0
        self.revision = revision

    def apply(self, revision: int, entry: LogEntry) -> None:
        """Applies the log entry of a revision. Does nothing if it was applied already."""
        if revision <= self.revision:
            return
        if revision != self.revision + 1:
            raise AssertionError(f"revision {revision} does not follow {self.revision}")
        events = []
        for change in entry.changes:
            if isinstance(change, Put):
                self._put(change, revision)
                events.append(WatchEvent(change.key, change.value, revision))
            else:
                self._delete(change.key)
                events.append(WatchEvent(change.key, None, revision))
        self.revision = revision
        self.log_bytes += entry.size
        size = sum(len(event.key) + len(event.value or b"") for event in events)
        self._history.append(_Applied(entry.id, tuple(events), size))
        self._history_bytes += size
        while len(self._history) > HISTORY_REVISIONS or self._history_bytes > HISTORY_BYTES:
            self._history_bytes -= self._history.popleft().size

    def get(self, key: str) -> KeyValue | None:
        return self._entries.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        found = []
        for index in range(bisect_left(self._order, prefix), len(self._order)):
            key = self._order[index]
            if not key.startswith(prefix):
                break
            found.append(self._entries[key])
        return found

    def entries(self) -> list[KeyValue]:
        return list(self._entries.values())

    def holds(self, compares: Iterable[Compare]) -> bool:
        for compare in compares:
            entry = self._entries.get(compare.key)
            if (entry.modify_revision if entry else 0) != compare.modify_revision:
                return False
        return True

    def effective(self, changes: Sequence[Put | Delete]) -> list[Put | Delete]:
        """Returns the changes without deletions of keys that do not exist."""
        return [
            change for change in changes if isinstance(change, Put) or change.key in self._entries
        ]

    def keys_under(self, lease: int) -> list[str]:
        """Returns the keys that end with the lease, in order."""
        return sorted(self._by_lease.get(lease, ()))

    def entry_id(self, revision: int) -> bytes | None:
        """Returns the id of a log entry; None if it is not known (any more)."""
        index = revision - self.first_kept
        return self._history[index].entry_id if 0 <= index < len(self._history) else None

    def events(self, prefix: str, from_revision: int, revisions_max: int) -> list[WatchEvent]:
        """Returns the changes under the prefix from a revision on, of at most so many revisions."""
        start = from_revision - self.first_kept
        if start < 0:
            raise RevisionNotKept(from_revision, self.first_kept)
        # A deque finds an element in the middle slowly, but watches read near its end.
        left = len(self._history) - start
        if left <= 0:
            return []
        recent = [*islice(reversed(self._history), left)]
        recent.reverse()
        return [
            event
            for applied in recent[:revisions_max]
            for event in applied.events
            if event.key.startswith(prefix)
        ]

    def _put(self, change: Put, revision: int) -> None:
        before = self._entries.get(change.key)
        if before is None:
            insort(self._order, change.key)
        else:
            self._detach(before)
        created = before.create_revision if before else revision
        entry = KeyValue(change.key, change.value, created, revision, change.lease)
        self._entries[change.key] = entry
        self._attach(change.key, change.lease)

    def _delete(self, key: str) -> None:
        before = self._entries.pop(key, None)
        if before is not None:
            del self._order[bisect_left(self._order, key)]
            self._detach(before)

    def _attach(self, key: str, lease: int) -> None:
        if lease:
            self._by_lease.setdefault(lease, set()).add(key)

    def _detach(self, entry: KeyValue) -> None:
        if entry.lease:
            keys = self._by_lease[entry.lease]
            keys.discard(entry.key)
            if not keys:
                del self._by_lease[entry.lease]
