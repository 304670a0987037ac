"""The records of `__transaction_state`, as Kafka writes them.

Keys and values each begin with a 16-bit version. There is one kind of key, version 0; others are
skipped. Values have version 0, or 1, the first with tagged fields. This module writes 1 and reads
both.

One tagged field exists only here: LastProducerEpoch, the epoch whose producer may still return.
Kafka keeps it in memory only, so there a producer whose answer was lost with a coordinator is
fenced for good. Kafka's readers skip unknown tags. If the field is missing, as in records that
Kafka wrote, it is derived from the others as far as possible.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.coordination.effects import LogRecord
from penstock.topic_partition import TopicPartition
from penstock.txns.transaction import (
    EPOCH_LAST_USABLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    State,
    Transaction,
)
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.base import Message, Struct
from penstock.wire.stored import StoredMessages

TOPIC: Final = "__transaction_state"
_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
_UNKNOWN_EPOCH: Final = -2
_STATUSES: Final = frozenset(int(state) for state in State)
_STORED: Final = StoredMessages(
    TOPIC,
    """
TransactionKey  versions 0-0  flexible never
  TransactionalId  string  0+

TransactionValue  versions 0-1  flexible 1+
  ProducerId              int64          0+
  PreviousProducerId      int64          1+  tag 0  = -1  ignorable
  NextProducerId          int64          1+  tag 1  = -1  ignorable
  ProducerEpoch           int16          0+
  TimeoutMs               int32          0+
  Status                  int8           0+
  Partitions              [Partitions]?  0+
    Topic                 string         0+
    PartitionIds          [int32]        0+
  LastUpdateTimestampMs   int64          0+
  StartTimestampMs        int64          0+
  ClientTransactionVersion  int16        1+  tag 2  = 0  ignorable
  LastProducerEpoch       int16          1+  tag 10000  = -2  ignorable
""",
)


class TransactionKey(Message):
    __slots__ = ("transactional_id",)

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id


class TransactionValue(Message):
    __slots__ = (
        "client_transaction_version",
        "last_producer_epoch",
        "last_update_timestamp_ms",
        "next_producer_id",
        "partitions",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "start_timestamp_ms",
        "status",
        "timeout_ms",
    )

    class Partitions(Struct):
        __slots__ = ("partition_ids", "topic")

        def __init__(self, topic: str, partition_ids: list[int]) -> None:
            self.topic = topic
            self.partition_ids = partition_ids

    def __init__(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        timeout_ms: int,
        status: int,
        partitions: list[TransactionValue.Partitions] | None,
        last_update_timestamp_ms: int,
        start_timestamp_ms: int,
        previous_producer_id: int = NO_PRODUCER_ID,
        next_producer_id: int = NO_PRODUCER_ID,
        client_transaction_version: int = 0,
        last_producer_epoch: int = _UNKNOWN_EPOCH,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.timeout_ms = timeout_ms
        self.status = status
        self.partitions = partitions
        self.last_update_timestamp_ms = last_update_timestamp_ms
        self.start_timestamp_ms = start_timestamp_ms
        self.previous_producer_id = previous_producer_id
        self.next_producer_id = next_producer_id
        self.client_transaction_version = client_transaction_version
        self.last_producer_epoch = last_producer_epoch


class Entry(NamedTuple):
    transactional_id: str
    transaction: Transaction | None


def transaction_record(transaction: Transaction) -> LogRecord:
    """Returns the record with the complete state of a transactional id."""
    last_epoch = transaction.last_producer_epoch
    value = TransactionValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        status=int(transaction.state),
        partitions=_grouped(transaction),
        last_update_timestamp_ms=transaction.update_ms,
        start_timestamp_ms=transaction.start_ms,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        client_transaction_version=transaction.client_version,
        # Left out if a reader can derive it: then the bytes are the same as Kafka's.
        last_producer_epoch=(
            _UNKNOWN_EPOCH if last_epoch == _implied_last_epoch(transaction) else last_epoch
        ),
    )
    return LogRecord(_key(transaction.transactional_id), _STORED.encode(value, _VALUE_VERSION))


def tombstone(transactional_id: str) -> LogRecord:
    return LogRecord(_key(transactional_id), None)


def read_record(key: bytes | None, value: bytes | None) -> Entry | None:
    """Decodes a record. Returns None for an unknown kind; raises ProtocolError if it is damaged."""
    if key is None or _STORED.version(key) != _KEY_VERSION:
        return None
    transactional_id = _STORED.decode(TransactionKey, key).transactional_id
    if value is None:
        return Entry(transactional_id, None)
    return Entry(transactional_id, _transaction(transactional_id, value))


def _transaction(transactional_id: str, data: bytes) -> Transaction:
    value = _STORED.decode(TransactionValue, data)
    if value.status not in _STATUSES:
        raise ProtocolError(
            f"transactional id {transactional_id!r} in {TOPIC} has status {value.status}, which "
            "is not a known state"
        )
    transaction = Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.timeout_ms,
        State(value.status),
        value.last_update_timestamp_ms,
        value.start_timestamp_ms,
        frozenset(
            TopicPartition(group.topic, partition)
            for group in value.partitions or ()
            for partition in group.partition_ids
        ),
        value.last_producer_epoch,
        value.previous_producer_id,
        value.next_producer_id,
        value.client_transaction_version,
    )
    if value.last_producer_epoch != _UNKNOWN_EPOCH:
        return transaction
    return replace(transaction, last_producer_epoch=_implied_last_epoch(transaction))


def _implied_last_epoch(transaction: Transaction) -> int:
    """Returns the previous epoch: by KIP-890 the end of a transaction raised it by one."""
    ended = transaction.state.is_preparing or transaction.state.is_complete
    if not (ended and transaction.bumps_epoch):
        return NO_EPOCH
    if transaction.producer_epoch == 0:
        return EPOCH_LAST_USABLE
    return transaction.producer_epoch - 1


def _grouped(transaction: Transaction) -> list[TransactionValue.Partitions] | None:
    """Returns the partitions by topic, sorted so that equal transactions have equal bytes."""
    if transaction.state is State.EMPTY:
        return None
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(transaction.partitions):
        by_topic[topic].append(partition)
    return [TransactionValue.Partitions(topic, ids) for topic, ids in by_topic.items()]


def _key(transactional_id: str) -> bytes:
    return _STORED.encode(TransactionKey(transactional_id), _KEY_VERSION)
