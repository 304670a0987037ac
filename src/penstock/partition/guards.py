"""Guards: a transactional batch is appended only while its transaction is known to be open.

If a producer's transaction is open in a partition, its next batch there needs no verification. For
the first batch the leader asks the coordinator to confirm that the partition is in the transaction,
or to add it (KIP-890), and that takes time. Meanwhile the leader holds a guard. It becomes void
when a marker or a batch of the producer is appended. Without guards, a batch that was verified, and
then overtaken by the marker that ends its transaction, would open a transaction that is never
ended.

A guard also remembers the lowest sequence that is being verified: if that batch fails and is sent
again, a later one that was verified must not be accepted before it.

Guards exist only in the leader's memory. If they are lost, batches are verified again.
"""

from __future__ import annotations

from typing import NamedTuple

NO_GUARD = 0
"""A guard that is never valid: nothing was verified."""


class Verification(NamedTuple):
    """The result of verifying a client's transactional batch with the coordinator.

    `guard` comes from `begin_verification`, and is set once the coordinator has confirmed the
    transaction. `numbers_from_zero` is true where each transaction has its own producer epoch
    (Produce 12 and above).
    """

    guard: int = NO_GUARD
    numbers_from_zero: bool = False


class _Guard:
    __slots__ = ("epoch", "lowest_sequence", "number", "since_ms")

    def __init__(self, number: int, epoch: int, sequence: int, now_ms: int) -> None:
        self.number = number
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.since_ms = now_ms


class Guards:
    """The guards of one partition, at most one per producer id."""

    __slots__ = ("_by_producer", "_last_number")

    def __init__(self) -> None:
        self._by_producer: dict[int, _Guard] = {}
        self._last_number = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> int:
        """Returns the number of a guard to hold during verification, from 1 on; batches may share
        it."""
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
        """Returns the sequence that must come first while a guard is held; None if any may."""
        guard = self._by_producer.get(producer_id)
        return guard.lowest_sequence if guard is not None and guard.epoch == epoch else None

    def end(self, producer_id: int) -> None:
        """Voids the guard: a batch or a marker of the producer was appended."""
        self._by_producer.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Drops guards that were never used."""
        self._by_producer = {
            producer_id: guard
            for producer_id, guard in self._by_producer.items()
            if now_ms - guard.since_ms < expiration_ms
        }

    def clear(self) -> None:
        self._by_producer.clear()
