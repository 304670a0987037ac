"""Recognizes records with an id that another record had shortly before. Pure.

Records are given in the order of their offsets, with their timestamps. A record is a duplicate if
the last record with its id has a timestamp that differs by less than the window. Whether that one
was a duplicate itself does not matter: so what one window of the log holds decides, and a new
leader that reads the same records decides the same.

At most `ids_max` ids are remembered, the last ones. Ids are remembered as digests, so long ones
cost no more.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

IDS_MAX: Final = 100_000
_DIGEST_BYTES: Final = 16


class DuplicateFinder:
    __slots__ = ("_ids_max", "_newest_ms", "_times", "_window_ms", "forgotten")

    def __init__(self, window_ms: int, ids_max: int = IDS_MAX) -> None:
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._newest_ms = 0
        self._times: dict[bytes, int] = {}
        """The timestamps of ids, those that were seen last at the end."""
        self.forgotten = 0
        """Ids that were dropped before their time because there were too many."""

    def __len__(self) -> int:
        return len(self._times)

    def is_duplicate(self, record_id: bytes, time_ms: int) -> bool:
        """Returns whether the record is a duplicate, and remembers it."""
        digest = blake2b(record_id, digest_size=_DIGEST_BYTES).digest()
        before_ms = self._times.pop(digest, None)
        self._times[digest] = time_ms
        self._newest_ms = max(self._newest_ms, time_ms)
        self._forget()
        return before_ms is not None and abs(time_ms - before_ms) < self._window_ms

    def _forget(self) -> None:
        times = self._times
        while times:
            first = next(iter(times))
            if times[first] <= self._newest_ms - self._window_ms:
                del times[first]
            elif len(times) > self._ids_max:
                del times[first]
                self.forgotten += 1
            else:
                break
