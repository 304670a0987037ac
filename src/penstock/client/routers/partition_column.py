"""The partition of each row of a table: as given in its `partition` column, or routed. Pure.

This module imports pyarrow, so it is imported when the first table is sent.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.routers.base import Router
from penstock.client.routers.partition_view import PartitionView, RoutingError
from penstock.records.arrow_input import timestamps


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


def _timed(rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    if "timestamp" not in rows.schema.names:
        now = pa.repeat(pa.scalar(now_ms, pa.int64()), len(rows))
        return rows.append_column("timestamp", now)
    column = rows.column("timestamp")
    if not column.null_count:
        return rows
    filled = pa.array(timestamps(column, len(rows), now_ms), pa.int64())
    return rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", filled)


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
