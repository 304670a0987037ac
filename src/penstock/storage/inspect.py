"""Reads the files of a log's directory without opening the log.

Opening a log recovers it, and recovery writes. Nothing in this module writes: every function reads
through the `Disk` port and reports where the content stops making sense. That works for the files
of a running broker, a stopped one or a backup, and for Kafka's own files. Kafka preallocates its
active indexes, so zeros after the last entry are padding, not damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from errno import ENOTDIR
from struct import Struct
from typing import Final, NamedTuple

from penstock.partition.epochs import EpochStart
from penstock.partition.producer_snapshot import CorruptSnapshot, decode_snapshot
from penstock.partition.producer_state import ProducerEntry
from penstock.partition.retention import RELATIVE_OFFSET_MAX
from penstock.partition.transactions import AbortedEntry, CorruptTransactionIndex
from penstock.partition.transactions import decode_entries as decode_transactions
from penstock.ports import Disk, File
from penstock.records.batch import BatchHeader
from penstock.storage.checkpoints import (
    Checkpoint,
    decode_checkpoint,
    decode_epochs,
    decode_partition_metadata,
    read_file,
)
from penstock.storage.errors import CorruptFile
from penstock.storage.files import (
    CLEANED,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    LOG_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_offset_name,
)
from penstock.storage.index import ENTRY_SIZE, TIME_ENTRY_SIZE, decode_entries
from penstock.storage.scan import BadBatch, find_batch, scan_batches
from penstock.storage.torn_tail import fits, is_whole_batch

OFFSET_END: Final = 2**63 - 1
SEARCH_DEPTH: Final = 3
"""How deep below a data directory logs are searched for: one directory per broker, and one
spare."""

_DOOMED: Final = "-delete"
"""The end of the name of a log directory that is being deleted, here as in Kafka."""
_TIME_ENTRY: Final = Struct(">qi")
_LOW: Final = 0xFFFFFFFF


class Content(StrEnum):
    BATCHES = "batches"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTIONS = "transaction index"
    PRODUCERS = "producer snapshot"
    EPOCHS = "leader epochs"
    PARTITION = "partition metadata"
    CHECKPOINT = "checkpoint"


_BY_SUFFIX: Final = {
    LOG: Content.BATCHES,
    INDEX: Content.OFFSET_INDEX,
    TIME_INDEX: Content.TIME_INDEX,
    TRANSACTION_INDEX: Content.TRANSACTIONS,
    SNAPSHOT: Content.PRODUCERS,
}
_BY_NAME: Final = {
    LEADER_EPOCHS: Content.EPOCHS,
    PARTITION_METADATA: Content.PARTITION,
    LOG_CHECKPOINT: Content.CHECKPOINT,
}
_LEFTOVERS: Final = (SWAP, CLEANED, DELETED, TEMPORARY)


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is, judged by its name."""

    content: Content | None
    """None if the file does not belong to a log."""
    base_offset: int = 0
    leftover: str | None = None
    """The suffix of a file that an interrupted operation left behind."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    name: str
    kind: FileKind
    size: int


class BatchAt(NamedTuple):
    """A sound batch and its bytes."""

    position: int
    header: BatchHeader
    data: memoryview


class BadRange(NamedTuple):
    """Bytes in [position, end) that are not valid batches. `expected` is the offset that should
    begin there."""

    position: int
    end: int
    expected: int
    reason: str
    is_whole: bool
    """Whether the file is long enough for the batch that should begin there."""


class IndexEntry(NamedTuple):
    offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetIndexContent:
    entries: tuple[IndexEntry, ...]
    padding_entries: int
    """Zeros at the end: preallocated by Kafka, or added by a crash."""
    ragged_bytes: int
    """The number of bytes after the last whole entry."""


@dataclass(frozen=True, slots=True)
class TimeIndexContent:
    entries: tuple[TimeEntry, ...]
    padding_entries: int
    ragged_bytes: int


def classify(name: str) -> FileKind:
    """Returns what a file in a log's directory is, judged by its name."""
    for suffix in _LEFTOVERS:
        if name.endswith(suffix):
            return _leftover(name.removesuffix(suffix), suffix)
    if name in _BY_NAME:
        return FileKind(_BY_NAME[name])
    for suffix, content in _BY_SUFFIX.items():
        base_offset = parse_offset_name(name, suffix)
        if base_offset is not None:
            return FileKind(content, base_offset)
    return FileKind(None)


def _leftover(stem: str, suffix: str) -> FileKind:
    kind = classify(stem)
    if kind.content is None and suffix in (SWAP, CLEANED):
        # Cleaned data is named by the offsets that it covers, START-END, without `.log`.
        base = stem.partition("-")[0]
        kind = FileKind(Content.BATCHES, int(base)) if base.isdecimal() else kind
    return replace(kind, leftover=suffix)


