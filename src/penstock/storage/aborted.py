"""A segment's aborted transactions: Kafka's `.txnindex`, in memory and in its file.

The index is derived from the batches and the producer state before them. As with the other indexes,
entries are collected in memory and the file is written when the segment is sealed. After an unclean
stop the file is not trusted, and the segment is replayed. The checkpoint stores the CRC of each
trusted file, because Kafka's format has no CRC. If an incomplete file were trusted, aborted records
would be read as committed.

Most segments have no such index, and pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from penstock.partition.producers import CompletedTransaction
from penstock.partition.transactions import AbortedEntry, TransactionIndex, encode_entries
from penstock.storage.files import FilePool, write_all


class AbortedIndex:
    """The transaction index of one segment."""

    __slots__ = ("crc", "index", "path")

    def __init__(self, path: str, entries: Iterable[AbortedEntry] = ()) -> None:
        self.path = path
        self.index = TransactionIndex(entries)
        self.crc: int | None = None
        """The CRC of the file; None while the file does not hold all entries."""

    def add(self, ended: CompletedTransaction) -> None:
        self.index.add(AbortedEntry.of(ended))
        self.crc = None

    def truncate(self, end_offset: int) -> None:
        """Drops entries whose markers are at or above the offset. The file is updated when the
        segment is sealed."""
        before = len(self.index)
        self.index.truncate(end_offset)
        if len(self.index) != before:
            self.crc = None

    def take(self) -> bytes:
        """Returns the content for a file that the caller writes. From now on it counts as
        written."""
        data = encode_entries(self.index.entries)
        self.crc = crc32c(data)
        return data

    def write(self, pool: FilePool) -> None:
        """Writes all entries to the file, or removes the file if there are none."""
        if self.crc is not None:
            return
        data = encode_entries(self.index.entries)
        pool.forget(self.path)
        if data:
            file = pool.create(self.path)
            file.truncate(0)
            write_all(file, data, 0)
        elif pool.disk.exists(self.path):
            pool.disk.unlink(self.path)
        self.crc = crc32c(data)
