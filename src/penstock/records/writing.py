# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# ruff: noqa: SIM108
# (the compiler turns typed loop counters, plain arguments and plain branches into C)
"""Writes records, from Python objects or from Arrow arrays.

`penstock.records.kernels` explains the layout, and the compiled and uncompiled modes.

A record begins with its own length, so it is measured first and then written. `append_records`
writes Python objects. `ColumnEncoder` writes rows of Arrow arrays, without an object per row. The
arrays belong to this process, but they may be malformed, and another thread may change them. So
offsets are checked before they are used, and the free space is checked before each write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from penstock.records import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy

COMPILED: bool = cython.compiled

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.ulonglong = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return 1
    if raw < 0x4000:
        return 2
    size: cython.Py_ssize_t = 2
    raw >>= 14
    while raw:
        size += 1
        raw >>= 7
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_varint(
    data: cython.p_uchar, position: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Writes a number and returns the position after it. The caller has checked the space."""
    raw: cython.ulonglong = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        data[position] = raw
        return position + 1
    if raw < 0x4000:
        data[position] = (raw & 0x7F) | 0x80
        data[position + 1] = raw >> 7
        return position + 2
    while raw >= 0x80:
        data[position] = (raw & 0x7F) | 0x80
        position += 1
        raw >>= 7
    data[position] = raw
    return position + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def body_size(
    timestamp_delta: cython.longlong,
    offset_delta: cython.longlong,
    key_size: cython.Py_ssize_t,
    value_size: cython.Py_ssize_t,
    header_count: cython.Py_ssize_t,
    header_bytes: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the value of the length field of such a record."""
    size: cython.Py_ssize_t = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    size += varint_size(key_size) + (key_size if key_size > 0 else 0)
    size += varint_size(value_size) + (value_size if value_size > 0 else 0)
    return size + varint_size(header_count) + header_bytes


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_head(
    data: cython.p_uchar,
    position: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
    timestamp_delta: cython.longlong,
    offset_delta: cython.longlong,
    key_size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Writes everything before the key, and returns the key's position."""
    position = put_varint(data, position, body)
    data[position] = 0
    position = put_varint(data, position + 1, timestamp_delta)
    position = put_varint(data, position, offset_delta)
    return put_varint(data, position, key_size)


def append_records(
    out: bytearray, records: Sequence[Any], base_offset: int, base_timestamp: int
) -> None:
    """Appends each (offset, timestamp, key, value, headers) to `out`.

    The caller has checked that deltas fit their fields and that header keys are text; see
    `record.build_batch`.
    """
    for offset, timestamp, key, value, headers in records:
        append_record(out, offset - base_offset, timestamp - base_timestamp, key, value, headers)


@cython.ccall
def append_record(
    out: bytearray,
    offset_delta: cython.longlong,
    timestamp_delta: cython.longlong,
    key: bytes | None,
    value: bytes | None,
    headers: Any,
) -> object:
    """Appends one record, and returns its size."""
    tail: bytes = b""
    header_count: cython.Py_ssize_t = 0
    if headers:
        tail = bytes(_pack_headers(headers))
        header_count = len(headers)
    key_size: cython.Py_ssize_t = -1 if key is None else len(key)
    value_size: cython.Py_ssize_t = -1 if value is None else len(value)
    body: cython.Py_ssize_t = body_size(
        timestamp_delta, offset_delta, key_size, value_size, header_count, len(tail)
    )
    start: cython.Py_ssize_t = len(out)
    size: cython.Py_ssize_t = varint_size(body) + body
    data: cython.p_uchar
    if cython.compiled:
        PyByteArray_Resize(out, start + size)
        data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out))
    else:
        out += bytes(size)
        data = out
    position: cython.Py_ssize_t = put_head(
        data, start, body, timestamp_delta, offset_delta, key_size
    )
    if key is not None:
        position = put_bytes(data, position, key)
    position = put_varint(data, position, value_size)
    if value is not None:
        position = put_bytes(data, position, value)
    put_bytes(data, put_varint(data, position, header_count), tail)
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_bytes(
    data: cython.p_uchar, position: cython.Py_ssize_t, content: bytes
) -> cython.Py_ssize_t:
    if cython.compiled:
        memcpy(data + position, PyBytes_AS_STRING(content), len(content))
    else:
        data[position : position + len(content)] = content
    return position + len(content)


