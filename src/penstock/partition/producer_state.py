"""The state that a partition keeps for one producer: its epoch and its last five batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from penstock.records.batch import NO_SEQUENCE, NO_TIMESTAMP

BATCHES_REMEMBERED: Final = 5
NO_COORDINATOR_EPOCH: Final = -1
NO_OFFSET: Final = -1

_SEQUENCE_MASK: Final = 0x7FFFFFFF
# Half the sequence space: beyond it, "older" and "newer" cannot be distinguished.
_SPAN_MAX: Final = 1 << 30
_BATCH: Final = Struct(">iiqq")  # last sequence, offset delta, last offset, timestamp
_HISTORY_BYTES_MAX: Final = _BATCH.size * BATCHES_REMEMBERED


class Duplicate(NamedTuple):
    """The batch is already in the log, at these offsets."""

    base_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(NamedTuple):
    """A producer and one of its batches, as a snapshot stores it.

    `last_offset` and `last_sequence` are -1 for a producer known only by a marker.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_transaction_first_offset: int


class ProducerState:
    """The state of one producer in one partition.

    The batches are packed into one `bytes` object: 24 bytes per batch instead of five Python
    objects. Only retries read them; for batches in sequence `next_sequence` is enough.
    """

    __slots__ = (
        "appended_ms",
        "coordinator_epoch",
        "epoch",
        "history",
        "last_timestamp",
        "next_sequence",
        "span",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.span = 0
        """How many sequences up to the newest are known to be in the log without a gap."""
        self.last_timestamp = NO_TIMESTAMP
        """The timestamp of its last batch or marker, as set by the client or the coordinator."""
        self.appended_ms = NO_TIMESTAMP
        """When its last batch or marker was appended here, by this broker's clock. After a restart
        only an upper bound may be known."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.transaction_first_offset = NO_OFFSET
        self.history = b""

    def enter_epoch(self, epoch: int) -> None:
        """Forgets the batches of the previous epoch, if this one is different."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.next_sequence = 0
            self.span = 0
            self.history = b""

    def remember(
        self,
        base_sequence: int,
        last_sequence: int,
        offset_delta: int,
        last_offset: int,
        timestamp: int,
    ) -> None:
        if base_sequence == NO_SEQUENCE:
            self.span = 0
        elif self.history and base_sequence != self.next_sequence:
            self.span = offset_delta + 1
        else:
            self.span = min(self.span + offset_delta + 1, _SPAN_MAX)
        self.next_sequence = (last_sequence + 1) & _SEQUENCE_MASK
        self.last_timestamp = timestamp
        history = self.history + _BATCH.pack(last_sequence, offset_delta, last_offset, timestamp)
        self.history = history[-_HISTORY_BYTES_MAX:]

    def batches(self) -> Iterable[tuple[int, int, int, int]]:
        """Returns the remembered batches, oldest first."""
        return _BATCH.iter_unpack(self.history)

    def last_batch(self) -> tuple[int, int, int, int]:
        if not self.history:
            return NO_SEQUENCE, 0, NO_OFFSET, NO_TIMESTAMP
        return _BATCH.unpack_from(self.history, len(self.history) - _BATCH.size)

    def find(self, base_sequence: int, last_sequence: int) -> Duplicate | None:
        """Returns where the batch with exactly these sequences is in the log, if it is
        remembered."""
        for last, delta, last_offset, timestamp in self.batches():
            if last == last_sequence and first_sequence(last, delta) == base_sequence:
                return Duplicate(last_offset - delta, last_offset, timestamp)
        return None

    def is_known_and_older(self, base_sequence: int, last_sequence: int) -> bool:
        """Returns whether all these sequences were appended in this epoch, before `batches`."""
        if not self.history or base_sequence == NO_SEQUENCE:
            return False
        newest = self.next_sequence - 1
        last, delta, _, _ = _BATCH.unpack_from(self.history, 0)
        window = (newest - first_sequence(last, delta)) & _SEQUENCE_MASK
        age_of_first = (newest - base_sequence) & _SEQUENCE_MASK
        age_of_last = (newest - last_sequence) & _SEQUENCE_MASK
        return window < age_of_last <= age_of_first < self.span

    def load(self, entry: ProducerEntry) -> None:
        """Adds the next entry of this producer in a snapshot."""
        self.enter_epoch(entry.epoch)
        self.coordinator_epoch = entry.coordinator_epoch
        self.transaction_first_offset = entry.current_transaction_first_offset
        if entry.last_offset >= 0:
            self.remember(
                first_sequence(entry.last_sequence, entry.offset_delta),
                entry.last_sequence,
                entry.offset_delta,
                entry.last_offset,
                entry.timestamp,
            )
        self.last_timestamp = entry.timestamp

    def entries(self, producer_id: int, batches: int) -> Iterator[ProducerEntry]:
        """Yields the entries of up to `batches` batches for a snapshot, oldest first. The last one
        has the open transaction."""
        earlier = list(self.batches())[-batches:-1]
        for last_sequence, delta, last_offset, timestamp in earlier:
            yield ProducerEntry(
                producer_id,
                self.epoch,
                last_sequence,
                last_offset,
                delta,
                timestamp,
                self.coordinator_epoch,
                NO_OFFSET,
            )
        last_sequence, delta, last_offset, _ = self.last_batch()
        yield ProducerEntry(
            producer_id,
            self.epoch,
            last_sequence,
            last_offset,
            delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.transaction_first_offset,
        )


def first_sequence(last_sequence: int, delta: int) -> int:
    if last_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (last_sequence - delta) & _SEQUENCE_MASK
