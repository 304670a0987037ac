"""The archives of versions in their topic: cut into chunks, written, found again and checked.

The key of a chunk has the name of the deployment, so that the chunks of one deployment are written
and removed only in its own transactions. Chunks are read without waiting for transactions: an
archive is used only if its SHA-256 is that of the version, and a version is committed together with
its chunks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from typing import Final

from penstock.client.consumer import Consumer
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.producer import Producer
from penstock.spark.deployments import topics
from penstock.spark.deployments.catalog_errors import ArchiveDamaged
from penstock.spark.deployments.model import Version
from penstock.topic_partition import TopicPartition

RawConsumer = Consumer[bytes | None, bytes | None]
RawProducer = Producer[bytes | None, bytes | None]

CHUNK_BYTES: Final = 512 << 10
_FILES: Final = TopicPartition(topics.FILES, 0)
_POLL_MS: Final = 1000
_EMPTY_POLLS_MAX: Final = 30
"""After so many polls without a record, the cluster is considered as not answering."""


def chunk_keys(version: Version) -> list[bytes]:
    return [
        topics.chunk_key(f"{version.name}/{version.archive}", index)
        for index in range(-(-version.archive_size // CHUNK_BYTES))
    ]


def chunks(version: Version, archive: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of each chunk."""
    for index, key in enumerate(chunk_keys(version)):
        yield key, archive[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


async def digest(archive: bytes) -> str:
    """Returns the SHA-256 in hexadecimal. Computed on a thread: an archive may be large."""
    return await asyncio.to_thread(lambda: hashlib.sha256(archive).hexdigest())


async def write(
    producer: RawProducer, version: Version, archive: bytes, progress: Callable[[int], None]
) -> int:
    """Writes all chunks in the open transaction. Returns the offset of the first.

    `progress` is called with the number of bytes when they are acknowledged.
    """
    sent: list[tuple[Delivery, int]] = []
    for key, value in chunks(version, archive):
        sent.append((await producer.send(topics.FILES, value, key=key, partition=0), len(value)))
    offsets: list[int] = []
    for delivery, size in sent:
        offsets.append((await delivery).offset)
        progress(size)
    return min(offsets)


async def read(make: Callable[[], RawConsumer], version: Version) -> bytes:
    """Returns the archive, or raises `ArchiveDamaged`.

    Begins where the version says that its archive begins. If it is not there, as after a copy to
    another cluster, reads the whole topic.
    """
    for start, newest in ((version.archive_offset, False), (0, True)):
        found = await _find(make, version, start, newest=newest)
        if found is not None and await digest(found) == version.archive:
            return found
    raise ArchiveDamaged(
        f"the files of {version.name} version {version.number} are missing or damaged in topic "
        f"{topics.FILES}: deploy it again"
    )


async def _find(
    make: Callable[[], RawConsumer], version: Version, start: int, *, newest: bool
) -> bytes | None:
    """Returns the chunks of an archive, or None if some are missing.

    With `newest` the last record of each chunk counts, otherwise the reading ends as soon as each
    chunk was found.
    """
    wanted = set(chunk_keys(version))
    found: dict[bytes, bytes] = {}
    async with make() as consumer:
        first = (await consumer.beginning_offsets([_FILES]))[_FILES]
        end = (await consumer.end_offsets([_FILES]))[_FILES]
        consumer.assign([_FILES])
        position = min(max(start, first), end)
        consumer.seek(_FILES, position)
        empty = 0
        while position < end and empty < _EMPTY_POLLS_MAX:
            records = await consumer.poll(_POLL_MS)
            for record in records:
                # A tombstone may belong to a transaction that was aborted.
                if (key := record.key) in wanted and record.value is not None:
                    assert key is not None
                    found[key] = record.value if newest else found.get(key, record.value)
            empty = 0 if records else empty + 1
            position = consumer.positions()[_FILES].offset
            if not newest and len(found) == len(wanted):
                break
    if len(found) < len(wanted):
        return None
    return b"".join(found[key] for key in chunk_keys(version))
