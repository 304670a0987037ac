"""Converts Arrow arrays of any usual type to the plain buffers that the encoding kernels need.

Slices are not copied. A slice's offset is passed on as its first cell.
"""

from __future__ import annotations

from array import array
from typing import Literal

import pyarrow as pa

from penstock.records import kernels

Kind = Literal["B", "i", "q"]
"""The type of a buffer's cells: bytes, 32-bit or 64-bit numbers."""


def fixed_cells(column: pa.Array, kind: Kind) -> memoryview:
    """Returns the cells of a fixed-width array."""
    return cells(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def cells(buffer: pa.Buffer | None, kind: Kind) -> memoryview:
    """Returns a whole buffer as cells."""
    content = memoryview(buffer if buffer is not None else b"").cast("B")
    width = array(kind).itemsize
    return content[: len(content) // width * width].cast(kind)


Flat = tuple[memoryview | None, memoryview | None, memoryview | None, int, int, int]
"""A binary array: offsets (None: all null), validity (None: none null), data, the first cell, the
number of cells, the size of the data."""


def ranges(column: pa.Array, name: str) -> kernels.Ranges:
    offsets, validity, data, first, count, limit = flat(column, name)
    return kernels.Ranges(offsets, validity, data, first=first, cells=count, limit=limit)


def flat(column: pa.Array, name: str) -> Flat:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return None, None, None, 0, len(column), 0
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        if not (
            pa.types.is_fixed_size_binary(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_string_view(kind)
        ):
            raise ValueError(f"the {name} column is {kind}; cast it to binary or string")
        column, wide = column.cast(pa.large_binary()), True
    validity, offsets, data = column.buffers()
    content = cells(data, "B")
    return (
        cells(offsets, "q" if wide else "i"),
        cells(validity, "B") if column.null_count else None,
        content,
        column.offset,
        len(column),
        len(content),
    )


def header_ranges(
    column: pa.Array,
) -> tuple[kernels.Ranges, kernels.Ranges, kernels.Ranges] | None:
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return None
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.large_list(kind.value_type))
        kind = column.type
    wide = pa.types.is_large_list(kind)
    if not (wide or pa.types.is_list(kind) or pa.types.is_map(kind)) or (
        not pa.types.is_map(kind)
        and not (pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2)
    ):
        raise ValueError(
            f"the headers column is {kind}; make it list<struct<key: string, value: binary>> "
            "or map<string, binary>"
        )
    children = column.values
    if not len(children):
        return None
    # Unlike field(), this applies the nulls of the struct to its fields.
    keys, values = children.flatten()
    validity, offsets = column.buffers()[:2]
    lists = kernels.Ranges(
        cells(offsets, "q" if wide else "i"),
        cells(validity, "B") if column.null_count else None,
        None,
        first=column.offset,
        cells=len(column),
        limit=len(children),
    )
    return lists, ranges(keys, "header key"), ranges(values, "header value")


def timestamps(column: pa.Array | None, count: int, now_ms: int | None) -> memoryview:
    missing = column is None or bool(column.null_count)
    if missing and now_ms is None:
        raise ValueError("some rows have no timestamp; give now_ms for them")
    if column is None or column.null_count == count:
        return memoryview(array("q", [now_ms or 0]) * count)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    else:
        raise ValueError(
            f"the timestamp column is {column.type}; make it timestamp, or integer milliseconds"
        )
    return fixed_cells(column.fill_null(now_ms) if missing else column, "q")
