"""The records that a member holds, each with a lock, and how many more it may fetch. Pure.

A *lease* is one delivery of one record. It is buffered until the caller takes it, then held until
the caller settles it. A record that is delivered again while an earlier lease of it exists ends
that lease: a leader cannot tell the two apart, so settling the old one would settle the new one.

If the caller has settled the earlier lease, and the leader that delivers the record again has not
answered, the acknowledgement that waits settles the new delivery. So it makes no lease: a caller
would get a record that is done.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from penstock.client.sharing.acquired import AcquiredRow
from penstock.client.sharing.membership import SharePart
from penstock.topic_partition import TopicPartition


class LeaseState(Enum):
    BUFFERED = auto()
    HELD = auto()
    SETTLING = auto()
    """The caller has settled it; the leader has not answered yet."""
    SETTLED = auto()
    LOST = auto()


_OPEN = frozenset({LeaseState.BUFFERED, LeaseState.HELD})


# Not frozen: a lease changes its state.
@dataclass(slots=True, eq=False)
class Lease:
    """One delivery of one record."""

    part: SharePart
    topic_partition: TopicPartition
    broker_id: int
    """The leader that has the lock."""
    found: AcquiredRow
    acquired_at: float
    locked_until: float
    state: LeaseState = LeaseState.BUFFERED
    renewing: bool = False

    @property
    def offset(self) -> int:
        return self.found.row[0]

    @property
    def is_open(self) -> bool:
        """Whether it can still be settled."""
        return self.state in _OPEN


class Room(NamedTuple):
    """How much a fetch may bring."""

    records: int
    nbytes: int
    is_turn: bool
    """Whether other leaders wait for their turn, so that the fetch must not wait for long."""


class LeaseTable:
    """All leases of a member."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self.records_max = records_max
        self.bytes_max = bytes_max
        self.buffer: deque[Lease] = deque()
        self.held_bytes = 0
        self.is_paused = False
        """Whether nothing more is to be fetched for now."""
        self.expired = 0
        """Records that were dropped because their lock was over before the caller took them."""
        self._leases: dict[tuple[SharePart, int], Lease] = {}
        self._by_broker: Counter[int] = Counter()
        self._reserved: dict[int, Room] = {}
        self._turns: dict[int, int] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    # -- leases ---------------------------------------------------------------------------------

    def add(self, lease: Lease) -> bool:
        """Returns False if an acknowledgement of this record waits for the same leader."""
        key = lease.part, lease.offset
        earlier = self._leases.get(key)
        if earlier is not None:
            is_same = earlier.broker_id == lease.broker_id
            if is_same and earlier.state is LeaseState.SETTLING:
                return False
            self.end(earlier, LeaseState.LOST)
        self._leases[key] = lease
        self._by_broker[lease.broker_id] += 1
        self.held_bytes += lease.found.size
        self.buffer.append(lease)
        return True

    def take(self, now: float) -> Lease | None:
        """Returns the next buffered lease whose lock is not over."""
        while self.buffer:
            lease = self.buffer.popleft()
            if lease.state is not LeaseState.BUFFERED:
                continue
            if lease.locked_until <= now:
                self.expired += 1
                self.end(lease, LeaseState.LOST)
                continue
            lease.state = LeaseState.HELD
            return lease
        return None

    def end(self, lease: Lease, state: LeaseState) -> None:
        """Ends a lease. Only the first end counts."""
        if lease.state in (LeaseState.SETTLED, LeaseState.LOST):
            return
        lease.state = state
        self._by_broker[lease.broker_id] -= 1
        key = lease.part, lease.offset
        if self._leases.get(key) is lease:
            del self._leases[key]
        self.held_bytes -= lease.found.size

    def holds(self, broker_id: int) -> bool:
        """Whether there are leases of this leader that have not ended."""
        return self._by_broker[broker_id] > 0

    # -- room -----------------------------------------------------------------------------------

    @property
    def is_hungry(self) -> bool:
        """Whether it is time to fetch. Not for every single record that was settled."""
        buffered = len(self.buffer)
        free = self._free_records()
        return (
            not self.is_paused
            and free > 0
            and (buffered == 0 or free >= max(1, self.records_max // 4))
        )

    def room(self, broker_id: int, waiting: Iterable[int]) -> Room | None:
        """Returns what a fetch from this leader may bring; None if it must wait.

        `waiting` are all leaders that could be fetched from now, this one included. Those that
        waited longest come first if there is not enough room for all.
        """
        free_records = self._free_records()
        free_bytes = self.bytes_max - self.held_bytes
        free_bytes -= sum(room.nbytes for room in self._reserved.values())
        if not self.is_hungry or free_bytes <= 0:
            return None
        queue = sorted(set(waiting) | {broker_id}, key=lambda each: self._turns.get(each, 0))
        if queue.index(broker_id) >= free_records:
            return None
        shares = min(len(queue), free_records)
        room = Room(free_records // shares, max(1, free_bytes // shares), free_records < len(queue))
        self._reserved[broker_id] = room
        self._turn += 1
        self._turns[broker_id] = self._turn
        return room

    def give_back(self, broker_id: int) -> None:
        """The fetch has ended: what it brought counts now, and not what it could have brought."""
        self._reserved.pop(broker_id, None)

    def _free_records(self) -> int:
        reserved = sum(room.records for room in self._reserved.values())
        return self.records_max - len(self._leases) - reserved
