# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# ruff: noqa: B007
# (the compiler turns typed loop counters, plain arguments and plain branches into C)
"""Checks and searches records without making objects of them.

`ordinary_fields` checks a producer's batch before a leader appends it: header, CRC and records in
one call, since it is part of every append. `scan_payload` checks the records of a batch that is
compressed or not ordinary, says what is wrong, and optionally lets other threads run meanwhile.
`find_records`, `first_record_at` and `newest_record` search for single records of a batch.

Layout and validity are those of `reading` (`penstock.records.kernels` has the layout); tests
compare the two. One more rule is for producers: they number their records 0, 1, 2 and so on. Any
byte may be hostile, so each read is checked against the end of its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from penstock.records.batch import CorruptBatch, HeaderFields, unpack_fields

try:
    import cython
except ImportError:
    from penstock.records import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )

COMPILED: bool = cython.compiled

# `scan` has these as literals: compiled, it must not access names of the module.
HAS_KEYLESS = 1
"""A record has no key."""
HAS_EARLY = 2
"""A timestamp is before the `earliest` that was given."""
HAS_LATE = 4
"""A timestamp is after the `latest` that was given."""
HAS_OTHER_MAX_TIMESTAMP = 8
"""The largest timestamp is not the one in the header."""

HAS_GAP = 16
"""An offset delta is not the number of its record."""

_ALL = (1 << 63) - 1
_REASONS = (
    "",
    "its length does not fit the batch",
    "its timestamp delta is malformed, or the timestamp does not fit 64 bits",
    "its offset delta is malformed",
    "the length of its key does not fit",
    "the length of its value does not fit",
    "its headers do not fill the rest of it, or the name of one is not UTF-8",
)
"""What can be wrong with a record, by the number that `scan` returns for it."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def number(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> cython.longlong:
    """Returns the varint at `at`: its zigzag value times 16, plus its number of bytes.

    Returns 0 if it is malformed, cut off, or does not fit into `bits`, which may be at most 56. So
    bit 4 of the result is the sign, and the bits above are the magnitude (0 for -1).
    """
    first: cython.longlong
    second: cython.longlong
    if at < end:
        first = data[at]
        if first < 0x80:
            return (first << 4) | 1
        if at + 1 < end:
            second = data[at + 1]
            if second < 0x80:
                return (((first & 0x7F) | (second << 7)) << 4) | 2
    return long_number(data, at, end, bits)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def long_number(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> cython.longlong:
    raw: cython.longlong = 0
    byte: cython.longlong
    shift: cython.int = 0
    while at < end:
        byte = data[at]
        if shift >= bits or (shift + 7 > bits and byte >> (bits - shift) != 0):
            return 0
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return (raw << 4) | (shift // 7)
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def huge_number_bytes(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the number of bytes of a varint of up to 64 bits; 0 if malformed or cut off."""
    size: cython.Py_ssize_t = 0
    while at + size < end and size < 10:
        if data[at + size] < 0x80:
            return 0 if size == 9 and data[at + size] > 1 else size + 1
        size += 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def huge_number(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.longlong:
    """Returns the zigzag number of up to 64 bits in `size` bytes."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong
    index: cython.Py_ssize_t
    for index in range(size):
        byte = data[at + index]
        raw |= (byte & 0x7F) << (7 * index)
    return (raw >> 1) ^ -(raw & 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_utf8(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.bint:
    """Returns whether the bytes are UTF-8 as in Python and Arrow: shortest forms, no surrogates."""
    byte: cython.int
    second: cython.int
    more: cython.int
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if more > end - at:
            return False
        second = data[at]
        if (
            (byte == 0xE0 and second < 0xA0)
            or (byte == 0xED and second > 0x9F)
            or (byte == 0xF0 and second < 0x90)
            or (byte == 0xF4 and second > 0x8F)
        ):
            return False
        while more > 0:
            if data[at] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def headers_end(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the end of the headers whose count is at `at`; -1 if they are malformed."""
    packed: cython.longlong = number(data, at, end, 32)
    count: cython.longlong = packed >> 5
    index: cython.longlong
    size: cython.longlong
    at += packed & 15
    if packed == 0 or packed & 16 or count > (end - at) // 2:
        return -1
    for index in range(count):
        packed = number(data, at, end, 32)
        size = packed >> 5
        at += packed & 15
        if packed == 0 or packed & 16 or size > end - at or not is_utf8(data, at, at + size):
            return -1
        at += size
        packed = number(data, at, end, 32)
        size = packed >> 5
        at += packed & 15
        if packed & 16:
            if size != 0:
                return -1
        elif packed == 0 or size > end - at:
            return -1
        else:
            at += size
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pass_record(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    state: cython.p_longlong,
) -> cython.int:
    """Checks the whole record at `at`. Returns 1 if it has no key, and 0 if it has one.

    For a malformed record, returns the negative index of its reason in `_REASONS`. Stores the end,
    the offset delta and the timestamp in `state[0]`, `state[4]` and `state[5]`.
    """
    bits: cython.int = 0
    end: cython.Py_ssize_t
    packed: cython.longlong = number(data, at, stop, 32)
    size: cython.longlong = packed >> 5
    delta: cython.longlong
    int64_max: cython.longlong = 0x7FFFFFFFFFFFFFFF
    at += packed & 15
    # Each of the six fields after the length takes at least a byte.
    if packed & 16 or size < 6 or size > stop - at:
        return -1
    end = at + size
    at += 1
    packed = number(data, at, end, 56)
    if packed != 0:
        delta = (packed >> 5) ^ -((packed >> 4) & 1)
        at += packed & 15
    else:
        size = huge_number_bytes(data, at, end)
        delta = huge_number(data, at, size)
        at += size
        if size == 0:
            return -2
    if (base_timestamp >= 0 and delta > int64_max - base_timestamp) or (
        base_timestamp < 0 and delta < -int64_max - base_timestamp - 1
    ):
        return -2
    state[5] = base_timestamp + delta
    packed = number(data, at, end, 32)
    if packed == 0:
        return -3
    state[4] = (packed >> 5) ^ -((packed >> 4) & 1)
    at += packed & 15
    packed = number(data, at, end, 32)
    size = packed >> 5
    at += packed & 15
    if packed & 16:
        # The only valid negative length is -1, which is null.
        if size != 0:
            return -4
        bits = 1
    elif packed == 0 or size > end - at:
        return -4
    else:
        at += size
    packed = number(data, at, end, 32)
    size = packed >> 5
    at += packed & 15
    if packed & 16:
        if size != 0:
            return -5
    elif packed == 0 or size > end - at:
        return -5
    else:
        at += size
    # Nearly every record ends here, with a single byte for "no headers".
    if (at + 1 != end or data[at] != 0) and headers_end(data, at, end) != end:
        return -6
    state[0] = end
    return bits


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def scan(
    data: cython.pointer[cython.const[cython.uchar]],
    stop: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    earliest: cython.longlong,
    latest: cython.longlong,
    delta_low: cython.longlong,
    wanted: cython.int,
    state: cython.p_longlong,
) -> cython.int:
    """Checks records until one has a bit of `wanted`, or until all `count` are checked.

    Returns 0, or the index in `_REASONS` for a malformed record. `state` holds, before and after:
    position and number of the next record, the bits and the largest timestamp so far; afterwards
    also offset delta and timestamp of the last record. Bits and largest timestamp ignore records
    with an offset delta below `delta_low`, which are checked as well.
    """
    index: cython.Py_ssize_t = state[1]
    found: cython.int = state[2]
    newest: cython.longlong = state[3]
    timestamp: cython.longlong
    bits: cython.int = 0
    problem: cython.int = 0
    while index < count and not bits & wanted:
        bits = pass_record(data, state[0], stop, base_timestamp, state)
        if bits < 0:
            problem = -bits
            break
        if state[4] != index:
            bits |= 16
        index += 1
        if state[4] < delta_low:
            bits = 0
            continue
        timestamp = state[5]
        newest = max(newest, timestamp)
        if timestamp > latest:
            bits |= 4
        elif 0 <= timestamp < earliest:
            bits |= 2
        found |= bits
    state[1] = index
    state[2] = found
    state[3] = newest
    return problem


@cython.final
@cython.cclass
class Walk:
    """A scan over the records of one payload, and its progress."""

    view: Py_buffer
    is_bound: cython.bint
    data: cython.pointer[cython.const[cython.uchar]]
    stop: cython.Py_ssize_t
    count: cython.Py_ssize_t
    base_timestamp: cython.longlong
    state: cython.longlong[6]

    def __init__(self, payload: Any, count: int, base_timestamp: int) -> None:
        if cython.compiled:
            PyObject_GetBuffer(payload, cython.address(self.view), PyBUF_SIMPLE)
            self.is_bound = True
            self.data = cython.cast(cython.pointer[cython.const[cython.uchar]], self.view.buf)
        else:
            self.data = memoryview(payload)
            self.state = [0] * 6
        self.stop, self.count, self.base_timestamp = len(payload), count, base_timestamp
        # -1 is the timestamp of a record without one.
        self.state[0], self.state[1], self.state[2], self.state[3] = 0, 0, 0, -1

    def __dealloc__(self) -> None:
        if cython.compiled and self.is_bound:
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def go(
        self,
        earliest: cython.longlong,
        latest: cython.longlong,
        delta_low: cython.longlong,
        wanted: cython.int,
        others_run: cython.bint,
    ) -> cython.int:
        """Continues to the next record with a bit of `wanted`, or the end; or `CorruptBatch`."""
        problem: cython.int
        if cython.compiled and others_run:
            with cython.nogil:
                problem = scan(
                    self.data,
                    self.stop,
                    self.count,
                    self.base_timestamp,
                    earliest,
                    latest,
                    delta_low,
                    wanted,
                    self.state,
                )
        else:
            problem = scan(
                self.data,
                self.stop,
                self.count,
                self.base_timestamp,
                earliest,
                latest,
                delta_low,
                wanted,
                self.state,
            )
        if problem != 0:
            raise CorruptBatch(
                f"record {self.state[1]} of {self.count} is malformed: {_REASONS[problem]}"
            )
        return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def big_endian(
    data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, size: cython.int
) -> cython.longlong:
    """Returns the signed number of `size` bytes at `at`."""
    raw: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        raw = (raw << 8) | data[at + index]
    # Shifting left and right again extends the sign.
    return cython.cast(cython.longlong, raw << (64 - 8 * size)) >> (64 - 8 * size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def has_ordinary_header(
    data: cython.pointer[cython.const[cython.uchar]],
    size: cython.Py_ssize_t,
    newest_max: cython.longlong,
) -> cython.bint:
    """Returns whether the header of a batch of `size` bytes needs no further checks."""
    attributes: cython.longlong = big_endian(data, 21, 2)
    delta: cython.longlong = big_endian(data, 23, 4)
    producer: cython.longlong = big_endian(data, 43, 8)
    # Another length, another format, a codec, or a control batch.
    if big_endian(data, 8, 4) + 12 != size or data[16] != 2 or attributes & 0x27:
        return False
    # A time in the future, an invalid base offset, or more or fewer records than offsets.
    if big_endian(data, 35, 8) > newest_max or big_endian(data, 0, 8) >> 62 != 0:
        return False
    if delta < 0 or big_endian(data, 57, 4) != delta + 1:
        return False
    if producer == -1:
        # A transactional batch must have a producer id.
        return attributes & 0x10 == 0
    return producer >= 0 and big_endian(data, 51, 2) >= 0 and big_endian(data, 53, 4) >= 0


def ordinary_fields(
    batch: Any, bytes_max: int, unusual: int, newest_max: int
) -> HeaderFields | None:
    """Returns the header of a producer's batch if the batch is ordinary; None otherwise.

    An ordinary batch is one complete batch of at most `bytes_max` bytes, not compressed, with the
    right CRC, a max timestamp up to `newest_max`, and sound records without a bit of `unusual`. For
    others the caller checks one thing after the other, to say what is wrong. Uncompiled, this
    always returns None.
    """
    if not cython.compiled:
        return None
    view = cython.declare(Py_buffer)
    state = cython.declare(cython.longlong[6])
    data: cython.pointer[cython.const[cython.uchar]]
    base: cython.longlong
    PyObject_GetBuffer(batch, cython.address(view), PyBUF_SIMPLE)
    try:
        data = cython.cast(cython.pointer[cython.const[cython.uchar]], view.buf)
        if (
            not 61 <= view.len <= cython.cast(cython.longlong, bytes_max)
            or not has_ordinary_header(data, view.len, newest_max)
            or crc32c(batch[21:]) != big_endian(data, 17, 4) & 0xFFFFFFFF
        ):
            return None
        base = big_endian(data, 27, 8)
        state[0], state[1], state[2], state[3] = 61, 0, 0, -1
        if scan(data, view.len, big_endian(data, 57, 4), base, base, _ALL, -_ALL, 0, state):
            return None
        if state[3] != big_endian(data, 35, 8):
            state[2] |= 8
        if state[0] != view.len or state[2] & (16 | cython.cast(cython.longlong, unusual)):
            return None
        return unpack_fields(batch, 0)
    finally:
        PyBuffer_Release(cython.address(view))


def scan_payload(payload: Any, fields: Sequence[int], others_run: bool = False) -> int:
    """Checks the records of a producer's batch with the given header fields.

    Raises `CorruptBatch` for a malformed record. Otherwise returns the sum of the `HAS_` bits that
    apply; a timestamp is early if it is before the base timestamp. With `others_run` other threads
    can run meanwhile: for large payloads, on another thread than the event loop's.
    """
    _, _, _, _, _, _, _, base_timestamp, max_timestamp, _, _, _, count = fields
    walk = Walk(payload, count, base_timestamp)
    walk.go(base_timestamp, _ALL, -_ALL, 0, others_run)
    found: int = walk.state[2]
    if found & 16:
        raise CorruptBatch(
            f"the offset deltas of the {count} records are not 0, 1, 2 and so on, as a producer "
            "must number them"
        )
    if walk.state[0] != len(payload):
        raise CorruptBatch(
            f"{len(payload) - walk.state[0]} bytes follow the last of {count} records"
        )
    if walk.state[3] != max_timestamp:
        found |= 8
    return found


def largest_timestamp(payload: Any, count: int, base_timestamp: int) -> int:
    """Returns the largest timestamp of the records; -1 if none has one."""
    walk = Walk(payload, count, base_timestamp)
    walk.go(0, _ALL, -_ALL, 0, True)
    newest: int = walk.state[3]
    return newest


def find_records(
    payload: Any,
    count: int,
    base_timestamp: int,
    *,
    keyless: bool,
    earliest: int,
    latest: int,
    records_max: int,
) -> list[tuple[int, int, bool]]:
    """Finds records without a key (if `keyless`), or not between `earliest` and `latest`: up to
    `records_max` of them, each as its number in the batch, its timestamp, and whether that is out
    of bounds."""
    walk = Walk(payload, count, base_timestamp)
    wanted: cython.int = 7 if keyless else 6
    found: list[tuple[int, int, bool]] = []
    while len(found) < records_max:
        walk.state[2] = 0
        walk.go(earliest, latest, -_ALL, wanted, False)
        if not walk.state[2] & wanted:
            break
        found.append((walk.state[1] - 1, walk.state[5], bool(walk.state[2] & 6)))
    return found


def first_record_at(
    payload: Any,
    count: int,
    base_offset: int,
    base_timestamp: int,
    *,
    timestamp_ms: int,
    start_offset: int,
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first record at or after a time, from `start_offset`."""
    walk = Walk(payload, count, base_timestamp)
    walk.go(0, timestamp_ms - 1, start_offset - base_offset, 4, True)
    if not walk.state[2] & 4:
        return None
    return base_offset + walk.state[4], walk.state[5]


def newest_record(
    payload: Any, count: int, base_offset: int, base_timestamp: int, *, start_offset: int
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first record with the largest timestamp, from
    `start_offset` on; None if no record there has a timestamp."""
    walk = Walk(payload, count, base_timestamp)
    walk.go(0, _ALL, start_offset - base_offset, 0, True)
    if walk.state[3] < 0:
        return None
    return first_record_at(
        payload,
        count,
        base_offset,
        base_timestamp,
        timestamp_ms=walk.state[3],
        start_offset=start_offset,
    )
