"""Reads a log: whole batches starting at an offset, verified once per process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from penstock.partition.transactions import AbortedEntry, TransactionIndex, aborted_entries
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import BatchHeader
from penstock.storage.errors import DiskTrouble, LogDamaged, OffsetOutOfRange, disk_trouble
from penstock.storage.log_state import LogState
from penstock.storage.spans import FileSpan, find_span


class LogSlice(NamedTuple):
    """Whole batches as they are stored in the file."""

    data: memoryview
    segment_base: int
    position: int


class LogReader:
    """The read operations of a log."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def read(self, offset: int, bytes_max: int, upper_offset: int | None = None) -> LogSlice | None:
        """Returns whole batches, starting with the one that contains `offset`; None at the end.

        Returns at most `bytes_max` bytes, but always the first batch. Returns nothing at or above
        `upper_offset` (the high watermark or the last stable offset).
        """
        piece = self._read(offset, bytes_max, upper_offset, None)
        assert not isinstance(piece, FileSpan)
        return piece

    def read_or_span(
        self,
        offset: int,
        bytes_max: int,
        upper_offset: int | None = None,
        memory_max: int = 1 << 62,
    ) -> memoryview | FileSpan | None:
        """Returns the same batches as `read`, but as an unread `FileSpan` if they can be sent from
        their file. Batches that must be read are limited to `memory_max` bytes, but the first one
        is always returned."""
        piece = self._read(offset, bytes_max, upper_offset, memory_max)
        return piece.data if isinstance(piece, LogSlice) else piece

    def read_committed(
        self, offset: int, bytes_max: int, last_stable_offset: int, memory_max: int | None = None
    ) -> tuple[memoryview | FileSpan, list[AbortedTransaction]] | None:
        """Returns the batches below the last stable offset, as from `read` (or from `read_or_span`
        if `memory_max` is given), and the aborted transactions among them."""
        piece = self._read(offset, bytes_max, last_stable_offset, memory_max)
        if piece is None:
            return None
        data = piece.data if isinstance(piece, LogSlice) else piece
        end = piece.position + len(data)
        return data, self._aborted_in(offset, piece.segment_base, end, last_stable_offset)

    def _aborted_in(
        self, offset: int, segment_base: int, end_position: int, last_stable_offset: int
    ) -> list[AbortedTransaction]:
        state = self._state
        if next(self._aborted_from(offset), None) is None:
            return []
        number = bisect_right(state.bases, segment_base) - 1
        with disk_trouble(f"{state.directory} could not be read"):
            end_offset = state.segments[number].offset_at(end_position)
        if end_offset is None:
            is_last = number == len(state.bases) - 1
            end_offset = state.end_offset if is_last else state.bases[number + 1]
        end_offset = min(end_offset, last_stable_offset)
        return [
            AbortedTransaction(entry.producer_id, entry.first_offset)
            for entry in self.aborted_entries(offset, end_offset)
        ]

    def aborted_entries(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Returns the aborted transactions that overlap [start, end), in the order of their
        markers."""
        return aborted_entries(self._aborted_from(start_offset), start_offset, end_offset)

    def _aborted_from(self, offset: int) -> Iterator[TransactionIndex]:
        state = self._state
        first = max(0, bisect_right(state.bases, offset) - 1)
        for segment in islice(state.segments, first, None):
            if segment.aborted is not None:
                yield segment.aborted.index

    def _read(
        self, offset: int, bytes_max: int, upper_offset: int | None, memory_max: int | None
    ) -> LogSlice | FileSpan | None:
        state = self._state
        if state.failure is not None:
            state.refuse()
        if not state.log_start_offset <= offset <= state.end_offset:
            raise OffsetOutOfRange(offset, state.log_start_offset, state.end_offset)
        upper = state.end_offset if upper_offset is None else min(upper_offset, state.end_offset)
        if offset >= upper:
            return None
        for damage in state.damage:
            if damage.start_offset <= offset < damage.end_offset:
                raise LogDamaged(
                    f"offsets [{damage.start_offset}, {damage.end_offset}) of {state.directory} "
                    f"are quarantined: {damage.reason}; read them from another replica"
                )
        at = bisect_right(state.bases, offset) - 1
        try:
            for number in range(at, len(state.segments)):
                segment = state.segments[number]
                if segment.base_offset >= upper:
                    return None
                found = segment.locate(offset)
                if found is not None:
                    return self._slice(number, found, bytes_max, upper, memory_max)
        except LogDamaged:
            state.suspect = True
            raise
        except OSError as error:
            raise DiskTrouble(
                f"offset {offset} of {state.directory} could not be read: {error}"
            ) from error
        return None

    def _slice(
        self,
        number: int,
        found: tuple[int, BatchHeader],
        bytes_max: int,
        upper: int,
        memory_max: int | None,
    ) -> LogSlice | FileSpan | None:
        state = self._state
        position, header = found
        segment = state.segments[number]
        is_last = segment is state.active
        end_offset = state.end_offset if is_last else state.bases[number + 1]
        if header.last_offset >= end_offset:
            raise LogDamaged(
                f"{segment.path}: the batch at byte {position} ends with offset "
                f"{header.last_offset}, but must end below {end_offset}; read from another "
                "replica, or restore the file"
            )
        if header.base_offset >= upper:
            return None
        limit = segment.size
        if upper < state.end_offset:
            beyond = segment.locate(upper)
            if beyond is not None:
                # A batch that contains the bound is left out: only batches that end below it are
                # returned.
                limit = beyond[0]
        for start, _ in segment.damaged:
            if start > position:
                limit = min(limit, start)
                break
        if limit <= position:
            return None
        if memory_max is not None:
            span = find_span(segment, position, bytes_max, limit, header.size)
            if span is not None:
                return span
            bytes_max = min(bytes_max, memory_max)
        data = segment.read(
            position,
            bytes_max,
            limit,
            header.size,
            end_offset=end_offset,
            epoch_at=state.epochs.epoch_at,
        )
        return LogSlice(data, segment.base_offset, position)
