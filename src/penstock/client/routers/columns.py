"""Routes Arrow columns: chooses a partition for each of many rows, without an object per row.

`Placed` collects the results: first the keys that are placed by hash, then runs of rows without a
key, each as long as a batch. Routers that can only route single records are called row by row. The
routers import this module when they are given columns, because it imports pyarrow. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.model import Headers
from penstock.client.routers.partition_view import Choose, PartitionView
from penstock.records.arrow_input import fixed_cells, flat, timestamps
from penstock.records.hashing import CRC32, MURMUR2, UNPLACED, fill_run, place_keys

__all__ = ["CRC32", "MURMUR2", "Placed", "binary", "row_by_row", "times"]

_ROW_OVERHEAD: Final = 12
"""The size of a record in addition to key, value and headers: lengths, deltas, counts."""


class Placed:
    """The partitions of rows; -1 for a row that has none yet."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._unplaced = len(rows)
        self._cells = memoryview(array("i", [UNPLACED]) * len(rows))

    def by_hash(self, algorithm: int, view: PartitionView, *, empty_is_null: bool = False) -> None:
        if "key" not in self._rows.schema.names or not self._unplaced:
            return
        keys = self._rows.column("key")
        if empty_is_null and not pa.types.is_null(keys.type):
            keys = binary(keys)
            keys = pc.if_else(pc.equal(pc.binary_length(keys), 0), None, keys)
        self._unplaced = place_keys(flat(keys, "key"), view.count, algorithm, self._cells)

    def by_runs(self, choose: Choose, view: PartitionView) -> None:
        """Places the remaining rows, a batch's worth on each partition that is chosen.

        Rows that this table sends to a partition count as queued there for the next choice. A table
        starts with a new choice, because its rows share no batch with single records.
        """
        if not self._unplaced:
            return
        sizes = fixed_cells(row_sizes(self._rows), "q")
        sent = [0] * view.count
        row = 0
        while row < len(self._cells):
            partition = choose(view, sent)
            row, taken = fill_run(self._cells, sizes, row, max(view.batch_size, 1), partition)
            sent[partition] += taken
        self._unplaced = 0

    def rest_to(self, partition: int) -> None:
        """Places all remaining rows on this partition."""
        nothing = memoryview(bytes(8 * len(self._cells))).cast("q")
        fill_run(self._cells, nothing, 0, 1, partition)
        self._unplaced = 0

    def finish(self) -> pa.Array:
        return pa.Array.from_buffers(
            pa.int32(), len(self._cells), [None, pa.py_buffer(self._cells)]
        )


def row_by_row(
    route: Callable[[bytes | None, Headers, int, int], int], rows: pa.RecordBatch
) -> pa.Array:
    """Calls `route(key, headers, timestamp_ms, size)` for each row, for routers that can only route
    single records."""
    keys = binary(rows.column("key")) if "key" in rows.schema.names else pa.nulls(len(rows))
    answers = array("i")
    for key, headers, when, size in zip(
        keys.to_pylist(), _headers(rows), times(rows), row_sizes(rows).to_pylist(), strict=True
    ):
        answers.append(route(key, headers, when, size))
    return pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(answers)])


def row_sizes(rows: pa.RecordBatch) -> pa.Array:
    """Returns the approximate size of each row as a record, as int64."""
    total: Any = pa.scalar(_ROW_OVERHEAD, pa.int64())
    for name in ("key", "value"):
        if name in rows.schema.names and not pa.types.is_null(rows.column(name).type):
            length = pc.binary_length(binary(rows.column(name))).cast(pa.int64())
            total = pc.add(total, length.fill_null(0))
    if isinstance(total, pa.Scalar):
        return pa.repeat(total, len(rows))
    return total


def times(rows: pa.RecordBatch) -> memoryview:
    """Returns each row's time in milliseconds since 1970; -1 for a row without one."""
    column = rows.column("timestamp") if "timestamp" in rows.schema.names else None
    return timestamps(column, len(rows), -1)


def binary(column: pa.Array) -> pa.Array:
    """Converts a key or value column of any supported type to bytes."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.cast(pa.large_binary())


def _headers(rows: pa.RecordBatch) -> Iterator[Headers]:
    if "headers" not in rows.schema.names:
        yield from ((),) * len(rows)
        return
    for cell in rows.column("headers").to_pylist():
        pairs = (tuple(item.values()) if isinstance(item, dict) else item for item in cell or ())
        yield tuple((_text(name), _bytes(value)) for name, value in pairs)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
