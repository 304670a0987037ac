"""Reads the log of a delay topic's partition: due times from an offset on, and single records.

Only records below the last stable offset are read, and none of aborted transactions. Batches are
decoded on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.large_batches import LargeBatches
from penstock.broker.shares.log_reads import ReadLimits, read_batches
from penstock.delays.records import SourceRecord, due_entries, records_in
from penstock.records.batch import read_header
from penstock.schedule.cursor import DueEntry
from penstock.shares.events import BatchKind
from penstock.storage.errors import OffsetOutOfRange
from penstock.wire.errors import ErrorCode, KafkaError

SCAN_BYTES_MAX: Final = 1 << 20
"""One scan reads no more, unless a batch is larger."""
_PIECE_BYTES: Final = 64 << 10
_TIMEOUT_S: Final = 60.0
_EVERYTHING: Final = 2**63 - 1


class SourceReads:
    """See the module's docstring."""

    def __init__(self, hosted: HostedPartition, threads: LargeBatches) -> None:
        self._hosted = hosted
        self._threads = threads

    async def due_from(self, offset: int) -> tuple[list[DueEntry], int]:
        """Returns when the next records are due, and the offset after them."""
        limits = ReadLimits(self._hosted.last_stable_offset, _EVERYTHING, SCAN_BYTES_MAX, True)
        batches = read_batches(self._hosted, offset, limits)
        if not batches:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        data = [each.data for each in batches if each.batch.kind is BatchKind.DATA]
        found = await self._threads.run(partial(due_entries, data), _TIMEOUT_S)
        # The batch that has the offset may begin before it.
        return [each for each in found if each.offset >= offset], batches[-1].batch.last + 1

    async def records_at(self, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        """Returns the records at these offsets that the log still has. All of them must be
        readable, unless they were deleted."""
        found: dict[int, SourceRecord] = {}
        wanted = frozenset(offsets)
        if wanted and max(wanted) >= self._hosted.last_stable_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        read_to = 0
        for offset in sorted(wanted):
            if offset < read_to:
                continue
            batches, read_to = self._batches_with(offset, wanted)
            if batches:
                found |= await self._threads.run(partial(records_in, batches, wanted), _TIMEOUT_S)
        return found

    def _batches_with(self, offset: int, wanted: frozenset[int]) -> tuple[list[bytes], int]:
        """Returns batches with wanted records, from an offset on, and the offset after them."""
        hosted = self._hosted
        try:
            piece = hosted.log.read(offset, _PIECE_BYTES, hosted.last_stable_offset)
        except OffsetOutOfRange:
            return [], offset + 1
        if piece is None:
            return [], offset + 1
        ordered = sorted(wanted)
        found: list[bytes] = []
        position, read_to, at = 0, offset + 1, 0
        while position < len(piece.data):
            header = read_header(piece.data, position)
            read_to = header.next_offset
            while at < len(ordered) and ordered[at] < header.base_offset:
                at += 1
            if at < len(ordered) and ordered[at] < read_to and not header.is_control:
                found.append(bytes(piece.data[position : position + header.size]))
            position += header.size
        return found, read_to
