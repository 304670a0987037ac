"""The operations of a metadata store inside one SQLite transaction.

All functions block, and run on executor threads. Each change of the store, whether a commit or a
sweep of expired leases, is one revision, and all keys that it changes get that revision. A commit
that changes nothing uses none.

Leases are shared by processes, so their deadlines use the machine's wall clock. It is read inside
the transaction that uses it, after the write lock is held. The wall clock may be changed:

- Forward, or the machine slept: each handle compares the wall clock with the monotonic clock. If it
  finds a jump, it renews all leases before it sweeps any. So no live holder loses a lease, and a
  dead holder is noticed one time to live after the last handle found the jump.
- Back: a lease is never valid for more than its time to live from now; a deadline further ahead is
  reduced. Again, a dead holder is noticed after one more time to live at the latest.

Leases are for noticing dead holders, not for safety. Writes that depend on a lease compare a key
under it, and fail if that key was deleted with the lease.

Every writing transaction begins with a sweep: leases past their deadline are deleted with their
keys. All processes read the same wall clock, so they agree on when that is. The holder counts its
time to live from before it requested the renewal, the deadline counts from after that, and the
sweep adds a grace period (`GRACE_MS`). So the holder knows that its lease may be over before any
other process ends it.

A lease past its deadline that has not been swept can still be renewed by its holder, because no
process can have seen it end. So a process that was suspended for a while need not start over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.ports import Committed, Compare, Delete, KeyValue, Put, WatchEvent
from penstock.stores.errors import LeaseNotFound, RevisionNotKept

PRUNE_EVERY_REVISIONS: Final = 256
WATCH_REVISIONS_MAX: Final = 1000
GRACE_MS: Final = 1000
"""The grace period of a lease past its deadline before others end it; at most a quarter of its time
to live."""
_LEASE: Final = "SELECT id, ttl_ms, deadline_ms FROM leases"
_ENTRY: Final = "SELECT key, value, create_revision, modify_revision, lease FROM entries"


class Transaction:
    """One writing transaction. The caller begins it, and commits it or rolls it back."""

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self._now_ms = now_ms
        row = connection.execute("SELECT revision FROM state").fetchone()
        self.started_at: int = row[0]
        self.revision = self.started_at

    def commit(self, compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> Committed:
        for change in changes:
            if isinstance(change, Put) and change.lease and not self._lease_exists(change.lease):
                raise LeaseNotFound(change.lease)
        if not all(self._holds(compare) for compare in compares):
            return Committed(succeeded=False, revision=self.revision)
        self._write(changes)
        return Committed(succeeded=True, revision=self.revision)

    def grant_lease(self, ttl_ms: int) -> int:
        cursor = self._connection.execute(
            "INSERT INTO leases (ttl_ms, deadline_ms) VALUES (?, ?)",
            (ttl_ms, self._now_ms + ttl_ms),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def revoke_leases(self, leases: Collection[int]) -> None:
        changes: list[Delete] = []
        for lease in leases:
            self._connection.execute("DELETE FROM leases WHERE id = ?", (lease,))
            rows = self._connection.execute(
                "SELECT key FROM entries WHERE lease = ? AND lease != 0", (lease,)
            )
            changes.extend(Delete(key) for (key,) in rows)
        self._write(sorted(changes, key=lambda change: change.key))

    def sweep(self, held: Collection[int], *, is_patient: bool = False) -> None:
        """Ends the leases that are past their deadline and grace period, except those that are
        `held` here.

        With `is_patient`, the grace period is a whole time to live, because the machine may have
        stalled.
        """
        now_ms = self._now_ms
        rows = self._connection.execute(f"{_LEASE} WHERE deadline_ms <= ?", (now_ms,)).fetchall()
        expired = [
            lease
            for lease, ttl_ms, deadline_ms in rows
            if lease not in held
            and deadline_ms + (ttl_ms if is_patient else _grace_ms(ttl_ms)) <= now_ms
        ]
        if expired:
            self.revoke_leases(expired)
        self._connection.execute(
            "UPDATE leases SET deadline_ms = ?1 + ttl_ms WHERE deadline_ms > ?1 + ttl_ms",
            (now_ms,),
        )

    def renew_all_leases(self) -> None:
        self._connection.execute("UPDATE leases SET deadline_ms = ? + ttl_ms", (self._now_ms,))

    def finish(self, revisions_kept: int) -> None:
        """Stores the revision, and occasionally deletes changes that are no longer kept."""
        if self.revision == self.started_at:
            return
        self._connection.execute("UPDATE state SET revision = ?", (self.revision,))
        if self.revision // PRUNE_EVERY_REVISIONS != self.started_at // PRUNE_EVERY_REVISIONS:
            first_kept = self.revision - revisions_kept + 1
            self._connection.execute("DELETE FROM changes WHERE revision < ?", (first_kept,))
            self._connection.execute(
                "UPDATE state SET first_kept = ?1 WHERE first_kept < ?1", (first_kept,)
            )

    def _holds(self, compare: Compare) -> bool:
        row = self._connection.execute(
            "SELECT modify_revision FROM entries WHERE key = ?", (compare.key,)
        ).fetchone()
        return (0 if row is None else row[0]) == compare.modify_revision

    def _lease_exists(self, lease: int) -> bool:
        row = self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone()
        return row is not None

    def _write(self, changes: Sequence[Put | Delete]) -> None:
        revision = self.revision + 1
        log: list[tuple[int, int, str, bytes | None]] = []
        for change in changes:
            if isinstance(change, Put):
                self._connection.execute(
                    "INSERT INTO entries VALUES (?1, ?2, ?3, ?3, ?4) ON CONFLICT (key) DO UPDATE "
                    "SET value = ?2, modify_revision = ?3, lease = ?4",
                    (change.key, change.value, revision, change.lease),
                )
                log.append((revision, len(log), change.key, change.value))
            else:
                cursor = self._connection.execute(
                    "DELETE FROM entries WHERE key = ?", (change.key,)
                )
                if cursor.rowcount:
                    log.append((revision, len(log), change.key, None))
        if log:
            self._connection.executemany("INSERT INTO changes VALUES (?, ?, ?, ?)", log)
            self.revision = revision


@dataclass(frozen=True, slots=True)
class Changes:
    """What a watch reads at once: events up to, but not including, `next_revision`.

    `lease_deadline_ms` is when the first lease must be ended; None if there are none.
    """

    events: Sequence[WatchEvent]
    next_revision: int
    at_end: bool
    lease_deadline_ms: int | None


def read_one(connection: sqlite3.Connection, key: str) -> KeyValue | None:
    row = connection.execute(f"{_ENTRY} WHERE key = ?", (key,)).fetchone()
    return None if row is None else KeyValue(*row)


def read_range(connection: sqlite3.Connection, prefix: str) -> tuple[list[KeyValue], int]:
    """Reads all entries with this prefix, and the revision. Must run in a transaction of the
    caller, or the revision might not match the entries."""
    revision: int = connection.execute("SELECT revision FROM state").fetchone()[0]
    end = prefix_end(prefix)
    if end is None:
        rows = connection.execute(f"{_ENTRY} WHERE key >= ? ORDER BY key", (prefix,))
    else:
        rows = connection.execute(
            f"{_ENTRY} WHERE key >= ? AND key < ? ORDER BY key", (prefix, end)
        )
    return [KeyValue(*row) for row in rows], revision


def read_changes(
    connection: sqlite3.Connection,
    prefix: str,
    from_revision: int,
    held: Collection[int] = (),
) -> Changes:
    """Reads changes from a revision on. Must run in a transaction of the caller. Revisions are
    never split. `held` leases are ignored."""
    revision, first_kept = connection.execute("SELECT revision, first_kept FROM state").fetchone()
    if from_revision < first_kept:
        raise RevisionNotKept(from_revision, first_kept)
    deadline = min(
        (
            deadline_ms + _grace_ms(ttl_ms)
            for lease, ttl_ms, deadline_ms in connection.execute(_LEASE)
            if lease not in held
        ),
        default=None,
    )
    if revision < from_revision:
        return Changes((), from_revision, at_end=True, lease_deadline_ms=deadline)
    last = min(revision, from_revision + WATCH_REVISIONS_MAX - 1)
    rows = connection.execute(
        "SELECT key, value, revision FROM changes WHERE revision BETWEEN ? AND ? "
        "ORDER BY revision, position",
        (from_revision, last),
    )
    events = tuple(WatchEvent(*row) for row in rows if row[0].startswith(prefix))
    return Changes(events, last + 1, at_end=last == revision, lease_deadline_ms=deadline)


def _grace_ms(ttl_ms: int) -> int:
    return min(GRACE_MS, ttl_ms // 4)


def prefix_end(prefix: str) -> str | None:
    """Returns the first key after all that begin with the prefix; None if there is no such key.

    SQLite compares texts by their UTF-8 bytes, which is the order of code points.
    """
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1])
        if code < 0x10FFFF:
            # Surrogates are not characters and cannot be encoded in UTF-8.
            after = 0xE000 if code == 0xD7FF else code + 1
            return prefix[: length - 1] + chr(after)
    return None
