"""Routes Arrow columns: chooses a partition for each of many rows, without an object per row.

`Placed` collects the results: first the keys that are placed by hash, then runs of rows without a
key, each as long as a batch. Routers that can only route single records are called row by row. The
routers import this module when they are given columns, because it imports pyarrow. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.model import Headers
from penstock.client.routers.base import PartitionView, Router, RoutingError, checked
from penstock.client.routers.default import Choose
from penstock.records.arrow_input import fixed_cells, flat, timestamps
from penstock.records.hashing import CRC32, MURMUR2, UNPLACED, fill_run, place_keys

__all__ = ["CRC32", "MURMUR2", "Placed", "assign_partitions", "binary", "row_by_row", "times"]

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


def assign_partitions(
    router: Router, topic: str, rows: pa.RecordBatch, view: PartitionView, now_ms: int
) -> pa.Array:
    rows = _timed(rows, now_ms)
    given = rows.column("partition") if "partition" in rows.schema.names else None
    if given is None or given.null_count == len(rows):
        return _checked_column(router.route_columns(topic, rows, view), len(rows), router, view)
    try:
        given = given.cast(pa.int32())
    except pa.ArrowInvalid:
        raise RoutingError(f"the partition column has type {given.type}: use int32") from None
    _check_bounds(given, "the partition column contains", view)
    if not given.null_count:
        return given
    absent = pc.is_null(given)
    routed = router.route_columns(topic, rows.filter(absent), view)
    routed = _checked_column(routed, given.null_count, router, view)
    return pc.replace_with_mask(given, absent, routed)


def row_by_row(router: Router, topic: str, rows: pa.RecordBatch, view: PartitionView) -> pa.Array:
    """Routes row by row, for routers that can only route single records."""
    keys = binary(rows.column("key")) if "key" in rows.schema.names else pa.nulls(len(rows))
    answers = array("i")
    for key, headers, when, size in zip(
        keys.to_pylist(), _headers(rows), times(rows), row_sizes(rows).to_pylist(), strict=True
    ):
        answers.append(checked(router, router.route(topic, key, headers, when, size, view), view))
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


def _timed(rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    if "timestamp" not in rows.schema.names:
        now = pa.repeat(pa.scalar(now_ms, pa.int64()), len(rows))
        return rows.append_column("timestamp", now)
    column = rows.column("timestamp")
    if not column.null_count:
        return rows
    filled = pa.array(timestamps(column, len(rows), now_ms), pa.int64())
    return rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", filled)


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


def _checked_column(answer: Any, rows: int, router: Router, view: PartitionView) -> pa.Array:
    who = type(router).__name__
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if not isinstance(answer, pa.Array) or len(answer) != rows or answer.null_count:
        raise RoutingError(f"{who}.route_columns must return one partition for each of {rows} rows")
    answer = answer.cast(pa.int32())
    _check_bounds(answer, f"{who} returned", view)
    return answer


def _check_bounds(partitions: pa.Array, who: str, view: PartitionView) -> None:
    bounds = pc.min_max(partitions)
    for partition in (bounds["min"].as_py(), bounds["max"].as_py()):
        if partition is not None and not 0 <= partition < view.count:
            raise RoutingError(
                f"{who} partition {partition}, but the topic has partitions 0 to {view.count - 1}"
            )
