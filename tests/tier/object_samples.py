"""Small segment objects with real batches."""

from __future__ import annotations

from functools import cache

from penstock.partition.epochs import EpochStart
from penstock.records.record import Record, build_batch
from penstock.tier.keys import TopicIdPartition
from penstock.tier.segment_object import EncodedObject, Lineage, encode

TOPIC_ID = "0123456789abcdef0123456789abcdef"
OWNER = TopicIdPartition(TOPIC_ID, 0)


@cache
def batch(offset: int, count: int = 1, timestamp: int | None = None, size: int = 4) -> bytes:
    """Returns a batch of so many records. Its timestamps are its offsets unless one is given."""
    records = [
        Record(each, each if timestamp is None else timestamp, None, b"v" * size)
        for each in range(offset, offset + count)
    ]
    return bytes(build_batch(records, leader_epoch=1))


@cache
def sample_object(
    start: int, end: int, owner: TopicIdPartition = OWNER, epoch: int = 1
) -> EncodedObject:
    """Returns an object with one batch for each offset."""
    batches = [batch(offset) for offset in range(start, end)]
    return encode(owner, epoch, (start, end), batches, Lineage(epochs=[EpochStart(epoch, 0)]))
