"""Builds Arrow columns from batches. The decoding kernels fill them.

Each batch is checked, decompressed and copied while it is still in the processor's cache, and is
not kept. Buffers double when they are full. A batch's keys and values together are not longer than
its payload, so this much is reserved for each of them before it is read. Reserved memory that is
never written to costs nothing.
"""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa

from penstock.records import kernels
from penstock.records.arrow_input import Kind
from penstock.records.batch import BatchHeader, CorruptBatch
from penstock.records.compression import DecompressedTooLarge
from penstock.records.record import append_timestamp, read_payload

HEADERS_TYPE: Final = pa.list_(
    pa.field("item", pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())]))
)
TIMESTAMP_TYPE: Final = pa.timestamp("ms", "UTC")


class _Growing:
    """A buffer for Arrow that doubles when it is full."""

    def __init__(self, kind: Kind, capacity: int, fill: bytes = b"") -> None:
        self._kind = kind
        self._fill = fill
        self._width = array(kind).itemsize
        self._buffer, self.view = self._allocate(capacity)

    def _allocate(self, capacity: int) -> tuple[pa.Buffer, memoryview]:
        buffer = pa.allocate_buffer(max(64, (capacity * self._width + 7) & ~7))
        view = memoryview(buffer).cast("B")
        if self._fill:
            view[:] = self._fill * len(view)
        return buffer, view.cast(self._kind) if self._kind != "B" else view

    def reserve(self, used: int, more: int) -> bool:
        """Ensures space for `more` cells after the `used` ones. Returns True for a new view."""
        if used + more <= len(self.view):
            return False
        old = self.view
        self._buffer, self.view = self._allocate(max(used + more, 2 * len(old)))
        # Copies what the kernels wrote. For offsets and bits that includes the cell in progress.
        kept = min(used + 1, len(old))
        self.view[:kept] = old[:kept]
        return True

    def finish(self, used: int) -> pa.Buffer:
        """Returns the used part of the buffer, as a copy if less than three quarters are used."""
        size = used * self._width
        if size * 4 < self._buffer.size * 3:
            return pa.py_buffer(self._buffer.slice(0, size).to_pybytes())
        return self._buffer.slice(0, size)


