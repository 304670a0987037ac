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
    """One record as a consumer received it.

    `key` and `value` are bytes, unless the consumer has deserializers; None is a null. A record
    whose value is null is a tombstone: compaction deletes the earlier records of its key.

    Example:
        record = consumer.poll(timeout_ms=10_000)[0]
        print(record.topic_partition, record.offset, record.key, record.value)
        #> orders-0 0 b'ann' b'tea'
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; -1 if the producer gave none."""
    key: K
    value: V
    headers: Headers = ()
    """Names and values, in the order in which they were sent. A name may occur several times."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record is in."""
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """Returns the last value of the header with this name, as Kafka's clients do, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of an acknowledged record. With acks=0 it is unknown, and the offset is -1.

    A `Delivery` resolves to it, and `on_delivery` callbacks receive it.

    Example:
        metadata = producer.send("orders", b"bread").result(timeout_s=10)
        print(metadata.topic_partition, metadata.offset)
        #> orders-0 3
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record is in."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position to commit: the next offset to read, and a free text that is stored with it.

    Where an offset is expected, a plain number does as well.

    Example:
        orders = TopicPartition("orders", 0)
        consumer.poll(timeout_ms=10_000)
        consumer.commit({orders: OffsetAndMetadata(2, "up to the milk")})
        print(consumer.committed(orders)[orders].metadata)
        #> up to the milk
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OpenTransaction(NamedTuple):
    """A transaction that was left open, to be ended by someone other than its producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
