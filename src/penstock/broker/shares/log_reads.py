"""Reads batches of a log for share partitions, and returns those with acquired records.

A read is bounded: in bytes, except for the first batch, and in offsets, because a share partition
acquires nothing beyond its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.partition.transactions import AbortedEntry
from penstock.records.batch import BatchHeader, read_header
from penstock.shares.events import AcquiredRange, BatchKind, LogBatch

_Aborted: TypeAlias = dict[int, list[AbortedEntry]]
"""The aborted transactions of each producer."""

READ_BYTES_MAX: Final = 1 << 20
"""The most that one share fetch reads of one partition, unless its first batch is larger."""
READ_BYTES_MIN: Final = 64 << 10


class ReadBatch(NamedTuple):
    batch: LogBatch
    data: memoryview


class ReadLimits(NamedTuple):
    upper_offset: int
    """Only batches below it are read: the high watermark, or the last stable offset."""
    stop_offset: int
    """Batches from it on are left out: the window cannot reach them."""
    bytes_max: int
    read_committed: bool


def read_batches(hosted: HostedPartition, offset: int, limits: ReadLimits) -> list[ReadBatch]:
    """Returns batches from the one that contains the offset, or follows it, on."""
    log = hosted.log
    piece = log.read(offset, limits.bytes_max, limits.upper_offset)
    if piece is None:
        return []
    found: list[tuple[BatchHeader, memoryview]] = []
    position = 0
    while position < len(piece.data):
        header = read_header(piece.data, position)
        if header.base_offset >= limits.stop_offset:
            break
        found.append((header, piece.data[position : position + header.size]))
        position += header.size
    aborted: _Aborted = {}
    if limits.read_committed and any(header.is_transactional for header, _ in found):
        for entry in log.aborted_entries(offset, found[-1][0].next_offset):
            aborted.setdefault(entry.producer_id, []).append(entry)
    return [ReadBatch(_batch_of(header, aborted), data) for header, data in found]


def _batch_of(header: BatchHeader, aborted: _Aborted) -> LogBatch:
    kind = BatchKind.DATA
    if header.is_control:
        kind = BatchKind.CONTROL
    elif header.is_transactional and any(
        entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in aborted.get(header.producer_id, ())
    ):
        kind = BatchKind.ABORTED
    return LogBatch(header.base_offset, header.last_offset, header.leader_epoch, kind)


def records_of(batches: Sequence[ReadBatch], ranges: Sequence[AcquiredRange]) -> bytes | memoryview:
    """Returns the batches that have acquired records, without a copy if there is only one.

    Members ignore the other records of these batches.
    """
    chosen: list[memoryview] = []
    at = 0
    for batch, data in batches:
        while at < len(ranges) and ranges[at].last < batch.first:
            at += 1
        if at == len(ranges):
            break
        if ranges[at].first <= batch.last:
            chosen.append(data)
    # A view would keep everything that was read in memory until the response is sent.
    return chosen[0] if len(chosen) == len(batches) == 1 else b"".join(chosen)
