"""Reads when records of a delay topic are due, and makes their copies for the target. Pure.

A copy has the key, the value and the headers of its record, except `penstock-deliver-at`. Its
timestamp is the time at which the copy was planned. The timestamp of the record is in the header
`penstock-timestamp`. A copy is not larger than a record with a due time was, so that the target
does not refuse what the delay topic has accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.delays.copy_state import CopyState
from penstock.records.batch import BatchHeader, Codec, read_header
from penstock.records.job_headers import DELIVER_AT, OWN_TIMESTAMP, time_in
from penstock.records.record import Record, build_batch, read_records
from penstock.schedule.cursor import DueEntry

_NAME: Final = DELIVER_AT.encode()
_RECORD_OVERHEAD: Final = 40
"""Lengths, offset and timestamp of a record, at most, with the header that a copy has in
addition."""


class SourceRecord(NamedTuple):
    record: Record
    codec: Codec
    """Of the batch that has it."""

    @property
    def size(self) -> int:
        """An upper bound of the size of the copy in a batch that is not compressed."""
        _, _, key, value, headers = self.record
        size = _RECORD_OVERHEAD + len(OWN_TIMESTAMP) + len(key or b"") + len(value or b"")
        return size + sum(10 + 4 * len(name) + len(text or b"") for name, text in headers)


def due_entries(batches: Iterable[memoryview]) -> list[DueEntry]:
    """Returns when each record is due, in order of offsets. Raises `CorruptBatch`.

    A record is due at 0 if it does not say when, or if that is not a number: it was sent before
    the topic was a delay topic.
    """
    found: list[DueEntry] = []
    for data in batches:
        header = read_header(data)
        if _is_plain(header, data):
            offsets = range(header.base_offset, header.last_offset + 1)
            found.extend(DueEntry(0, offset) for offset in offsets)
        else:
            found.extend(_entry(record) for record in read_records(data, header))
    return found


def _is_plain(header: BatchHeader, data: memoryview) -> bool:
    """Whether no record of the batch has a due time, and none of its offsets is missing."""
    is_whole = header.record_count == header.last_offset_delta + 1
    return header.codec == Codec.NONE and is_whole and _NAME not in bytes(data)


def _entry(record: Record) -> DueEntry:
    due_ms = 0
    for name, value in record.headers:
        if name == DELIVER_AT:
            due_ms = time_in(value) or 0
    return DueEntry(due_ms, record.offset)


def records_in(batches: Iterable[bytes], wanted: frozenset[int]) -> dict[int, SourceRecord]:
    """Returns the records at these offsets, by offset. Raises `CorruptBatch`."""
    found: dict[int, SourceRecord] = {}
    for data in batches:
        header = read_header(data)
        for record in read_records(data, header):
            if record.offset in wanted:
                found[record.offset] = SourceRecord(record, header.codec)
    return found


def planned_batches(
    state: CopyState, records: Sequence[Sequence[SourceRecord]]
) -> Iterator[bytearray]:
    """Yields the planned batches. `records` has the records of each, in order."""
    for sequence, planned, sources in zip(state.sequences(), state.planned, records, strict=True):
        yield build_batch(
            [_copy(number, each.record, planned.made_ms) for number, each in enumerate(sources)],
            codec=sources[0].codec,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            base_sequence=sequence,
        )


def _copy(number: int, record: Record, made_ms: int) -> Record:
    kept = [each for each in record.headers if each[0] not in (DELIVER_AT, OWN_TIMESTAMP)]
    own = (OWN_TIMESTAMP, b"%d" % record.timestamp)
    return Record(number, made_ms, record.key, record.value, (*kept, own))
