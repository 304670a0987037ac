# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# ruff: noqa: B007
# (the compiler turns typed loop counters, plain arguments and plain branches into C)
"""Reads records, as Python objects or into Arrow buffers.

`penstock.records.kernels` explains the layout, and the compiled and uncompiled modes.

`RecordReader` walks the records of a payload and checks each completely before it is used.
`read_records` uses it to make Python objects, and `ColumnDecoder` to fill Arrow buffers without
objects. Any byte may be hostile: each read is checked against the end of its record, and each write
against the end of its buffer. Sums that would not fit into 64 bits are refused before they are
computed, so that compiled code never wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.records.batch import CorruptBatch

try:
    import cython
except ImportError:
    from penstock.records import cython_shim as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

COMPILED: bool = cython.compiled

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def varint_bytes(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the size of the 32-bit varint at `position`; 0 if it is malformed or cut off."""
    if position < end and data[position] < 0x80:
        return 1
    if position + 1 < end and data[position + 1] < 0x80:
        return 2
    return long_varint_bytes(data, position, end, 32)


@cython.cfunc
@cython.exceptval(check=False)
def long_varint_bytes(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> cython.Py_ssize_t:
    byte: cython.int
    shift: cython.int = 0
    start: cython.Py_ssize_t = position
    while position < end:
        byte = data[position]
        if shift + 7 > bits and byte >> (bits - shift) != 0:
            return 0
        position += 1
        if byte < 0x80:
            return position - start
        shift += 7
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def varint(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.longlong:
    """Returns the number in `size` bytes at `position`. Reads nothing if `size` is 0."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong
    shift: cython.int
    index: cython.Py_ssize_t
    if size > 0:
        raw = data[position]
    if size > 1:
        byte = data[position + 1]
        raw = (raw & 0x7F) | ((byte & 0x7F) << 7)
        shift = 14
        for index in range(position + 2, position + size):
            byte = data[index]
            raw |= (byte & 0x7F) << shift
            shift += 7
    return (raw >> 1) ^ -(raw & 1)


@cython.final
@cython.cclass
class RecordReader:
    """Walks the records of one payload. Its fields describe the record that was read last."""

    payload: cython.const[cython.uchar][::1]
    data: cython.pointer[cython.const[cython.uchar]]
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    record_end: cython.Py_ssize_t
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    key_start: cython.Py_ssize_t
    key_size: cython.Py_ssize_t
    value_start: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    headers_start: cython.Py_ssize_t
    header_count: cython.Py_ssize_t
    span: cython.longlong
    base_timestamp: cython.longlong
    timestamp_delta_min: cython.longlong
    timestamp_delta_max: cython.longlong
    has_append_timestamp: cython.bint
    append_timestamp: cython.longlong

    def __init__(
        self,
        payload: Any,
        count: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_timestamp: int | None,
    ) -> None:
        size = len(payload)
        # Each of a record's seven fields takes at least a byte.
        if count * 7 > size:
            raise CorruptBatch(f"{size} bytes cannot hold the {count} records the header promises")
        self.payload = payload
        if cython.compiled:
            if size:
                self.data = cython.address(self.payload[0])
        else:
            self.data = memoryview(payload)
        self.position, self.end = 0, size
        self.offset_delta = -1
        self.span = last_offset_delta
        self.base_timestamp = base_timestamp
        self.timestamp_delta_min = max(INT64_MIN, INT64_MIN - base_timestamp)
        self.timestamp_delta_max = min(INT64_MAX, INT64_MAX - base_timestamp)
        self.has_append_timestamp = append_timestamp is not None
        self.append_timestamp = 0 if append_timestamp is None else append_timestamp

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=False)
    def sized(self, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Reads a length, checks that so many bytes follow, and returns it; -1 for null."""
        step: cython.Py_ssize_t = varint_bytes(self.data, self.position, end)
        size: cython.longlong = varint(self.data, self.position, step)
        self.position += step
        if step == 0 or size < -1 or size > end - self.position:
            raise CorruptBatch(f"the length at byte {self.position} does not fit its record")
        return size

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def advance(self) -> cython.int:
        """Reads the next record and checks it completely.

        The position is in a local variable. Errors are checked only after all fields before the
        key, before the value or before the headers are read. Until then a malformed number has
        size 0 and value 0, so nothing beyond the end is read.
        """
        data: cython.pointer[cython.const[cython.uchar]] = self.data
        at: cython.Py_ssize_t = self.position
        step: cython.Py_ssize_t = varint_bytes(data, at, self.end)
        size: cython.longlong = varint(data, at, step)
        at += step
        if step == 0 or size < 6 or size > self.end - at:
            raise CorruptBatch(f"the record length at byte {self.position} does not fit the batch")
        end: cython.Py_ssize_t = at + size
        timestamp_bytes: cython.Py_ssize_t = 1
        at += 1
        if data[at] >= 0x80:
            timestamp_bytes = long_varint_bytes(data, at, end, 64)
        self.timestamp_delta = varint(data, at, timestamp_bytes)
        at += timestamp_bytes
        offset_bytes: cython.Py_ssize_t = varint_bytes(data, at, end)
        offset_delta: cython.longlong = varint(data, at, offset_bytes)
        at += offset_bytes
        step = varint_bytes(data, at, end)
        size = varint(data, at, step)
        at += step
        if timestamp_bytes == 0 or offset_bytes == 0 or step == 0 or size < -1 or size > end - at:
            raise CorruptBatch(f"a number or the key's length before byte {at} is malformed")
        self.key_start = at
        self.key_size = size
        if size > 0:
            at += size
        step = varint_bytes(data, at, end)
        size = varint(data, at, step)
        at += step
        if step == 0 or size < -1 or size > end - at:
            raise CorruptBatch(f"the value's length before byte {at} does not fit its record")
        self.value_start = at
        self.value_size = size
        if size > 0:
            at += size
        # Nearly every record ends here, with a single byte for "no headers".
        if at + 1 == end and data[at] == 0:
            step = 1
            size = 0
        else:
            step = varint_bytes(data, at, end)
            size = varint(data, at, step)
        at += step
        self.headers_start = at
        self.header_count = size
        if size > 0:
            at = self.pass_headers(at, end)
        if step == 0 or size < 0 or at != end:
            raise CorruptBatch(f"a record ends at byte {at}, not {end}, with {size} headers")
        self.position = self.record_end = end
        return self.accept(offset_delta)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1, check=False)
    def accept(self, offset_delta: cython.longlong) -> cython.int:
        """Checks that offsets increase and stay within the batch's span."""
        if offset_delta <= self.offset_delta or offset_delta > self.span:
            raise CorruptBatch(
                f"offset delta {offset_delta} after {self.offset_delta} is not in order "
                f"within the batch's span of {self.span + 1} offsets"
            )
        self.offset_delta = offset_delta
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def pass_headers(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Checks all headers, and returns their end."""
        if self.header_count > (end - start) // 2:
            raise CorruptBatch(f"a record cannot have {self.header_count} headers")
        index: cython.Py_ssize_t
        size: cython.Py_ssize_t
        self.position = start
        for index in range(self.header_count):
            size = self.sized(end)
            if size < 0:
                raise CorruptBatch(f"a header key at byte {self.position} is null")
            self.position += size
            size = self.sized(end)
            if size > 0:
                self.position += size
        return self.position

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-0x7FFFFFFFFFFFFFFE, check=True)
    def timestamp(self) -> cython.longlong:
        if self.has_append_timestamp:
            return self.append_timestamp
        delta: cython.longlong = self.timestamp_delta
        if delta < self.timestamp_delta_min or delta > self.timestamp_delta_max:
            raise CorruptBatch(f"timestamp {self.base_timestamp} + {delta} does not fit 64 bits")
        return self.base_timestamp + delta

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def finish(self) -> cython.int:
        """Checks that nothing follows the last record."""
        if self.position != self.end:
            raise CorruptBatch(f"{self.end - self.position} bytes follow the last record")
        return 0

    @cython.cfunc
    def blob(self, start: cython.Py_ssize_t, size: cython.Py_ssize_t) -> object:
        return None if size < 0 else bytes(self.data[start : start + size])

    @cython.cfunc
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        self.position = self.headers_start
        found = []
        index: cython.Py_ssize_t
        size: cython.Py_ssize_t
        try:
            for index in range(self.header_count):
                size = self.sized(self.record_end)
                key = self.blob(self.position, size).decode("utf-8")
                self.position += size
                size = self.sized(self.record_end)
                found.append((key, self.blob(self.position, size)))
                if size > 0:
                    self.position += size
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"a header key is not UTF-8: {error}") from None
        self.position = self.record_end
        return tuple(found)


def read_records(
    reader: RecordReader, count: int, base_offset: int, make: Callable[[tuple[Any, ...]], Any]
) -> list[Any]:
    """Returns all `count` records, each made from (offset, timestamp, key, value, headers)."""
    records = []
    index: cython.Py_ssize_t
    for index in range(count):
        reader.advance()
        fields = (
            base_offset + reader.offset_delta,
            reader.timestamp(),
            reader.blob(reader.key_start, reader.key_size),
            reader.blob(reader.value_start, reader.value_size),
            reader.headers() if reader.header_count else (),
        )
        records.append(make(fields))
    reader.finish()
    return records


@cython.final
@cython.cclass
class BinarySink:
    """The buffers of an Arrow binary array that is being filled. All validity bits start as set."""

    views: object
    offsets: cython.p_int
    validity: cython.p_uchar
    data: cython.p_uchar
    cells_max: cython.Py_ssize_t
    size_max: cython.Py_ssize_t
    cells: cython.Py_ssize_t
    size: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self) -> None:
        self.cells = 0
        self.size = 0
        self.nulls = 0

    def bind(self, offsets: Any, validity: Any, data: Any) -> None:
        """Sets new buffers. The caller has copied the content of the old ones."""
        cells: cython.int[::1] = offsets
        bits: cython.uchar[::1] = validity
        content: cython.uchar[::1] = data
        if cython.compiled:
            self.offsets = cython.address(cells[0])
            self.validity = cython.address(bits[0])
            self.data = cython.address(content[0])
        else:
            self.offsets = cells
            self.validity = bits
            self.data = content
        self.views = (offsets, validity, data)
        self.cells_max = min(len(offsets) - 1, len(validity) * 8)
        self.size_max = min(len(data), 0x7FFFFFFF)
        self.offsets[0] = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def require(self, cells: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Raises unless there is space for `cells` more cells with `size` bytes."""
        if cells > self.cells_max - self.cells or size > self.size_max - self.size:
            raise ValueError(f"no room was reserved for {cells} cells of {size} bytes")
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def add(
        self,
        source: cython.pointer[cython.const[cython.uchar]],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.void:
        """Adds a cell, which must fit. A null has size -1."""
        cell: cython.Py_ssize_t = self.cells
        if size > 0:
            if cython.compiled:
                memcpy(self.data + self.size, source + start, size)
            else:
                self.data[self.size : self.size + size] = source[start : start + size]
            self.size += size
        elif size < 0:
            self.validity[cell >> 3] &= 0xFF ^ (1 << (cell & 7))
            self.nulls += 1
        self.cells = cell + 1
        self.offsets[cell + 1] = self.size

    def state(self) -> tuple[int, int, int]:
        """Returns the number of cells, bytes and nulls so far."""
        return self.cells, self.size, self.nulls


@cython.final
@cython.cclass
class ColumnDecoder:
    """Fills Arrow buffers with the records of one batch after another."""

    keys: BinarySink
    values: BinarySink
    offsets: cython.longlong[::1]
    timestamps: cython.longlong[::1]
    header_stops: cython.int[::1]
    headers: cython.longlong
    header_bytes: cython.longlong

    def __init__(self, keys: BinarySink, values: BinarySink) -> None:
        self.keys = keys
        self.values = values
        self.headers = 0

    def bind(self, offsets: Any, timestamps: Any, header_stops: Any) -> None:
        self.offsets = offsets
        self.timestamps = timestamps
        self.header_stops = header_stops
        self.header_stops[0] = 0

    def append(
        self, reader: RecordReader, count: int, base_offset: int, from_offset: int, to_offset: int
    ) -> tuple[int, int]:
        """Adds a batch's records in [from, to). Returns the number and the bytes of their headers.

        All records are checked, including those that are left out. The space is checked once:
        records do not overlap, so all keys, or all values, are not longer than the payload.
        """
        offset: cython.longlong
        base: cython.longlong = base_offset
        low: cython.longlong = from_offset
        high: cython.longlong = to_offset
        keys: BinarySink = self.keys
        values: BinarySink = self.values
        offsets: cython.longlong[::1] = self.offsets
        timestamps: cython.longlong[::1] = self.timestamps
        header_stops: cython.int[::1] = self.header_stops
        row: cython.Py_ssize_t = keys.cells
        timestamp: cython.longlong
        headers: cython.longlong = self.headers
        header_bytes: cython.longlong = 0
        index: cython.Py_ssize_t
        if count > min(len(offsets), len(timestamps), len(header_stops) - 1) - row:
            raise ValueError(f"no room was reserved for {count} rows")
        keys.require(count, reader.end)
        values.require(count, reader.end)
        for index in range(count):
            reader.advance()
            timestamp = reader.timestamp()
            offset = base + reader.offset_delta
            if offset < low or offset >= high:
                continue
            offsets[row] = offset
            timestamps[row] = timestamp
            keys.add(reader.data, reader.key_start, reader.key_size)
            values.add(reader.data, reader.value_start, reader.value_size)
            if reader.header_count:
                headers += reader.header_count
                header_bytes += reader.record_end - reader.headers_start
            row += 1
            header_stops[row] = headers
        reader.finish()
        added = headers - self.headers
        self.headers = headers
        return added, header_bytes


def append_headers(
    reader: RecordReader,
    count: int,
    base_offset: int,
    from_offset: int,
    to_offset: int,
    *,
    keys: BinarySink,
    values: BinarySink,
) -> None:
    """Adds the headers of the records that `ColumnDecoder.append` has added, from a new reader."""
    offset: cython.longlong
    base: cython.longlong = base_offset
    low: cython.longlong = from_offset
    high: cython.longlong = to_offset
    index: cython.Py_ssize_t
    header: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for index in range(count):
        reader.advance()
        offset = base + reader.offset_delta
        if offset < low or offset >= high:
            continue
        reader.position = reader.headers_start
        keys.require(reader.header_count, reader.record_end - reader.headers_start)
        values.require(reader.header_count, reader.record_end - reader.headers_start)
        for header in range(reader.header_count):
            size = reader.sized(reader.record_end)
            keys.add(reader.data, reader.position, size)
            reader.position += size
            size = reader.sized(reader.record_end)
            values.add(reader.data, reader.position, size)
            if size > 0:
                reader.position += size
