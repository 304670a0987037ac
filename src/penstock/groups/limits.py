"""Limits on the size of what a group stores in its log.

Strings in a record have a 16-bit length, while requests can have longer ones since their flexible
versions. And every offset record repeats the group id: a small request with a long group id could
become many times its size. So one commit may have at most as many bytes of records as
`COMMIT_BATCHES_MAX` batches hold; Kafka allows one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from penstock.coordination.batches import record_bytes
from penstock.coordination.effects import LogRecord
from penstock.groups.formats import OffsetValue, offset_record
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

STRING_BYTES_MAX: Final = (1 << 15) - 1
COMMIT_BATCHES_MAX: Final = 16
MEMBER_ID_SUFFIX_BYTES: Final = 37
"""A hyphen and a UUID, which are appended to a name to make a member id."""
_UTF8_MAX: Final = 4
_AROUND_OFFSET: Final = 64


def fits_a_string(text: str | None, more: int = 0) -> bool:
    """Returns whether a record can hold a string, with `more` bytes added to it."""
    if text is None or _UTF8_MAX * len(text) + more <= STRING_BYTES_MAX:
        return True
    return len(text.encode("utf-8", "surrogatepass")) + more <= STRING_BYTES_MAX


def commit_records(
    group_id: str, offsets: Iterable[tuple[TopicPartition, OffsetValue]], batch_bytes_max: int
) -> list[LogRecord]:
    """Returns the records of one commit; raises KafkaError if they have too many bytes."""
    room = COMMIT_BATCHES_MAX * batch_bytes_max
    records = []
    for (topic, partition), value in offsets:
        record = offset_record(group_id, topic, partition, value)
        room -= record_bytes(record)
        if room < 0:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        records.append(record)
    return records


class CommittedTopic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Sequence[CommittedPartition]: ...


class CommittedPartition(Protocol):
    @property
    def committed_metadata(self) -> str | None: ...


def commit_bytes(group_id: str, topics: Iterable[CommittedTopic]) -> int:
    """Returns roughly how many bytes the records of a commit have."""
    total = 0
    for topic in topics:
        names = _AROUND_OFFSET + len(group_id) + len(topic.name)
        total += names * len(topic.partitions)
        total += sum(len(each.committed_metadata or "") for each in topic.partitions)
    return total