def list_files(disk: Disk, directory: str) -> list[FileEntry]:
    """Returns the files of one log's directory. Files that disappear in the meantime are left
    out."""
    entries = []
    for name in disk.listdir(directory):
        try:
            stat = disk.stat(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        if not stat.is_directory:
            entries.append(FileEntry(name, classify(name), stat.size))
    return entries


def find_logs(disk: Disk, path: str) -> list[str]:
    """Returns the log directories at or below `path`."""
    found: list[str] = []
    _find_logs(disk, path, SEARCH_DEPTH, found)
    return found


def _find_logs(disk: Disk, path: str, depth: int, found: list[str]) -> None:
    names = disk.listdir(path)
    if any(
        name == PARTITION_METADATA or parse_offset_name(name, LOG) is not None for name in names
    ):
        found.append(path)
        return
    if depth == 0:
        return
    for name in names:
        if name.endswith(_DOOMED):
            continue
        below = f"{path.rstrip('/')}/{name}"
        try:
            if disk.stat(below).is_directory:
                _find_logs(disk, below, depth - 1, found)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != ENOTDIR:
                raise


def walk_batches(
    file: File, size: int, *, offset_min: int = 0, offset_end: int = OFFSET_END
) -> Iterator[BatchAt | BadRange]:
    """Yields everything in the first `size` bytes of a `.log` file, in order and without gaps.

    After bad bytes the walk continues at the next sound batch, as recovery does.
    """
    position, expected, epoch = 0, offset_min, -1
    before = (expected, epoch)
    while position < size:
        try:
            for at, header, data in scan_batches(
                file, position, size, offset_min=expected, offset_end=offset_end
            ):
                yield BatchAt(at, header, data)
                before = (expected, epoch)
                position, expected, epoch = (
                    at + header.size,
                    header.next_offset,
                    header.leader_epoch,
                )
        except BadBatch as bad:
            found = find_batch(file, bad.position + 1, size, expected, offset_end)
            position = size if found is None else found
            is_whole = is_whole_batch(file, bad.position, size)
            # The batch may be good, and the offset or the epoch of the one before it wrong.
            is_good = bad.header is not None and fits(bad.header, *before)
            due = before[0] if is_good else expected
            yield BadRange(bad.position, position, due, bad.reason, is_whole)


def segment_end(base_offset: int, next_base: int | None = None) -> int:
    """Returns the offset that a segment must stay below: the next segment's base offset, or the
    limit of its index.

    The CRC does not cover offsets, and one offset that is too high would make all later batches
    look bad.
    """
    return base_offset + RELATIVE_OFFSET_MAX + 1 if next_base is None else next_base


def read_batches(disk: Disk, path: str, base_offset: int | None) -> Iterator[BatchAt | BadRange]:
    """Does the same as `walk_batches`, for the file at `path` with its current size."""
    offset_end = OFFSET_END if base_offset is None else segment_end(base_offset)
    file = disk.open(path)
    try:
        yield from walk_batches(
            file, file.size(), offset_min=base_offset or 0, offset_end=offset_end
        )
    finally:
        file.close()


def read_offset_index(disk: Disk, path: str, base_offset: int) -> OffsetIndexContent | None:
    """Returns the entries with absolute offsets; None if there is no file."""
    data = read_file(disk, path)
    if data is None:
        return None
    packed = decode_entries(data)
    used = len(packed)
    while used and packed[used - 1] == 0:
        used -= 1
    entries = tuple(
        IndexEntry(base_offset + (entry >> 32), entry & _LOW) for entry in packed[:used]
    )
    return OffsetIndexContent(entries, len(packed) - used, len(data) % ENTRY_SIZE)


def read_time_index(disk: Disk, path: str, base_offset: int) -> TimeIndexContent | None:
    """Returns the entries with absolute offsets; None if there is no file."""
    data = read_file(disk, path)
    if data is None:
        return None
    ragged = len(data) % TIME_ENTRY_SIZE
    packed = list(_TIME_ENTRY.iter_unpack(data[: len(data) - ragged]))
    used = len(packed)
    # A single zero entry is valid: it belongs to a segment whose only batch has offset and
    # timestamp 0.
    while len(packed) > 1 and used and packed[used - 1] == (0, 0):
        used -= 1
    entries = tuple(
        TimeEntry(timestamp, base_offset + relative) for timestamp, relative in packed[:used]
    )
    return TimeIndexContent(entries, len(packed) - used, ragged)


def read_transactions(disk: Disk, path: str) -> list[AbortedEntry] | None:
    """Returns the aborted transactions of a segment; None if there is no file. Raises `CorruptFile`
    if it is bad."""
    data = read_file(disk, path)
    try:
        return None if data is None else decode_transactions(data)
    except CorruptTransactionIndex as error:
        raise CorruptFile(f"the transaction index cannot be decoded: {error}") from error


def read_snapshot(disk: Disk, path: str) -> list[ProducerEntry] | None:
    """Returns the producers of a snapshot; None if there is no file. Raises `CorruptFile` if it is
    bad."""
    data = read_file(disk, path)
    try:
        return None if data is None else decode_snapshot(data)
    except CorruptSnapshot as error:
        raise CorruptFile(f"the producer snapshot cannot be decoded: {error}") from error


def read_epochs(disk: Disk, path: str) -> list[EpochStart] | None:
    data = read_file(disk, path)
    return None if data is None else decode_epochs(data)


def read_checkpoint(disk: Disk, path: str) -> Checkpoint | None:
    data = read_file(disk, path)
    return None if data is None else decode_checkpoint(data)


def read_topic_id(disk: Disk, path: str) -> str | None:
    data = read_file(disk, path)
    return None if data is None else decode_partition_metadata(data)
