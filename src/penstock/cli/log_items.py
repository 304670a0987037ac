"""Walks a log's files and yields the items that `penstock log dump` shows, in order.

`log_dump` formats them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.cli.output import CommandFailed
from penstock.partition.epochs import EpochStart
from penstock.partition.producer_state import ProducerEntry
from penstock.partition.transactions import AbortedEntry
from penstock.ports import Disk
from penstock.records.batch import BatchHeader, CorruptBatch
from penstock.records.record import ControlMarker, Record, read_control, read_records
from penstock.storage.checkpoints import Checkpoint
from penstock.storage.errors import CorruptFile
from penstock.storage.files import LEADER_EPOCHS, LOG, LOG_CHECKPOINT, PARTITION_METADATA
from penstock.storage.inspect import (
    BadRange,
    BatchAt,
    Content,
    FileEntry,
    IndexEntry,
    OffsetIndexContent,
    TimeEntry,
    TimeIndexContent,
    classify,
    list_files,
    read_batches,
    read_checkpoint,
    read_epochs,
    read_offset_index,
    read_snapshot,
    read_time_index,
    read_topic_id,
    read_transactions,
)

_SMALL_FILES = (Content.PARTITION, Content.CHECKPOINT, Content.EPOCHS)


@dataclass(frozen=True, slots=True)
class BatchItem:
    position: int
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class RecordItem:
    record: Record
    marker: ControlMarker | None


@dataclass(frozen=True, slots=True)
class BadRecords:
    """A batch whose CRC is right but whose records cannot be decoded."""

    position: int
    header: BatchHeader
    reason: str


@dataclass(frozen=True, slots=True)
class BadFile:
    """A small file that failed its own check."""

    reason: str


@dataclass(frozen=True, slots=True)
class TopicId:
    topic_id: str


@dataclass(frozen=True, slots=True)
class IndexRemains:
    """What follows the entries in an index file."""

    padding_entries: int
    ragged_bytes: int


Item = (
    FileEntry
    | BatchItem
    | RecordItem
    | BadRecords
    | BadRange
    | BadFile
    | IndexEntry
    | TimeEntry
    | AbortedEntry
    | IndexRemains
    | ProducerEntry
    | EpochStart
    | TopicId
    | Checkpoint
)


def walk(
    disk: Disk, path: str, *, records: bool, offset: int, maximum: int | None
) -> Iterator[Item]:
    """Yields the items at `path` from `offset` on: at most `maximum` records, batches or entries.

    Batches count only if `records` is false.
    """
    path = path.rstrip("/") or "/"
    stat = disk.stat(path)
    if stat.is_directory:
        items = _directory(disk, path, records, offset)
    else:
        name = path.rpartition("/")[2]
        items = _file(disk, path, FileEntry(name, classify(name), stat.size), records, offset)
    return items if maximum is None else _at_most(items, maximum, records)


def _at_most(items: Iterator[Item], maximum: int, records: bool) -> Iterator[Item]:
    counted: tuple[type[Item], ...] = (
        RecordItem,
        IndexEntry,
        TimeEntry,
        AbortedEntry,
        ProducerEntry,
    )
    if not records:
        counted = (BatchItem, *counted)
    left = maximum
    for item in items:
        yield item
        left -= isinstance(item, counted)
        if not left:
            return


def _directory(disk: Disk, path: str, records: bool, offset: int) -> Iterator[Item]:
    entries = list_files(disk, path)
    segments = [
        entry
        for entry in entries
        if entry.kind.content == Content.BATCHES and entry.kind.leftover is None
    ]
    small = [
        entry
        for entry in entries
        if entry.kind.content in _SMALL_FILES and entry.kind.leftover is None
    ]
    if not segments and not small:
        raise CommandFailed(
            f"{path} is not the directory of a log: give TOPIC-PARTITION with .log files in it, "
            "or one file"
        )
    for entry in small:
        yield from _file(disk, f"{path}/{entry.name}", entry, records, offset)
    # A segment ends where the next one begins. One that ends at or below the offset is skipped.
    ends = [entry.kind.base_offset for entry in segments[1:]]
    for entry, end in zip(segments, [*ends, None], strict=True):
        if end is None or end > offset:
            yield from _file(disk, f"{path}/{entry.name}", entry, records, offset)


def _file(disk: Disk, path: str, entry: FileEntry, records: bool, offset: int) -> Iterator[Item]:
    content = entry.kind.content
    if content is None and entry.name.endswith(LOG):
        # A copy under another name: its first offset is not known.
        content = Content.BATCHES
    if content is None:
        raise CommandFailed(
            f"{path} is not a file of a log: give a .log, .index, .timeindex, .txnindex or "
            f".snapshot file, {LEADER_EPOCHS}, {PARTITION_METADATA}, {LOG_CHECKPOINT}, or a "
            "partition's directory"
        )
    yield entry
    base = entry.kind.base_offset
    try:
        match content:
            case Content.BATCHES:
                known = base if entry.kind.content is not None else None
                yield from _batches(disk, path, known, records, offset)
            case Content.OFFSET_INDEX:
                yield from _index(read_offset_index(disk, path, base), offset)
            case Content.TIME_INDEX:
                yield from _index(read_time_index(disk, path, base), offset)
            case Content.TRANSACTIONS:
                entries = read_transactions(disk, path) or ()
                yield from (held for held in entries if held.last_offset >= offset)
            case Content.PRODUCERS:
                yield from read_snapshot(disk, path) or ()
            case Content.EPOCHS:
                yield from read_epochs(disk, path) or ()
            case Content.PARTITION:
                yield TopicId(read_topic_id(disk, path) or "")
            case Content.CHECKPOINT:
                checkpoint = read_checkpoint(disk, path)
                yield from () if checkpoint is None else (checkpoint,)
    except CorruptFile as error:
        yield BadFile(str(error))


def _index(content: OffsetIndexContent | TimeIndexContent | None, offset: int) -> Iterator[Item]:
    if content is None:
        return
    yield from (entry for entry in content.entries if entry.offset >= offset)
    if content.padding_entries or content.ragged_bytes:
        yield IndexRemains(content.padding_entries, content.ragged_bytes)


def _batches(
    disk: Disk, path: str, base_offset: int | None, records: bool, offset: int
) -> Iterator[Item]:
    for item in read_batches(disk, path, base_offset):
        if isinstance(item, BadRange):
            yield item
        elif item.header.last_offset >= offset:
            yield BatchItem(item.position, item.header)
            if records:
                yield from _records(item, offset)


def _records(batch: BatchAt, offset: int) -> Iterator[Item]:
    control = batch.header.is_control
    try:
        found = [
            RecordItem(record, read_control(record) if control else None)
            for record in read_records(batch.data, batch.header)
            if record.offset >= offset
        ]
    except CorruptBatch as error:
        yield BadRecords(batch.position, batch.header, str(error))
    else:
        yield from found
