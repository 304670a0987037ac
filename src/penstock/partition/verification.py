"""Guards: a transactional batch is appended only while its transaction is known to be open.

A partition with a producer's transaction open needs no proof for the next batch of it. For the
first one the leader asks the coordinator whether, or that, the partition is in the transaction
(KIP-890), and that takes time. A guard is what the leader holds meanwhile: it is void once a
marker, or a batch, of the producer was appended. Without it a batch that was verified, but then
overtaken by the marker that ends its transaction, would open one that nobody ever ends.

While a guard is out, the lowest sequence asked about is remembered: should its batch fail and be
sent again, a later one that got through must not be taken in its place.

Guards are the leader's memory only, and lost with it: batches are then verified anew.
"""

from __future__ import annotations

NO_GUARD = 0
"""A guard that never holds: nothing was verified."""


class _Guard:
    __slots__ = ("epoch", "lowest_sequence", "number", "since_ms")

    def __init__(self, number: int, epoch: int, sequence: int, now_ms: int) -> None:
        self.number = number
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.since_ms = now_ms


class Guards:
    """By producer id, at most one each."""

    __slots__ = ("_by_producer", "_last_number")

    def __init__(self) -> None:
        self._by_producer: dict[int, _Guard] = {}
        self._last_number = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> int:
        """A guard to hold while the coordinator is asked, from 1 up; batches may share one."""
        guard = self._by_producer.get(producer_id)
        if guard is None:
            self._last_number += 1
            guard = _Guard(self._last_number, epoch, sequence, now_ms)
            self._by_producer[producer_id] = guard
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
        elif epoch == guard.epoch and sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        return guard.number

    def holds(self, producer_id: int, number: int) -> bool:
        guard = self._by_producer.get(producer_id)
        return guard is not None and guard.number == number

    def lowest_sequence(self, producer_id: int, epoch: int) -> int | None:
        """The sequence that must come first while a guard is out; None when any may."""
        guard = self._by_producer.get(producer_id)
        return guard.lowest_sequence if guard is not None and guard.epoch == epoch else None

    def end(self, producer_id: int) -> None:
        """A batch or a marker of the producer was appended."""
        self._by_producer.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Drop those that were never used."""
        self._by_producer = {
            producer_id: guard
            for producer_id, guard in self._by_producer.items()
            if now_ms - guard.since_ms < expiration_ms
        }

    def clear(self) -> None:
        self._by_producer.clear()
