"""Records which sends were acknowledged and what readers got, and reports every contradiction.

Every record is a whole number that is sent once in the whole run: its producer's number times a
thousand million, plus how many that producer sent before. So a number identifies its producer and
its position in that producer's order. Finding it twice, nowhere, in another partition or too early
are four different complaints. A record that a reader got at an offset must stay there forever: if a
second read finds another number, the first one read something that was not committed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

NUMBERS_PER_PRODUCER = 10**9
SHOWN = 5


@dataclass
class Verdict:
    """Counts of each kind of error, each with a few examples in `complaints`."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    misplaced: int = 0
    """Acknowledged with a wrong offset, or stored in a partition they were not sent to."""
    changed: int = 0
    """Offsets at which two reads found different numbers."""
    unread: int = 0
    """Acknowledged and in the log, but not delivered to some consumer group."""
    failed: int = 0
    """Failed in the client after all its retries."""
    complaints: list[str] = field(default_factory=list)
    lost_numbers: list[int] = field(default_factory=list)
    duplicated_numbers: list[int] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.complaints

    def add(self, kind: str, found: list[int]) -> None:
        if found:
            setattr(self, kind, getattr(self, kind) + len(found))
            self.complaints.append(f"{len(found)} {kind}: {found[:SHOWN]}")


class Ledger:
    """Shared by all producers and readers of a run. All methods are thread-safe."""

    def __init__(self, partitions: int, groups: tuple[str, ...]) -> None:
        self.partitions = partitions
        self.groups = groups
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Number -> partition, and the reported offset; -1 if the client did not report one."""
        self.failures: list[str] = []
        self.hung_clients = 0
        """Clients of other libraries that hung, and were replaced."""
        self._lock = threading.Lock()
        self._counts = [0] * partitions
        self._logs: list[dict[int, int]] = [{} for _ in range(partitions)]
        self._homes: dict[int, tuple[int, int]] = {}
        self._twice: list[int] = []
        self._changed: list[int] = []
        self._read: dict[str, set[int]] = {group: set() for group in groups}
        self._unread: dict[str, set[int]] = {group: set() for group in groups}
        """Acknowledged and not delivered to the group yet."""
        self._last_ack_s = [time.monotonic()] * partitions
        self._gap_s = [0.0] * partitions
        self._latencies_s: list[float] = []

    # -- called by producers and readers ----------------------------------------------------------

    def on_acknowledged(self, number: int, partition: int, offset: int, sent_s: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._latencies_s.append(now - sent_s)
            self.acknowledged[number] = (partition, offset)
            self._counts[partition] += 1
            for group, read in self._read.items():
                if number not in read:
                    self._unread[group].add(number)
            gap, self._last_ack_s[partition] = now - self._last_ack_s[partition], now
            self._gap_s[partition] = max(self._gap_s[partition], gap)

    def on_failed(self, number: int, why: str) -> None:
        self.failures.append(f"{number} failed: {why}")

    def on_read(self, group: str, partition: int, offset: int, number: int) -> None:
        with self._lock:
            self._read[group].add(number)
            self._unread[group].discard(number)
            before = self._logs[partition].setdefault(offset, number)
            if before != number:
                self._changed.append(number)
            home = self._homes.setdefault(number, (partition, offset))
            if home != (partition, offset):
                self._twice.append(number)

    # -- queries ----------------------------------------------------------------------------------

    def count(self) -> list[int]:
        """Returns how many records are acknowledged so far, by partition."""
        with self._lock:
            return list(self._counts)

    def last_ack_s(self, partition: int) -> float:
        return self._last_ack_s[partition]

    def mark(self) -> None:
        """Starts a new measurement of gaps; a gap that has begun counts from its beginning."""
        with self._lock:
            self._gap_s = [0.0] * self.partitions
            self._latencies_s.clear()

    def latency_s(self, share: float) -> float:
        """Returns the latency quantile `share` of the records acknowledged since the mark."""
        with self._lock:
            ordered = sorted(self._latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def gap_s(self, partition: int) -> float:
        """Returns the longest time without an acknowledgement since the mark, until now."""
        with self._lock:
            return max(self._gap_s[partition], time.monotonic() - self._last_ack_s[partition])

    def unread(self, group: str) -> set[int]:
        """Returns the records that are acknowledged and not delivered to this group."""
        with self._lock:
            return set(self._unread[group])

    def partition_of(self, number: int) -> int:
        """Returns the partition of a record that was acknowledged or read."""
        return (self.acknowledged.get(number) or self._homes[number])[0]

    def first_unread(self, group: str) -> dict[int, int]:
        """Returns where this group is stuck: partition -> the first offset that it lacks."""
        positions = sorted(
            (self.acknowledged[number] for number in self.unread(group)), reverse=True
        )
        return dict(positions)

    def verdict(self) -> Verdict:
        """Returns everything that is wrong, after all readers had the time to read everything."""
        with self._lock:
            found = Verdict()
            found.failed = len(self.failures)
            found.complaints += self.failures[:SHOWN]
            found.lost_numbers = sorted(self.acknowledged.keys() - self._homes.keys())
            found.add("lost", found.lost_numbers)
            found.duplicated_numbers = sorted(set(self._twice))
            found.add("duplicated", found.duplicated_numbers)
            found.add("changed", sorted(set(self._changed)))
            found.add("reordered", self._reordered())
            found.add(
                "misplaced",
                [
                    number
                    for number, (partition, offset) in self.acknowledged.items()
                    if number in self._homes
                    and self._homes[number] != (partition, offset)
                    and not (offset < 0 and self._homes[number][0] == partition)
                ],
            )
            for missing in self._unread.values():
                found.add("unread", sorted(missing - set(found.lost_numbers)))
            return found

    def _reordered(self) -> list[int]:
        wrong = []
        for log in self._logs:
            latest: dict[int, int] = {}
            for _, number in sorted(log.items()):
                producer = number // NUMBERS_PER_PRODUCER
                if number < latest.get(producer, -1):
                    wrong.append(number)
                latest[producer] = max(number, latest.get(producer, -1))
        return wrong
