# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# ruff: noqa: B007
# (the compiler turns typed loop counters, plain arguments and plain branches into C)
"""Checks records without making objects of them.

`scan_payload` checks the records of a producer's batch, says what is wrong, and optionally lets
other threads run meanwhile. `ordinary_batch` checks header, CRC and records of the usual kind of
batch in one call. `searching` uses `Walk` to find single records.

Layout and validity are those of `reading` (`penstock.records.kernels` has the layout); tests
compare the two. One more rule is for producers: they number their records 0, 1, 2 and so on. Any
byte may be hostile, so each read is checked against the end of its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from penstock.records.batch import CorruptBatch

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
    from cython.cimports.penstock.records.progress import Progress

COMPILED: bool = cython.compiled

# Compiled, these are C numbers, because a scan must not use Python objects.
KEYLESS = cython.declare(cython.int, 1)
EARLY = cython.declare(cython.int, 2)
LATE = cython.declare(cython.int, 4)
OTHER_MAX_TIMESTAMP = cython.declare(cython.int, 8)
GAP = cython.declare(cython.int, 16)

HAS_KEYLESS: int = KEYLESS
"""A record has no key."""
HAS_EARLY: int = EARLY
"""A timestamp is before the `earliest` that was given."""
HAS_LATE: int = LATE
"""A timestamp is after the `latest` that was given."""
HAS_OTHER_MAX_TIMESTAMP: int = OTHER_MAX_TIMESTAMP
"""The largest timestamp is not the one in the header."""
HAS_GAP: int = GAP
"""An offset delta is not the number of its record."""

NO_LIMIT: int = (1 << 63) - 1
"""The largest timestamp or offset. The negative of it is the lowest."""
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
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def sized_end(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Returns the end of the bytes whose length is at `at`. Returns 0 if they are malformed; no end
    is 0, because the length comes before it."""
    packed: cython.longlong = number(data, at, end, 32)
    size: cython.longlong = packed >> 5
    at += packed & 15
    if packed & 16:
        # The only valid negative length is -1, which is null.
        return at if size == 0 else 0
    return 0 if packed == 0 or size > end - at else at + size


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
        at = sized_end(data, at + size, end)
        if at == 0:
            return -1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pass_timestamp(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    progress: cython.pointer[Progress],
) -> cython.Py_ssize_t:
    """Stores the timestamp whose delta is at `at`. Returns the end of the delta; 0 if it is
    malformed, or if the timestamp does not fit 64 bits."""
    packed: cython.longlong = number(data, at, end, 56)
    size: cython.Py_ssize_t = packed & 15
    delta: cython.longlong = (packed >> 5) ^ -((packed >> 4) & 1)
    int64_max: cython.longlong = 0x7FFFFFFFFFFFFFFF
    if packed == 0:
        size = huge_number_bytes(data, at, end)
        if size == 0:
            return 0
        delta = huge_number(data, at, size)
    if (base_timestamp >= 0 and delta > int64_max - base_timestamp) or (
        base_timestamp < 0 and delta < -int64_max - base_timestamp - 1
    ):
        return 0
    progress.timestamp = base_timestamp + delta
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pass_record(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    progress: cython.pointer[Progress],
) -> cython.int:
    """Checks the whole record at `at`. Returns `KEYLESS` if it has no key, and 0 if it has one.

    For a malformed record, returns the negative index of its reason in `_REASONS`. Stores the
    position after the record, its offset delta and its timestamp in `progress`.
    """
    bits: cython.int = 0
    end: cython.Py_ssize_t
    packed: cython.longlong = number(data, at, stop, 32)
    size: cython.longlong = packed >> 5
    at += packed & 15
    # Each of the six fields after the length takes at least a byte.
    if packed & 16 or size < 6 or size > stop - at:
        return -1
    end = at + size
    at += 1
    at = pass_timestamp(data, at, end, base_timestamp, progress)
    if at == 0:
        return -2
    packed = number(data, at, end, 32)
    if packed == 0:
        return -3
    progress.offset_delta = (packed >> 5) ^ -((packed >> 4) & 1)
    at += packed & 15
    packed = number(data, at, end, 32)
    size = packed >> 5
    at += packed & 15
    if packed & 16:
        if size != 0:
            return -4
        bits = KEYLESS
    elif packed == 0 or size > end - at:
        return -4
    else:
        at += size
    at = sized_end(data, at, end)
    if at == 0:
        return -5
    # Nearly every record ends here, with a single byte for "no headers".
    if (at + 1 != end or data[at] != 0) and headers_end(data, at, end) != end:
        return -6
    progress.position = end
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
    progress: cython.pointer[Progress],
) -> cython.int:
    """Checks records until one has a bit of `wanted`, or until all `count` are checked.

    Returns 0, or the index in `_REASONS` for a malformed record. `progress` holds, before and
    after: position and number of the next record, the bits and the largest timestamp so far;
    afterwards also offset delta and timestamp of the last record. Bits and largest timestamp ignore
    records with an offset delta below `delta_low`, which are checked as well.
    """
    index: cython.Py_ssize_t = progress.number
    found: cython.int = progress.bits
    newest: cython.longlong = progress.newest
    timestamp: cython.longlong
    bits: cython.int = 0
    problem: cython.int = 0
    while index < count and not bits & wanted:
        bits = pass_record(data, progress.position, stop, base_timestamp, progress)
        if bits < 0:
            problem = -bits
            break
        if progress.offset_delta != index:
            bits |= GAP
        index += 1
        if progress.offset_delta < delta_low:
            bits = 0
            continue
        timestamp = progress.timestamp
        newest = max(newest, timestamp)
        if timestamp > latest:
            bits |= LATE
        elif 0 <= timestamp < earliest:
            bits |= EARLY
        found |= bits
    progress.number = index
    progress.bits = found
    progress.newest = newest
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
    progress: Progress
    shared: cython.pointer[Progress]

    def __init__(self, payload: Any, count: int, base_timestamp: int) -> None:
        if cython.compiled:
            PyObject_GetBuffer(payload, cython.address(self.view), PyBUF_SIMPLE)
            self.is_bound = True
            self.shared = cython.address(self.progress)
            self.data = cython.cast(cython.pointer[cython.const[cython.uchar]], self.view.buf)
        else:
            self.data = memoryview(payload)
            self.progress = self.shared = SimpleNamespace()
        self.stop, self.count, self.base_timestamp = len(payload), count, base_timestamp
        self.progress.position = self.progress.number = self.progress.bits = 0
        # -1 is the timestamp of a record without one.
        self.progress.newest = -1

    def __dealloc__(self) -> None:
        if cython.compiled and self.is_bound:
            PyBuffer_Release(cython.address(self.view))

    @cython.ccall
    @cython.exceptval(-1, check=False)
    def go(
        self,
        earliest: cython.longlong,
        latest: cython.longlong,
        delta_low: cython.longlong,
        wanted: cython.int,
        others_run: cython.bint,
    ) -> cython.int:
        """Continues to the next record with a bit of `wanted`, or to the end. Returns the bits of
        the records it passed. Raises `CorruptBatch` for a malformed record."""
        problem: cython.int
        self.progress.bits = 0
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
                    self.shared,
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
                self.shared,
            )
        if problem != 0:
            raise CorruptBatch(
                f"record {self.progress.number} of {self.count} is malformed: {_REASONS[problem]}"
            )
        return self.progress.bits

    @property
    def newest(self) -> int:
        """The largest timestamp so far; -1 if no record had one."""
        return int(self.progress.newest)

    @property
    def last_number(self) -> int:
        """The number in the batch of the record that was passed last."""
        return int(self.progress.number) - 1

    @property
    def last_offset_delta(self) -> int:
        """The offset delta of the record that was passed last."""
        return int(self.progress.offset_delta)

    @property
    def last_timestamp(self) -> int:
        """The timestamp of the record that was passed last."""
        return int(self.progress.timestamp)


def scan_payload(payload: Any, fields: Sequence[int], others_run: bool = False) -> int:
    """Checks the records of a producer's batch with the given header fields.

    Raises `CorruptBatch` for a malformed record. Otherwise returns the sum of the `HAS_` bits that
    apply; a timestamp is early if it is before the base timestamp. With `others_run` other threads
    can run meanwhile: for large payloads, on another thread than the event loop's.
    """
    _, _, _, _, _, _, _, base_timestamp, max_timestamp, _, _, _, count = fields
    walk = Walk(payload, count, base_timestamp)
    found: int = walk.go(base_timestamp, NO_LIMIT, -NO_LIMIT, 0, others_run)
    if found & GAP:
        raise CorruptBatch(
            f"the offset deltas of the {count} records are not 0, 1, 2 and so on, as a producer "
            "must number them"
        )
    if walk.progress.position != len(payload):
        raise CorruptBatch(
            f"{len(payload) - walk.progress.position} bytes follow the last of {count} records"
        )
    if walk.progress.newest != max_timestamp:
        found |= OTHER_MAX_TIMESTAMP
    return found
