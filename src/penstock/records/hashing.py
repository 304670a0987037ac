# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# (the compiler turns typed loop counters and plain arguments into C)
"""Hashes keys to partitions, in the same way as other Kafka clients.

`murmur2` is 32-bit MurmurHash2 with the seed of Java's producer. `crc32` is zlib's CRC, which
librdkafka uses. Java drops the hash's sign bit and librdkafka does not. Both then take the hash
modulo the number of partitions. So a key goes to the same partition as with those clients.

The column kernels do the same for a whole Arrow array, without an object per row. Arrays may be
malformed, so offsets are checked before they are used. `penstock.records.kernels` explains the
compiled and uncompiled modes.
"""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

try:
    import cython
except ImportError:
    from penstock.records import cython_shim as cython

COMPILED: bool = cython.compiled

MURMUR2 = 0
CRC32 = 1

UNPLACED = -1
"""The partition of a row whose key is null."""

_MALFORMED = "an Arrow array's offsets leave its data; call its validate()"


def _crc_table() -> array[int]:
    table = array("I")
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (0xEDB88320 if state & 1 else 0)
        table.append(state)
    return table


_CRC_TABLE = _crc_table()


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _murmur2_at(
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.uint:
    # Uncompiled, numbers do not wrap, hence the masks, which cost nothing in C. Compiled, a
    # literal above 31 bits is a Python object unless it is only assigned.
    factor: cython.uint = 0x5BD1E995
    mask: cython.uint = 0xFFFFFFFF
    state: cython.uint = 0x9747B28C
    length: cython.uint = size & 0x7FFFFFFF
    state ^= length
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    word: cython.uint
    byte: cython.uint
    rest: cython.int
    while end - at >= 4:
        word = data[at]
        byte = data[at + 1]
        word |= byte << 8
        byte = data[at + 2]
        word |= byte << 16
        byte = data[at + 3]
        word |= byte << 24
        word = (word * factor) & mask
        word = ((word ^ (word >> 24)) * factor) & mask
        state = ((state * factor) & mask) ^ word
        at += 4
    rest = end - at
    if rest > 0:
        if rest == 3:
            byte = data[at + 2]
            state ^= byte << 16
        if rest >= 2:
            byte = data[at + 1]
            state ^= byte << 8
        state = ((state ^ data[at]) * factor) & mask
    state = ((state ^ (state >> 13)) * factor) & mask
    return state ^ (state >> 15)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _crc32_at(
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    table: cython.pointer[cython.const[cython.uint]],
) -> cython.uint:
    if not cython.compiled:
        return crc32(data[start : start + size])
    ones: cython.uint = 0xFFFFFFFF
    state: cython.uint = ones
    at: cython.Py_ssize_t
    for at in range(start, start + size):
        state = (state >> 8) ^ table[(state ^ data[at]) & 0xFF]
    return state ^ ones


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _partition_at(
    data: cython.pointer[cython.const[cython.uchar]],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    table: cython.pointer[cython.const[cython.uint]],
    by_crc: cython.bint,
    partitions: cython.uint,
) -> cython.uint:
    if by_crc:
        return _crc32_at(data, start, size, table) % partitions
    return (_murmur2_at(data, start, size) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Returns the hash as an unsigned 32-bit number."""
    data: cython.pointer[cython.const[cython.uchar]] = key
    return int(_murmur2_at(data, 0, len(key)))


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition that Java's producer chooses. `partitions` is at least 1."""
    data: cython.pointer[cython.const[cython.uchar]] = key
    count: cython.uint = partitions
    return int((_murmur2_at(data, 0, len(key)) & 0x7FFFFFFF) % count)


def place_keys(
    cells: tuple[Any, Any, Any, int, int, int], partitions: int, algorithm: int, out: memoryview
) -> int:
    """Writes each row's partition to `out` (32-bit), -1 for a null key. Returns the null count.

    `cells` describes a binary array as `arrow_input.flat` does: offsets (None: all are null),
    validity (None: none is null), data, first cell, number of cells, size of the data.
    """
    offsets, validity, content, first_cell, count, data_size = cells
    first: cython.Py_ssize_t = first_cell
    rows: cython.Py_ssize_t = count
    limit: cython.Py_ssize_t = data_size
    target: cython.int[::1] = out
    if len(out) < rows or partitions < 1:
        raise ValueError(f"no room for {rows} rows of {partitions} partitions")
    if offsets is None:
        return _place_none(out, count)
    is_wide: cython.bint = offsets.itemsize == 8
    has_nulls: cython.bint = validity is not None
    bits: cython.const[cython.uchar][::1] = validity if has_nulls else b"\0"
    narrow: cython.const[cython.int][::1] = None if is_wide else offsets
    wide: cython.const[cython.longlong][::1] = offsets if is_wide else None
    _check_lengths(len(offsets), len(bits) if has_nulls else -1, first_cell + count, limit, content)
    view: cython.const[cython.uchar][::1] = content if limit else b"\0"
    table_view: cython.const[cython.uint][::1] = _CRC_TABLE
    data: cython.pointer[cython.const[cython.uchar]]
    table: cython.pointer[cython.const[cython.uint]]
    if cython.compiled:
        data = cython.address(view[0])
        table = cython.address(table_view[0])
    else:
        data = view
        table = table_view
    modulus: cython.uint = partitions
    by_crc: cython.bint = algorithm == CRC32
    row: cython.Py_ssize_t
    cell: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    nulls: cython.Py_ssize_t = 0
    for row in range(rows):
        cell = first + row
        if has_nulls and not (bits[cell >> 3] >> (cell & 7)) & 1:
            target[row] = -1
            nulls += 1
            continue
        if is_wide:
            start = wide[cell]
            stop = wide[cell + 1]
        else:
            start = narrow[cell]
            stop = narrow[cell + 1]
        if start < 0 or stop < start or stop > limit:
            raise ValueError(_MALFORMED)
        target[row] = _partition_at(data, start, stop - start, table, by_crc, modulus)
    return int(nulls)


def _place_none(out: memoryview, count: int) -> int:
    """Marks the first `count` rows, whose keys are all null, and returns their number."""
    target: cython.int[::1] = out
    rows: cython.Py_ssize_t = count
    row: cython.Py_ssize_t
    for row in range(rows):
        target[row] = UNPLACED
    return count


def _check_lengths(offsets: int, validity: int, cells: int, limit: int, content: Any) -> None:
    too_few = offsets <= cells or (0 <= validity < (cells + 7) // 8)
    if too_few or limit > (0 if content is None else len(content)):
        raise ValueError("an Arrow array has fewer cells than it says; call its validate()")


def fill_run(
    placed: memoryview, sizes: memoryview, first: int, room: int, partition: int
) -> tuple[int, int]:
    """Assigns unplaced rows from `first` on to the partition until they have `room` bytes.

    The row that reaches the limit is included. Returns the row to continue from, and the number of
    bytes assigned.
    """
    target: cython.int[::1] = placed
    size_of: cython.const[cython.longlong][::1] = sizes
    row: cython.Py_ssize_t = first
    rows: cython.Py_ssize_t = min(len(placed), len(sizes))
    limit: cython.longlong = room
    chosen: cython.int = partition
    taken: cython.longlong = 0
    while row < rows and taken < limit:
        if target[row] == -1:
            target[row] = chosen
            taken += size_of[row]
        row += 1
    return int(row), int(taken)
