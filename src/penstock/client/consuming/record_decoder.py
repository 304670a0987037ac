"""Makes records of rows, by applying the deserializers to keys and values. Pure.

This runs once per record and dominates the cost of consuming records one at a time, so each
combination of deserializers has its own loop without a test in it. When a deserializer fails, the
rows are processed again one by one to find the failing one. The records before it are returned.
Then that record raises the error, until the caller seeks past it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.client.consuming.buffer import Rows
from penstock.client.errors import BrokerError, SerializationFailed
from penstock.client.model import Record
from penstock.records import kernels
from penstock.records.batch import CorruptBatch
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

Deserialize = Callable[[bytes], Any]

_UNTRACKED_AT_ONCE: Final = 256
"""Fewer than trigger the garbage collector, so it finds hardly any of the records."""


class DeserializationFailed(SerializationFailed):
    """A deserializer failed on a record. The position stays there until the caller seeks past it.

    `record` is the record in bytes, `topic_partition` and `offset` are its position.

    Example:
        options = {"topics": "orders", "auto_offset_reset": "earliest"}
        with Consumer("localhost:9092", value_deserializer=serializers.json, **options) as consumer:
            try:
                consumer.poll(timeout_ms=10_000)
            except errors.DeserializationFailed as error:
                print(error.record.value)
                consumer.seek(error.topic_partition, error.offset + 1)
        #> b'tea'
    """

    def __init__(
        self, record: Record[bytes | None, bytes | None], part: str, reason: Exception
    ) -> None:
        self.record = record
        """The record as it was received, in bytes."""
        self.topic_partition = record.topic_partition
        self.offset = record.offset
        super().__init__(
            f"cannot deserialize the {part} of the record at offset {record.offset} of "
            f"{record.topic_partition} ({type(reason).__name__}: {reason}); seek to "
            f"{record.offset + 1} to skip it"
        )


class RecordMaker:
    def __init__(
        self, key_deserialize: Deserialize | None, value_deserialize: Deserialize | None
    ) -> None:
        self._key = key_deserialize
        self._value = value_deserialize

    def make(self, topic_partition: TopicPartition, rows: Rows) -> list[Record[Any, Any]]:
        """Makes records of all rows. Raises a deserializer's error; `make_some` finds the
        record."""
        topic, partition = topic_partition
        found, kind, epoch, _ = rows
        key, value = self._key, self._value
        if key is None and value is None:
            return self._make_plain(topic_partition, rows)
        if key is None:
            assert value is not None
            return [
                Record(topic, partition, o, t, k, None if v is None else value(v), h, kind, epoch)
                for o, t, k, v, h in found
            ]
        if value is None:
            return [
                Record(topic, partition, o, t, None if k is None else key(k), v, h, kind, epoch)
                for o, t, k, v, h in found
            ]
        return [
            Record(
                topic,
                partition,
                o,
                t,
                None if k is None else key(k),
                None if v is None else value(v),
                h,
                kind,
                epoch,
            )
            for o, t, k, v, h in found
        ]

    @staticmethod
    def _make_plain(topic_partition: TopicPartition, rows: Rows) -> list[Record[Any, Any]]:
        """Makes records of bytes, which cannot be part of a reference cycle.

        The garbage collector would promote them by the thousand, and search all memory each time it
        has promoted enough. That took half the time of a poll of 5,000 records.
        """
        topic, partition = topic_partition
        found, kind, epoch, _ = rows
        records: list[Record[Any, Any]] = []
        for start in range(0, len(found), _UNTRACKED_AT_ONCE):
            made = [
                Record(topic, partition, o, t, k, v, h, kind, epoch)
                for o, t, k, v, h in found[start : start + _UNTRACKED_AT_ONCE]
            ]
            kernels.untrack(made)
            records += made
        return records

    def make_some(
        self, topic_partition: TopicPartition, rows: Rows
    ) -> tuple[list[Record[Any, Any]], DeserializationFailed | None]:
        """Returns the records before the first that fails, and its error."""
        records: list[Record[Any, Any]] = []
        for row in rows.rows:
            offset, timestamp, key, value, headers = row
            raw = Record(
                topic_partition.topic,
                topic_partition.partition,
                offset,
                timestamp,
                key,
                value,
                headers,
                rows.timestamp_type,
                rows.leader_epoch,
            )
            part = "key"
            try:
                made_key = key if key is None or self._key is None else self._key(key)
                part = "value"
                made_value = value if value is None or self._value is None else self._value(value)
            except Exception as error:  # noqa: BLE001 - a user's code may raise anything
                return records, DeserializationFailed(raw, part, error)
            records.append(
                Record(
                    topic_partition.topic,
                    topic_partition.partition,
                    offset,
                    timestamp,
                    made_key,
                    made_value,
                    headers,
                    rows.timestamp_type,
                    rows.leader_epoch,
                )
            )
        return records, None


def damaged(
    topic_partition: TopicPartition, offset: int | None, error: CorruptBatch
) -> BrokerError:
    return BrokerError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch fetched at offset {offset} is corrupt ({error}); poll to fetch it again, or "
        "seek to skip it",
        str(topic_partition),
    )
