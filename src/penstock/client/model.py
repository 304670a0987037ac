"""The plain values that clients accept and return. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from penstock.records.batch import TimestampType
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
Headers = tuple[tuple[str, bytes | None], ...]


# Not frozen: creating a frozen dataclass takes three times as long, and a consumer creates one for
# every record.
@dataclass(slots=True)
class Record(Generic[K, V]):
    """One record as a consumer received it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; -1 if the producer gave none."""
    key: K
    value: V
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """Returns the last value of the header with this name, as Kafka's clients do."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of an acknowledged record. With acks=0 it is unknown, and the offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position to commit: the next offset to read, and a free text that is stored with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OpenTransaction(NamedTuple):
    """A transaction that was left open, to be ended by someone other than its producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
