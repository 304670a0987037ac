"""What goes into the client and comes out of it, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock.records.batch import TimestampType

K = TypeVar("K")
V = TypeVar("V")
Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


# Not frozen: a frozen dataclass takes three times as long to make, and a consumer makes one for
# every record it returns.
@dataclass(slots=True)
class Record(Generic[K, V]):
    """One record as a consumer received it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; -1 when the producer gave none."""
    key: K
    value: V
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """The last value of the header with this name, as Kafka's clients have it."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where an acknowledged record is. With acks=0 nobody knows: the offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position to commit: the next offset to read, and a note for whoever reads it back."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OpenTransaction(NamedTuple):
    """A transaction that somebody else than its producer ends."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
