"""Splits many records into several batches, because the size of a batch is limited.

`split` is only for records that are meaningful one by one, like tombstones of offsets, of which
there can be many. If some batches are appended and others fail, the image has the same ones as the
log, and the outcome is a failure: the caller retries with what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from penstock.coordination.effects import LogRecord
from penstock.records.batch import HEADER_SIZE

_AROUND_RECORD_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 1
"""Length, attributes, timestamp, offset, lengths of key and value, number of headers."""


def record_bytes(record: LogRecord) -> int:
    """Returns how many bytes a record adds to a batch at most."""
    return _AROUND_RECORD_MAX + len(record.key) + len(record.value or b"")


def split(records: Iterable[LogRecord], batch_bytes_max: int) -> Iterator[list[LogRecord]]:
    """Yields the records of each batch; a record that fits into none is yielded alone."""
    batch: list[LogRecord] = []
    size = HEADER_SIZE
    for record in records:
        grows = record_bytes(record)
        if batch and size + grows > batch_bytes_max:
            yield batch
            batch, size = [], HEADER_SIZE
        batch.append(record)
        size += grows
    if batch:
        yield batch


def split_whole(
    parts: Iterable[Sequence[LogRecord]], batch_bytes_max: int
) -> Iterator[list[LogRecord]]:
    """Yields the records of each batch. A part is in one batch if it fits into one."""
    batch: list[LogRecord] = []
    size = HEADER_SIZE
    for part in parts:
        grows = sum(map(record_bytes, part))
        if size + grows <= batch_bytes_max:
            batch += part
            size += grows
            continue
        if batch:
            yield batch
        *full, batch = split(part, batch_bytes_max)
        yield from full
        size = HEADER_SIZE + sum(map(record_bytes, batch))
    if batch:
        yield batch
