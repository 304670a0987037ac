"""One partition's batches: filling, waiting, in flight, returned. Pure.

    open -> waiting -> in flight -> gone
               ^           |
               +-- returned, once everything that was in flight has been answered

Batches are sent in the order of their numbers. Numbered lanes (idempotence) have up to five batches
in flight, because the broker refuses batches that are out of order. Other lanes have only one in
flight, which keeps their order. `sequences` gives the reasons for each rule.

Invariants: the batches in flight, returned and waiting are each in order, and in this order among
each other once nothing is in flight; only batches that have been sent are numbered; nothing is
taken while the lane `is_recovering`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import Identity, Numbering
from penstock.topic_partition import TopicPartition

NOBODY: Final = -1


class Lane:
    """The batches of one partition. See the module's docstring."""

    __slots__ = (
        "_renumber",
        "batch_bytes_max",
        "failures",
        "has_joined",
        "in_flight",
        "is_recovering",
        "last_error",
        "leader",
        "numbering",
        "open",
        "open_bytes_max",
        "queued_bytes",
        "resting_until",
        "returned",
        "topic_partition",
        "waiting",
    )

    def __init__(self, topic_partition: TopicPartition, batch_bytes_max: int) -> None:
        self.topic_partition = topic_partition
        self.batch_bytes_max = batch_bytes_max
        """A batch that would be larger is closed. Lowered when the broker accepts only smaller
        ones."""
        self.open: Batch | None = None
        self.open_bytes_max = batch_bytes_max
        """The same limit for the open batch."""
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.queued_bytes = 0
        """The sum of the charges of all batches of the lane."""
        self.leader = NOBODY
        """The broker to which the batches in flight were sent."""
        self.has_joined = True
        """Whether the partition is part of the transaction, or there is no transaction."""
        self.resting_until = 0.0
        self.failures = 0
        """How many rounds in a row ended with something to send again."""
        self.last_error: ClientError | None = None
        self.is_recovering = False
        self.numbering = Numbering()
        self.returned: list[Batch] = []
        self._renumber = False

    def limit_batches(self, bytes_max: int) -> None:
        self.batch_bytes_max = min(self.batch_bytes_max, bytes_max)
        self.open_bytes_max = min(self.open_bytes_max, bytes_max)

    # -- sending --------------------------------------------------------------------------------

    def close_open(self) -> None:
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    @property
    def has_due(self) -> bool:
        """Whether there is a batch that may be sent now."""
        return bool(self.waiting) or (self.open is not None and self.open.due)

    def may_send(self, leader: int, now: float, *, numbered: bool) -> bool:
        if now < self.resting_until or self.is_recovering or self._renumber or not self.has_due:
            return False
        if not numbered:
            return not self.in_flight
        if self.in_flight and not (self.leader == leader and self.numbering.is_confirmed):
            return False
        batch = self.waiting[0] if self.waiting else self.open
        assert batch is not None
        return self.numbering.may_send(batch)

    def next_size(self) -> int:
        """Returns the size of the batch that `take` would return."""
        if self.waiting:
            return self.waiting[0].size
        assert self.open is not None
        return self.open.size

    def take(self, leader: int, identity: Identity | None) -> Batch:
        """Puts the next batch in flight and returns it. Numbers it if there is an identity."""
        if not self.waiting:
            self.close_open()
        batch = self.waiting.popleft()
        if identity is not None and not batch.is_numbered:
            self.numbering.number(batch, identity)
        self.leader = leader
        self.in_flight.append(batch)
        batch.attempts += 1
        return batch

    # -- answers --------------------------------------------------------------------------------

    def is_first(self, batch: Batch) -> bool:
        """Returns whether no unresolved batch precedes this one."""
        return not self.returned and bool(self.in_flight) and self.in_flight[0] is batch

    def on_done(self, batch: Batch) -> None:
        self.in_flight.remove(batch)
        if batch.is_numbered:
            self.numbering.on_written(batch)
        self.failures = 0
        self.last_error = None

    def on_refused(self, batch: Batch) -> None:
        """Removes a batch that will not be sent again."""
        self.in_flight.remove(batch)
        if batch.is_numbered:
            self.numbering.on_gone(batch)
            # The batches sent after it will be refused as out of order. Wait for their answers.
            self.is_recovering = bool(self.in_flight)

    def on_returned(self, batch: Batch, *, renumber: bool = False) -> None:
        """Marks a batch to be sent again."""
        self.in_flight.remove(batch)
        self.returned.append(batch)
        self._renumber = self._renumber or renumber
        self.is_recovering = True

    def on_split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Marks a batch to be sent again in parts."""
        self.in_flight.remove(batch)
        self.returned.extend(parts)
        self.is_recovering = True
        if batch.is_numbered:
            self.numbering.on_split(batch, parts)

    def settle_round(self) -> bool:
        """Once nothing is in flight, queues the returned batches first. Returns True if there were
        any."""
        if self.in_flight:
            return False
        self.is_recovering = False
        came_back = bool(self.returned)
        # Parts of one batch share its number, and the sort keeps their order.
        self.returned.sort(key=lambda batch: batch.number)
        self.waiting.extendleft(reversed(self.returned))
        self.returned.clear()
        return came_back

    def try_renumber(self, identity: Identity | None) -> bool:
        """Starts a new numbering if one is needed and nothing is in flight. Returns False while it
        needs a new producer id."""
        if not self._renumber or self.in_flight:
            return True
        if identity is None or not self.numbering.begin_again(identity):
            return False
        self._renumber = False
        return True

    # -- timeouts and failures ------------------------------------------------------------------

    def discard(self, batch: Batch) -> None:
        """Removes a batch that is not in flight."""
        if batch.is_numbered:
            self.numbering.on_gone(batch)
        if self.open is batch:
            self.open = None
        elif batch in self.returned:
            self.returned.remove(batch)
        else:
            self.waiting.remove(batch)
