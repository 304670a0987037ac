"""Which keys of the store hold a topic, and how they are changed.

A topic of ordinary size is stored whole in one key (`topic_values.encode_topic`). etcd accepts at
most 1.5 MiB and 128 operations in one transaction, so a large topic is divided into several keys:

    /penstock/topics/NAME          its head: id, overrides, number of partitions, size of a chunk
    /penstock/partitions/ID/0      its first chunk of partitions, by the topic's id
    /penstock/partitions/ID/1      and so on

The head is authoritative: without it there is no topic, and partitions from its count on do not
exist. Creating, growing and deleting a topic are one commit each, so a chunk never exists without
its head. Within a commit, chunks are written before the head, and deleted after it, so a reader
that processes one key after another never sees a head without its chunks. A change of partitions
writes the chunks that differ. Its condition includes the head, because it depends on the topic's
configs.

A topic that was stored whole and has become large, or was stored by an earlier version, is divided
by the next commit that changes it. Earlier versions refuse to read a divided topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.metadata.decisions import Change, Guard
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import chunk_key, topic_key
from penstock.metadata.model import Partition, Topic
from penstock.metadata.topic_values import encode_chunk, encode_head, encode_topic
from penstock.wire.errors import ErrorCode, KafkaError

WHOLE_BYTES_MAX: Final = 256 << 10
"""A topic that may take more than this is divided."""
CHUNK_PARTITIONS: Final = 500
CHUNKS_MAX: Final = 100
"""The maximum for one topic: all its chunks must fit in the one commit that deletes it."""
COMMIT_BYTES_MAX: Final = 1 << 20
_PARTITION_BYTES: Final = 150
_REPLICA_BYTES: Final = 24


def weight(partitions: Sequence[Partition]) -> int:
    """Returns an upper estimate of the bytes that these partitions take."""
    replicas = sum(len(each.replicas) for each in partitions)
    return _PARTITION_BYTES * len(partitions) + _REPLICA_BYTES * replicas


def chunk_bounds(topic: Topic) -> Iterator[tuple[int, int]]:
    """Yields the first partition and the end of the range that each key of the topic holds."""
    count = len(topic.partitions)
    step = topic.chunk_partitions or max(1, count)
    for start in range(0, count, step):
        yield start, min(start + step, count)


def divided(topic: Topic) -> Topic:
    """Returns the topic in the form in which it is stored."""
    if topic.chunk_partitions:
        return topic
    size = weight(topic.partitions)
    if size <= WHOLE_BYTES_MAX:
        return topic
    of_one = -(-size // len(topic.partitions))
    chunk = max(1, min(CHUNK_PARTITIONS, WHOLE_BYTES_MAX // of_one))
    return replace(topic, chunk_partitions=chunk)


@dataclass(frozen=True, slots=True)
class TopicChanges:
    changes: tuple[Change, ...]
    guards: tuple[Guard, ...] = ()


def creation(topic: Topic) -> tuple[Topic, tuple[Change, ...]]:
    """Returns the topic as it will be stored, and the keys to write."""
    stored = divided(topic)
    if not stored.chunk_partitions:
        return stored, (Change(topic_key(stored.name), encode_topic(stored), 0),)
    changes = tuple(
        Change(chunk_key(stored.topic_id, number), encode_chunk(stored.partitions[start:stop]), 0)
        for number, (start, stop) in enumerate(chunk_bounds(stored))
    )
    head = Change(topic_key(stored.name), encode_head(stored), 0)
    _require_room((*changes, head))
    return stored, (*changes, head)


def deletion(image: ClusterImage, topic: Topic) -> tuple[Change, ...]:
    """Returns the keys to delete: the head first, then the chunks."""
    keys = [topic_key(topic.name)]
    if topic.chunk_partitions:
        keys += [chunk_key(topic.topic_id, number) for number, _ in enumerate(chunk_bounds(topic))]
    return tuple(Change(key, None, image.revision_of(key)) for key in keys)


def alteration(image: ClusterImage, before: Topic, after: Topic) -> TopicChanges:
    """Returns what to write to change `before` into `after`. Both have the same name and id."""
    after = divided(after)
    key = topic_key(after.name)
    revision = image.revision_of(key)
    if not after.chunk_partitions:
        return TopicChanges((Change(key, encode_topic(after), revision),))
    changes = []
    was_divided = bool(before.chunk_partitions)
    for number, (start, stop) in enumerate(chunk_bounds(after)):
        held = after.partitions[start:stop]
        if not was_divided or held != before.partitions[start:stop]:
            at = chunk_key(after.topic_id, number)
            changes.append(Change(at, encode_chunk(held), image.revision_of(at)))
    has_new_head = (
        not was_divided
        or len(after.partitions) != len(before.partitions)
        or after.configs != before.configs
    )
    if not has_new_head:
        return TopicChanges(tuple(changes), (Guard(key, revision),))
    changes.append(Change(key, encode_head(after), revision))
    _require_room(changes)
    return TopicChanges(tuple(changes))


def _require_room(changes: Sequence[Change]) -> None:
    size = sum(len(change.key) + len(change.value or b"") for change in changes)
    if size > COMMIT_BYTES_MAX or len(changes) > CHUNKS_MAX + 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"This many partitions would take {size} bytes in {len(changes)} keys of the "
            f"metadata store, but at most {COMMIT_BYTES_MAX} bytes in {CHUNKS_MAX + 1} keys are "
            "allowed in one step: ask for fewer partitions, or add them in several steps.",
        )
