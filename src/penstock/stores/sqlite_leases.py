"""Renews leases in the SQLite file, on a separate connection and thread.

A broker that cannot renew its lease in time loses all its leaderships, so a renewal waits for as
little as possible:

- It does not wait for the disk. The connection has `synchronous=NORMAL`, so a commit only writes to
  the write-ahead log. A power loss may undo a renewal, but it ends the holder as well. The next
  commit of metadata syncs the whole log, renewals included.
- It does not wait long for the lock. SQLite pauses up to 100 ms between two attempts, so it may
  miss the short gaps between busy writers. Here an attempt is made every few milliseconds.
- It does not wait for the event loop. `hold` makes a thread renew a lease that the event loop has
  not renewed for a third of its time to live. The thread does so for `carry_s` after the last
  request of the event loop: an event loop that hangs permanently must not keep its leaderships.

A handle never ends a lease that it holds itself (`held`). Other handles end it after its deadline.
So a process that is alone never loses its lease, however slow its disk is.

If the whole machine stalls, all holders are late by the same amount. The thread notices that it was
late, and for a short time this handle gives the other holders more time (`is_patient`).
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Final

from penstock.ports import Clock
from penstock.stores import sqlite_file
from penstock.stores.errors import StoreBusy, StoreClosed, StoreError

ATTEMPT_MS: Final = 5
PULSE_S: Final = 0.25
STALL_S: Final = 1.0
REST_S: Final = 1.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    ttl_s: float
    carry_until: float
    renewed_at: float
    """When the last successful renewal was sent."""


class LeaseRenewer:
    """Renews leases. `renew`, `open` and `close` block and must run on threads; the rest is for the
    event loop."""

    def __init__(self, path: str, clock: Clock, busy_timeout_ms: int) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout_ms = busy_timeout_ms
        self._attempts = max(1, busy_timeout_ms // ATTEMPT_MS)
        self._lock = Lock()
        self._raw: sqlite3.Connection | None = None
        self._held: dict[int, _Held] = {}
        self._stop = Event()
        self._thread: Thread | None = None
        self._pulse_at = 0.0
        self._rest_until = float("-inf")

    def open(self) -> None:
        with self._lock:
            self._raw = sqlite_file.connect_for_renewals(
                self._path, self._busy_timeout_ms, ATTEMPT_MS
            )

    def renew(self, lease: int) -> float | None:
        """Renews the lease. Returns its time to live in seconds; None if it no longer exists."""
        with self._lock:
            if self._raw is None:
                raise StoreClosed(f"the metadata store {self._path} was closed: open it again")
            for left in reversed(range(self._attempts)):
                try:
                    with sqlite_file.translated(self._path):
                        return self._renew(self._raw, lease)
                except StoreBusy:
                    if not left:
                        raise
        raise AssertionError("unreachable")

    def _renew(self, connection: sqlite3.Connection, lease: int) -> float | None:
        with sqlite_file.transaction(connection, "IMMEDIATE"):
            # Read the clock while the lock is held: the deadline counts from this moment.
            connection.execute(
                "UPDATE leases SET deadline_ms = ? + ttl_ms WHERE id = ?",
                (self._clock.wall_ms(), lease),
            )
            row = connection.execute("SELECT ttl_ms FROM leases WHERE id = ?", (lease,)).fetchone()
        return None if row is None else row[0] / 1000

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._raw is not None:
                self._raw.close()
                self._raw = None

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def hold(self, lease: int, ttl_s: float, sent_at: float, carry_s: float) -> None:
        """Records that the event loop renewed the lease at `sent_at`. From now on the thread
        helps."""
        self._held[lease] = _Held(ttl_s, sent_at + carry_s, sent_at)
        if self._thread is None and not self._stop.is_set():
            self._pulse_at = self._clock.monotonic()
            self._thread = Thread(target=self._run, name="penstock-leases", daemon=True)
            self._thread.start()

    def release(self, lease: int) -> None:
        self._held.pop(lease, None)

    @property
    def is_patient(self) -> bool:
        """Whether this process, and so perhaps the whole machine, stalled a moment ago."""
        if self._thread is None:
            return False
        now = self._clock.monotonic()
        return now - self._pulse_at > STALL_S or now < self._rest_until

    def _run(self) -> None:
        while not self._stop.wait(PULSE_S):
            now = self._clock.monotonic()
            if now - self._pulse_at > STALL_S:
                self._rest_until = now + REST_S
            self._pulse_at = now
            for lease, held in list(self._held.items()):
                if held.renewed_at + held.ttl_s / 3 <= now < held.carry_until:
                    self._carry(lease, held, now)

    def _carry(self, lease: int, held: _Held, now: float) -> None:
        try:
            alive = self.renew(lease) is not None
        except StoreError as error:
            _log.warning(
                "the background thread cannot renew a lease in the metadata store; retrying: %s",
                error,
            )
            return
        self._pulse_at = self._clock.monotonic()
        if alive:
            held.renewed_at = now
        else:
            # The event loop finds out with its own next renewal.
            self._held.pop(lease, None)