@cython.cfunc
def _pack_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytearray:
    scratch = bytearray(16)
    view: cython.uchar[::1] = scratch
    data: cython.p_uchar
    if cython.compiled:
        data = cython.address(view[0])
    else:
        data = view
    out = bytearray()
    size: cython.Py_ssize_t
    for name, value in headers:
        key = name.encode("utf-8")
        size = put_varint(data, 0, len(key))
        out += scratch[:size]
        out += key
        size = put_varint(data, 0, -1 if value is None else len(value))
        out += scratch[:size]
        if value is not None:
            out += value
    return out


@cython.final
@cython.cclass
class Ranges:
    """The ranges of the cells of a variable-length Arrow array, and which cells are null.

    Binary and text arrays have `data`. Lists have none: their ranges are of children. `limit` is
    the size of the data or the number of children. In an array without `offsets` all cells are
    null.
    """

    narrow: cython.const[cython.int][::1]
    wide: cython.const[cython.longlong][::1]
    validity: cython.const[cython.uchar][::1]
    bytes: cython.const[cython.uchar][::1]
    data: cython.pointer[cython.const[cython.uchar]]
    all_null: cython.bint
    is_wide: cython.bint
    has_nulls: cython.bint
    first: cython.Py_ssize_t
    cells: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    start: cython.Py_ssize_t

    def __init__(
        self, offsets: Any, validity: Any, data: Any, *, first: int, cells: int, limit: int
    ) -> None:
        self.all_null = offsets is None
        self.is_wide = offsets is not None and offsets.itemsize == 8
        self.has_nulls = validity is not None
        if (offsets is not None and len(offsets) <= first + cells) or (
            validity is not None and len(validity) * 8 < first + cells
        ):
            raise ValueError("an Arrow array has fewer cells than it says; call its validate()")
        if self.is_wide:
            self.wide = offsets
        elif offsets is not None:
            self.narrow = offsets
        if validity is not None:
            self.validity = validity
        if cython.compiled:
            if data is not None and len(data):
                self.bytes = data
                self.data = cython.address(self.bytes[0])
        else:
            self.data = data
        self.first = first
        self.cells = cells
        self.limit = limit

    def total(self) -> int:
        """Returns the bytes of all cells, if their offsets are sound."""
        last: cython.Py_ssize_t = self.first + self.cells
        total: cython.Py_ssize_t = 0
        if self.is_wide:
            total = self.wide[last] - self.wide[self.first]
        elif not self.all_null:
            total = self.narrow[last] - self.narrow[self.first]
        return int(max(total, 0))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=False)
    def locate(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the size of a cell, -1 for null, and sets `start`. The row must exist."""
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        cell: cython.Py_ssize_t = self.first + row
        if self.all_null:
            return -1
        if self.has_nulls and not (self.validity[cell >> 3] >> (cell & 7)) & 1:
            return -1
        if self.is_wide:
            start = self.wide[cell]
            stop = self.wide[cell + 1]
        else:
            start = self.narrow[cell]
            stop = self.narrow[cell + 1]
        if start < 0 or stop < start or stop > self.limit:
            raise ValueError("an Arrow array's offsets leave its data; call its validate()")
        self.start = start
        return stop - start

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def put(
        self, target: cython.p_uchar, position: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Copies the cell that `locate` found, which has this size, and returns the position after
        the copy. The caller has checked the space."""
        if size <= 0:
            return position
        if cython.compiled:
            memcpy(target + position, self.data + self.start, size)
        else:
            target[position : position + size] = self.data[self.start : self.start + size]
        return position + size


@cython.final
@cython.cclass
class ColumnEncoder:
    """Writes rows of Arrow arrays as records.

    `order` has the numbers of the rows to write; without it, all rows are written in order. Rows
    are written in runs: the first row of a run has offset delta 0, and its timestamp is the base
    timestamp.
    """

    keys: Ranges
    values: Ranges
    header_lists: Ranges
    header_keys: Ranges
    header_values: Ranges
    has_headers: cython.bint
    timestamps: cython.const[cython.longlong][::1]
    order: cython.const[cython.longlong][::1]
    has_order: cython.bint
    rows: cython.Py_ssize_t
    base_timestamp: cython.longlong
    timestamp_min: cython.longlong
    timestamp_max: cython.longlong
    header_start: cython.Py_ssize_t
    header_count: cython.Py_ssize_t

    def __init__(
        self,
        keys: Ranges,
        values: Ranges,
        timestamps: Any,
        *,
        headers: tuple[Ranges, Ranges, Ranges] | None,
        order: Any,
    ) -> None:
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.rows = min(len(timestamps), keys.cells, values.cells)
        self.has_order = order is not None
        self.order = timestamps if order is None else order
        self.has_headers = headers is not None
        self.header_start = 0
        self.header_count = 0
        if headers is not None:
            self.header_lists, self.header_keys, self.header_values = headers
            self.rows = min(self.rows, self.header_lists.cells)
            if self.header_lists.limit > min(self.header_keys.cells, self.header_values.cells):
                raise ValueError("the headers column is malformed; call its validate()")

    def bytes_max(self) -> int:
        """Returns an upper bound for the bytes of all rows as records."""
        size: cython.Py_ssize_t = 36 * self.rows + self.keys.total() + self.values.total()
        if self.has_headers:
            size += 10 * self.header_keys.cells
            size += self.header_keys.total() + self.header_values.total()
        return int(size)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1, check=False)
    def row(self, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
        row: cython.Py_ssize_t = self.order[index] if self.has_order else index
        if row < 0 or row >= self.rows:
            raise ValueError(f"row {row} is outside the {self.rows} rows")
        return row

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def begin(self, index: cython.Py_ssize_t) -> cython.int:
        """Starts a run. Timestamps are relative to its first row, and must not be too far away."""
        base = self.timestamps[self.row(index)]
        self.base_timestamp = base
        self.timestamp_min = max(INT64_MIN, INT64_MIN + int(base))
        self.timestamp_max = min(INT64_MAX, INT64_MAX + int(base))
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def measure_headers(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Finds a row's headers, and returns their size in bytes."""
        child: cython.Py_ssize_t
        size: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        self.header_count = max(self.header_lists.locate(row), 0)
        self.header_start = self.header_lists.start
        for child in range(self.header_start, self.header_start + self.header_count):
            size = self.header_keys.locate(child)
            if size < 0:
                raise ValueError(f"row {row} has a header without a key; give every header one")
            total += varint_size(size) + size
            size = self.header_values.locate(child)
            total += varint_size(size) + (size if size > 0 else 0)
        return total

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def put_headers(
        self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        child: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for child in range(self.header_start, self.header_start + self.header_count):
            key_size = self.header_keys.locate(child)
            size = self.header_values.locate(child)
            # The sizes were measured before, but another thread may have changed the buffer.
            if key_size < 0 or varint_size(key_size) + key_size > end - at - varint_size(size) - (
                size if size > 0 else 0
            ):
                raise ValueError("the headers changed while they were being encoded")
            at = self.header_keys.put(data, put_varint(data, at, key_size), key_size)
            at = self.header_values.put(data, put_varint(data, at, size), size)
        return at

    def fill(
        self, out: memoryview, position: int, end: int, first: int, stop: int
    ) -> tuple[int, int, int, int]:
        """Writes rows from `first` on to `out`, from `position` until one would pass `end`.

        Returns the row after the last one written, the position after it, and the base and max
        timestamp. If not even the first row fits, the position is where it would have ended.
        """
        view: cython.uchar[::1] = out
        data: cython.p_uchar
        if cython.compiled:
            data = cython.address(view[0])
        else:
            data = view
        keys: Ranges = self.keys
        values: Ranges = self.values
        at: cython.Py_ssize_t = position
        limit: cython.Py_ssize_t = min(end, len(out))
        start: cython.Py_ssize_t = first
        last: cython.Py_ssize_t = min(stop, len(self.order))
        index: cython.Py_ssize_t
        row: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        size: cython.Py_ssize_t
        header_bytes: cython.Py_ssize_t = 0
        timestamp: cython.longlong
        time_delta: cython.longlong
        self.begin(start)
        max_timestamp: cython.longlong = self.base_timestamp
        index = start
        while index < last:
            row = self.row(index)
            key_size = keys.locate(row)
            value_size = values.locate(row)
            timestamp = self.timestamps[row]
            if timestamp < self.timestamp_min or timestamp > self.timestamp_max:
                raise ValueError(f"timestamp {timestamp} is too far from {self.base_timestamp}")
            time_delta = timestamp - self.base_timestamp
            if self.has_headers:
                header_bytes = self.measure_headers(row)
            size = body_size(
                time_delta, index - start, key_size, value_size, self.header_count, header_bytes
            )
            if size + varint_size(size) > limit - at:
                if index == start:
                    at += size + varint_size(size)
                break
            max_timestamp = max(max_timestamp, timestamp)
            at = put_head(data, at, size, time_delta, index - start, key_size)
            at = put_varint(data, keys.put(data, at, key_size), value_size)
            at = values.put(data, at, value_size)
            at = put_varint(data, at, self.header_count)
            if self.header_count > 0:
                at = self.put_headers(data, at, limit)
            index += 1
        return index, at, self.base_timestamp, max_timestamp
