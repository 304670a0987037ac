"""Packs records into Kafka's batch format as they arrive. Pure.

Each record is packed into the batch's bytes at once, and nothing else of the record is kept. So
buffered data is as large as what will be sent, and the limit of the buffer is a limit on memory.
The header is written, and the records are compressed, when the batch is first sent. Only then is
the batch's position in the order final, and with it the numbers by which the broker recognizes the
batch (producer, epoch, sequence). A batch that must be renumbered is stamped again.

Batches of tables arrive already sealed; from then on they are treated the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from penstock.client.model import Headers
from penstock.client.producing.batch_outcome import BatchOutcome
from penstock.records.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Codec,
)
from penstock.records.batch import seal as reseal
from penstock.records.kernels import append_record
from penstock.records.record import finish_batch, read_records
from penstock.topic_partition import TopicPartition

RECORD_OVERHEAD: Final = 36
"""The maximum size of a record's own fields, in addition to key, value and headers."""
BATCH_OVERHEAD: Final = 1024
"""The memory that a batch takes in addition to its records, with a margin."""
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_POSITION: Final = 43
_ATTRIBUTES_POSITION: Final = 22
"""The position of the lower byte of the attributes. The byte before it is still unused."""
_HEADER_OVERHEAD: Final = 10


def grown(size: int) -> int:
    """Returns the memory of a bytearray that was filled gradually: an eighth more in the worst
    case."""
    return size + (size >> 3)


def record_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns an upper bound on the size of a record in a batch."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    for name, content in headers:
        # A character takes four bytes at most, and header names are short.
        size += 4 * len(name) + len(content or b"") + _HEADER_OVERHEAD
    return size


class Batch:
    """A record batch from its first record until it is acknowledged or has failed."""

    __slots__ = (
        "abandoned",
        "attempts",
        "base_timestamp",
        "charge",
        "count",
        "created_at",
        "data",
        "deadline",
        "due",
        "epoch",
        "is_resolved",
        "is_transactional",
        "max_timestamp",
        "number",
        "outcome",
        "packed",
        "producer_id",
        "record_bytes",
        "sequence",
        "topic_partition",
        "uncertain",
    )

    def __init__(
        self, topic_partition: TopicPartition, number: int, created_at: float, deadline: float
    ):
        self.topic_partition = topic_partition
        self.number = number
        """The batches of a partition are sent in the order of this number. It has no other
        meaning."""
        self.outcome = BatchOutcome(topic_partition)
        self.created_at = created_at
        self.deadline = deadline
        self.count = 0
        self.packed: bytearray = bytearray(HEADER_SIZE)
        self.data: bytearray | memoryview | None = None
        """The bytes to send; None until the batch is sealed."""
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.charge = 0
        """How many bytes of the buffer it occupies."""
        self.record_bytes = 0
        """The size before compression, where known. Set when the batch is sealed."""
        self.due = False
        """Whether it may be sent although it is not full."""
        self.attempts = 0
        self.uncertain = False
        """Whether an attempt ended without an answer, so that it may have been written."""
        self.is_resolved = False
        """Whether the broker no longer needs to remember its numbers."""
        self.abandoned = False
        """Whether it timed out while a request with it was in flight."""
        self.is_transactional = False
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.sequence = NO_SEQUENCE

    @property
    def size(self) -> int:
        return len(self.packed) if self.data is None else len(self.data)

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> int:
        """Packs one record and returns its size in bytes."""
        count = self.count
        if not count:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count = count + 1
        size: int = append_record(
            self.packed, count, timestamp - self.base_timestamp, key, value, headers
        )
        return size

    def fill(self, data: bytearray | memoryview, count: int) -> None:
        """Takes over a batch that was packed and sealed elsewhere."""
        self.data = data
        self.count = count
        self.record_bytes = len(data) - HEADER_SIZE
        self.packed = bytearray()

    def seal(self, codec: Codec, level: int | None) -> bytearray | memoryview:
        """Returns the bytes to send: compressed, with header and CRC."""
        if self.data is not None:
            return self.data
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=int(codec) | (TRANSACTIONAL if self.is_transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            record_count=self.count,
        )
        self.record_bytes = len(self.packed) - HEADER_SIZE
        self.data = finish_batch(self.packed, header, level)
        self.packed = bytearray()
        return self.data

    def stamp(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Numbers the batch. Must not be called while a request with its bytes is in flight."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        if self.data is not None:
            if self.is_transactional:
                self.data[_ATTRIBUTES_POSITION] |= TRANSACTIONAL
            _PRODUCER.pack_into(self.data, _PRODUCER_POSITION, producer_id, epoch, sequence)
            reseal(self.data, 0, len(self.data))

    @property
    def is_numbered(self) -> bool:
        return self.sequence != NO_SEQUENCE

    def halves(self) -> tuple[Batch, Batch]:
        """Returns two batches with the records of this one. Its outcome must be split among theirs.

        They keep its numbers: nothing of it was written, so its sequences are free, and batches
        sent after it keep their own.
        """
        assert self.data is not None and self.count > 1
        records = read_records(self.data)
        middle = (len(records) + 1) // 2
        return self._part(records[:middle], 0), self._part(records[middle:], middle)

    def _part(
        self,
        records: Sequence[tuple[int, int, bytes | None, bytes | None, Headers]],
        start: int,
    ) -> Batch:
        part = Batch(self.topic_partition, self.number, self.created_at, self.deadline)
        part.is_transactional = self.is_transactional
        for _, timestamp, key, value, headers in records:
            part.append(timestamp, key, value, headers)
        part.charge = BATCH_OVERHEAD + grown(len(part.packed))
        if self.is_numbered:
            sequence = (self.sequence + start) & 0x7FFFFFFF
            part.stamp(self.producer_id, self.epoch, sequence)
        return part

    def __repr__(self) -> str:
        name = f"Batch {self.number} of {self.topic_partition}"
        return f"<{name}: {self.count} records, seq {self.sequence}>"