class _BinaryColumn:
    """A binary column that is being filled."""

    def __init__(self, cells: int, size: int) -> None:
        self._offsets = _Growing("i", cells + 1)
        self._validity = _Growing("B", cells // 8 + 1, b"\xff")
        self._data = _Growing("B", size)
        self.sink = kernels.BinarySink()
        self._bind()

    def _bind(self) -> None:
        self.sink.bind(self._offsets.view, self._validity.view, self._data.view)

    def reserve(self, cells_more: int, bytes_more: int) -> None:
        cells, size, _ = self.sink.state()
        moved = self._offsets.reserve(cells, cells_more + 1)
        moved |= self._validity.reserve(cells // 8, cells_more // 8 + 2)
        moved |= self._data.reserve(size, bytes_more)
        if moved:
            self._bind()

    def finish(self, kind: pa.DataType) -> pa.Array:
        cells, size, nulls = self.sink.state()
        validity = self._validity.finish((cells + 7) // 8) if nulls else None
        buffers = [validity, self._offsets.finish(cells + 1), self._data.finish(size)]
        return pa.Array.from_buffers(kind, cells, buffers, nulls)


class Columns:
    """All columns that are being filled, and how many bytes may still be decompressed."""

    def __init__(
        self, rows: int, size: int, *, headers: bool, partitions: bool, bytes_max: int
    ) -> None:
        """Allocates memory for the expected rows and bytes. There may be more."""
        size = min(size, bytes_max)
        self.rows = 0
        self._bytes_max = bytes_max
        self.bytes_left = bytes_max
        self._with_headers = headers
        self._with_partitions = partitions
        self._keys = _BinaryColumn(rows, size)
        self._values = _BinaryColumn(rows, size)
        self._offsets = _Growing("q", rows)
        self._timestamps = _Growing("q", rows)
        self._header_stops = _Growing("i", rows + 1)
        self._header_keys = _BinaryColumn(0, 0)
        self._header_values = _BinaryColumn(0, 0)
        self._types = bytearray()
        self._partitions = array("i")
        self._decoder = kernels.ColumnDecoder(self._keys.sink, self._values.sink)
        self._bind()

    def _bind(self) -> None:
        self._decoder.bind(self._offsets.view, self._timestamps.view, self._header_stops.view)

    def _reserve(self, rows_more: int, bytes_more: int) -> None:
        self._keys.reserve(rows_more, bytes_more)
        self._values.reserve(rows_more, bytes_more)
        moved = self._offsets.reserve(self.rows, rows_more)
        moved |= self._timestamps.reserve(self.rows, rows_more)
        moved |= self._header_stops.reserve(self.rows, rows_more + 1)
        if moved:
            self._bind()

    def add(
        self,
        packed: memoryview,
        header: BatchHeader,
        *,
        from_offset: int,
        to_offset: int,
        partition: int | None,
    ) -> None:
        """Adds the records in [from, to) of one batch. `packed` are the bytes after its header."""
        try:
            payload = read_payload(packed, header, self.bytes_left)
        except DecompressedTooLarge as error:
            raise DecompressedTooLarge(
                f"one call may decode {self._bytes_max} bytes, of which {self.bytes_left} were "
                f"left: {error}"
            ) from None
        self.bytes_left -= len(payload)
        count = header.record_count
        window = (header.base_offset, from_offset, to_offset)
        reader = _reader(payload, header)
        self._reserve(count, len(payload))
        headers, header_bytes = self._decoder.append(reader, count, *window)
        if headers and self._with_headers:
            self._header_keys.reserve(headers, header_bytes)
            self._header_values.reserve(headers, header_bytes)
            kernels.append_headers(
                _reader(payload, header),
                count,
                *window,
                keys=self._header_keys.sink,
                values=self._header_values.sink,
            )
        rows = self._keys.sink.state()[0]
        self._types += bytes((header.timestamp_type,)) * (rows - self.rows)
        if self._with_partitions:
            number = -1 if partition is None else partition
            self._partitions += array("i", [number]) * (rows - self.rows)
        self.rows = rows

    def finish(self) -> pa.RecordBatch:
        def fixed(kind: pa.DataType, buffer: pa.Buffer) -> pa.Array:
            return pa.Array.from_buffers(kind, self.rows, [None, buffer], 0)

        columns = {
            "key": self._keys.finish(pa.binary()),
            "value": self._values.finish(pa.binary()),
        }
        if self._with_headers:
            columns["headers"] = self._finish_headers()
        columns["timestamp"] = fixed(TIMESTAMP_TYPE, self._timestamps.finish(self.rows))
        columns["timestamp_type"] = fixed(pa.int8(), pa.py_buffer(self._types))
        columns["offset"] = fixed(pa.int64(), self._offsets.finish(self.rows))
        if self._with_partitions:
            columns["partition"] = fixed(pa.int32(), pa.py_buffer(self._partitions))
        return pa.RecordBatch.from_pydict(columns)

    def _finish_headers(self) -> pa.Array:
        keys = self._header_keys.finish(pa.string())
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptBatch(f"a header key is not UTF-8: {error}") from None
        values = self._header_values.finish(pa.binary())
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
        stops = self._header_stops.finish(self.rows + 1)
        return pa.Array.from_buffers(HEADERS_TYPE, self.rows, [None, stops], 0, children=[pairs])


def _reader(payload: memoryview, header: BatchHeader) -> kernels.RecordReader:
    return kernels.RecordReader(
        payload,
        header.record_count,
        header.last_offset_delta,
        header.base_timestamp,
        append_timestamp(header),
    )
