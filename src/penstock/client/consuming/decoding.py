"""Rows into records: what the deserializers make of keys and values. Pure.

This runs once per record and is the price of every record that is consumed one at a time, so each
combination of deserializers has a loop of its own without a test in it. When a deserializer refuses
somewhere, the rows are gone through again one by one to find out where: the good records before it
are delivered, and then it is that record's turn to be complained about, until someone seeks past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.client.consuming.buffer import Rows
from penstock.client.errors import BrokerError, SerializationFailed
from penstock.client.model import Record, TopicPartition
from penstock.records import kernels
from penstock.records.batch import CorruptBatch
from penstock.wire.errors import ErrorCode

Deserialize = Callable[[bytes], Any]

_UNTRACKED_AT_ONCE: Final = 256
"""Fewer than the collector waits for: hardly a record is left for it to look at."""


class DeserializationFailed(SerializationFailed):
    """A deserializer refused a record; the position stays on it until someone seeks past.

    consumer.seek(error.place, error.offset + 1)
    """

    def __init__(
        self, record: Record[bytes | None, bytes | None], part: str, reason: Exception
    ) -> None:
        self.record = record
        """The record as it came, in bytes."""
        self.place = record.place
        self.offset = record.offset
        super().__init__(
            f"the {part} of the record at offset {record.offset} of {record.place} does not "
            f"deserialize ({type(reason).__name__}: {reason}); seek to {record.offset + 1} to go "
            "past it"
        )


class RecordMaker:
    def __init__(
        self, key_deserialize: Deserialize | None, value_deserialize: Deserialize | None
    ) -> None:
        self._key = key_deserialize
        self._value = value_deserialize

    def make(self, place: TopicPartition, rows: Rows) -> list[Record[Any, Any]]:
        """All rows as records. Raises whatever a deserializer raised; `make_some` finds where."""
        topic, partition = place
        found, kind, epoch, _ = rows
        key, value = self._key, self._value
        if key is None and value is None:
            return self._make_plain(place, rows)
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
    def _make_plain(place: TopicPartition, rows: Rows) -> list[Record[Any, Any]]:
        """Records of bytes, which no cycle can go through. The garbage collector would promote them
        by the thousand and look through all memory each time that it has promoted enough: half of
        what a poll of 5,000 records cost."""
        topic, partition = place
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
        self, place: TopicPartition, rows: Rows
    ) -> tuple[list[Record[Any, Any]], DeserializationFailed | None]:
        """The records before the first that is refused, and why it is."""
        records: list[Record[Any, Any]] = []
        for row in rows.rows:
            offset, timestamp, key, value, headers = row
            raw = Record(
                place.topic,
                place.partition,
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
                    place.topic,
                    place.partition,
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


def damaged(place: TopicPartition, offset: int | None, error: CorruptBatch) -> BrokerError:
    return BrokerError(
        ErrorCode.CORRUPT_MESSAGE,
        f"what was fetched at offset {offset} is damaged ({error}); it is fetched again, or seek "
        "past it",
        str(place),
    )
