"""Producer state on disk: snapshots, and replaying the log from the newest valid one.

Producers expire by the time of their last append. A batch does not contain that time, but a
snapshot does. For batches that are replayed after the snapshot, the time when the segment's file
was last written is used instead. The append was no later than that, so a producer may expire late,
by the age of one segment at most, and never early.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crc32c import crc32c

from penstock.partition.producer_snapshot import (
    CorruptSnapshot,
    decode_with_times,
    encode_snapshot,
)
from penstock.partition.producer_state import BATCHES_REMEMBERED
from penstock.partition.producers import CompletedTransaction, ProducerStates
from penstock.ports import Buffer, Disk
from penstock.records.batch import BatchHeader
from penstock.records.record import read_control, read_records
from penstock.storage.checkpoints import read_file
from penstock.storage.files import SNAPSHOT, offset_name, parse_offset_name
from penstock.storage.segment import Segment


def file_crc(disk: Disk, path: str) -> int:
    """Returns the CRC32C of a whole file. A missing file counts as empty. Returns -1 if the file
    may not be opened."""
    try:
        return crc32c(read_file(disk, path) or b"")
    except PermissionError:
        return -1


def snapshots(disk: Disk, directory: str) -> list[int]:
    """Returns the offsets of the snapshots in a log's directory, in ascending order."""
    offsets = (parse_offset_name(name, SNAPSHOT) for name in disk.listdir(directory))
    return [offset for offset in offsets if offset is not None]


def snapshot_of(producers: ProducerStates) -> bytes:
    """Returns the content of a snapshot of these producers."""
    return encode_snapshot(producers.entries(BATCHES_REMEMBERED), producers.append_times())


def note_producer(
    producers: ProducerStates, batch: Buffer, header: BatchHeader, appended_ms: int
) -> CompletedTransaction | None:
    """Updates the producer state with a batch that is in the log. Returns the transaction that the
    batch ended, if any."""
    if header.is_control and header.record_count:
        marker = read_control(read_records(batch, header)[0])
        return producers.on_control(header, marker.type, marker.coordinator_epoch, appended_ms)
    producers.update(header, appended_ms)
    return None


def restore_producers(
    producers: ProducerStates,
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    deriving: Collection[Segment] = (),
) -> None:
    """Loads the newest valid snapshot and replays the log after it.

    A snapshot that cannot be read is removed; an older snapshot and a longer replay replace it. The
    replay also rebuilds the aborted transactions of the segments in `deriving`, so it begins at or
    below them.
    """
    producers.clear()
    start = 0
    start_max = min((segment.base_offset for segment in deriving), default=end_offset)
    for segment in deriving:
        segment.aborted = None
    for offset in reversed(snapshots(disk, directory)):
        if offset > start_max:
            continue
        path = f"{directory}/{offset_name(offset, SNAPSHOT)}"
        try:
            entries, times = decode_with_times(read_file(disk, path) or b"")
        except CorruptSnapshot:
            disk.unlink(path)
            continue
        producers.load(entries)
        producers.note_append_times(times, disk.stat(path).modified_ms)
        start = offset
        break
    if start >= end_offset:
        return
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if last or segments[position + 1].base_offset > start:
            _replay(producers, segment, start, derives=segment in deriving)


def _replay(producers: ProducerStates, segment: Segment, start: int, *, derives: bool) -> None:
    written_ms = segment.pool.disk.stat(segment.path).modified_ms
    found = segment.locate(start)
    for position, header in segment.headers(found[0]) if found else ():
        if header.has_producer:
            batch: Buffer = b""
            if header.is_control or not segment.has_verified(position, position + header.size):
                batch = segment.read(position, 0, segment.size, header.size)
            ended = note_producer(producers, batch, header, written_ms)
            if derives and ended is not None and ended.aborted:
                segment.note_aborted(ended)
