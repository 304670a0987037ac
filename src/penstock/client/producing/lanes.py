"""One partition's batches: filling, waiting, on their way, come back. Pure.

    open -> waiting -> in flight -> gone
               ^           |
               +-- returned, when all that was in flight has been answered

Batches leave in the order of their numbers and no other. Numbered lanes (idempotence) have up to
five batches in flight, since the broker refuses what comes out of order; the others have one, so
that their order holds by itself. `sequences` says why each rule is as it is.

Invariants: in flight, returned and waiting are each in order, and in this order among each other
once nothing is in flight; only what has been sent is numbered; nothing is taken while the lane
`is_recovering`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.model import TopicPartition
from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import Identity, Numbering

NOBODY: Final = -1


class Lane:
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
        "place",
        "queued_bytes",
        "resting_until",
        "returned",
        "waiting",
    )

    def __init__(self, place: TopicPartition, batch_bytes_max: int) -> None:
        self.place = place
        self.batch_bytes_max = batch_bytes_max
        """A batch that is larger is closed; lowered when the broker takes only smaller ones."""
        self.open: Batch | None = None
        self.open_bytes_max = batch_bytes_max
        """The same for the batch that is open."""
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.queued_bytes = 0
        """What is charged for all batches of the lane."""
        self.leader = NOBODY
        """The broker that has what is in flight."""
        self.has_joined = True
        """Whether the partition takes part in the transaction, or there is none."""
        self.resting_until = 0.0
        self.failures = 0
        """Rounds in a row that ended with something to send again."""
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
        """Whether there is something that may be sent as it is."""
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
        """Bytes of the batch that `take` would return."""
        if self.waiting:
            return self.waiting[0].size
        assert self.open is not None
        return self.open.size

    def take(self, leader: int, identity: Identity | None) -> Batch:
        """The next batch, now in flight; numbered if there is an identity."""
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
        """Whether nothing unresolved comes before it."""
        return not self.returned and bool(self.in_flight) and self.in_flight[0] is batch

    def on_done(self, batch: Batch) -> None:
        self.in_flight.remove(batch)
        if batch.is_numbered:
            self.numbering.on_written(batch)
        self.failures = 0
        self.last_error = None

    def on_refused(self, batch: Batch) -> None:
        """It is gone for good."""
        self.in_flight.remove(batch)
        if batch.is_numbered:
            self.numbering.on_gone(batch)
            # What was sent behind it will be found out of order, and must be waited for.
            self.is_recovering = bool(self.in_flight)

    def on_returned(self, batch: Batch, *, renumber: bool = False) -> None:
        """To be sent again."""
        self.in_flight.remove(batch)
        self.returned.append(batch)
        self._renumber = self._renumber or renumber
        self.is_recovering = True

    def on_split(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """To be sent again in parts."""
        self.in_flight.remove(batch)
        self.returned.extend(parts)
        self.is_recovering = True
        if batch.is_numbered:
            self.numbering.on_split(batch, parts)

    def settle_round(self) -> bool:
        """With nothing in flight any more, put what came back in front; True if something did."""
        if self.in_flight:
            return False
        self.is_recovering = False
        came_back = bool(self.returned)
        # Parts of one batch share its number, and sorting keeps their order.
        self.returned.sort(key=lambda batch: batch.number)
        self.waiting.extendleft(reversed(self.returned))
        self.returned.clear()
        return came_back

    def try_renumber(self, identity: Identity | None) -> bool:
        """Once nothing is in flight; False while a new producer id is needed for it."""
        if not self._renumber or self.in_flight:
            return True
        if identity is None or not self.numbering.begin_again(identity):
            return False
        self._renumber = False
        return True

    # -- giving up ------------------------------------------------------------------------------

    def discard(self, batch: Batch) -> None:
        """Forget a batch that is not in flight."""
        if batch.is_numbered:
            self.numbering.on_gone(batch)
        if self.open is batch:
            self.open = None
        elif batch in self.returned:
            self.returned.remove(batch)
        else:
            self.waiting.remove(batch)
