"""A segment's aborted transactions: Kafka's `.txnindex`, in memory and in its file.

Which transactions were aborted is derived from the batches and the producers' state before them. As
with the other indexes, entries gather in memory and the file is written when the segment is sealed;
what an unclean stop leaves of it counts for nothing: the segment is replayed. Of the files that are
believed the checkpoint holds the CRC, as Kafka's format has no room for one: of a file that were
taken for whole and is not, aborted records would pass for committed ones.

Most segments have no such index, and then nothing here costs them anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from penstock.partition.producers import CompletedTransaction
from penstock.partition.transactions import AbortedEntry, TransactionIndex, encode_entries
from penstock.storage.files import FilePool, write_all


class AbortedIndex:
    """The index of one segment."""

    __slots__ = ("crc", "index", "path")

    def __init__(self, path: str, entries: Iterable[AbortedEntry] = ()) -> None:
        self.path = path
        self.index = TransactionIndex(entries)
        self.crc: int | None = None
        """Of the file; None while that does not hold all entries."""

    def add(self, ended: CompletedTransaction) -> None:
        self.index.add(AbortedEntry.of(ended))
        self.crc = None

    def truncate(self, end_offset: int) -> None:
        """Drop those whose markers lie at or above the offset; the file follows when sealed."""
        before = len(self.index)
        self.index.truncate(end_offset)
        if len(self.index) != before:
            self.crc = None

    def take(self) -> bytes:
        """The content, for a file that the caller makes; from here on it counts as written."""
        data = encode_entries(self.index.entries)
        self.crc = crc32c(data)
        return data

    def write(self, pool: FilePool) -> None:
        """Put all entries into the file; where there are none, there is no file."""
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
