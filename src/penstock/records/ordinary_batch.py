# mypy: allow-untyped-decorators, disable-error-code="valid-type"
# (the compiler turns typed loop counters, plain arguments and plain branches into C)
"""Checks header, CRC and records of a producer's batch in one call, if the batch is ordinary.

Nearly every batch is: not compressed, complete, and with nothing unusual in its records. The check
is part of every append, so it makes no Python objects before it has passed.
"""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from penstock.records import batch as layout
from penstock.records.batch import HeaderFields, unpack_fields

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
    from cython.cimports.penstock.records.checking import scan
    from cython.cimports.penstock.records.progress import Progress

from penstock.records.checking import HAS_GAP, HAS_OTHER_MAX_TIMESTAMP, NO_LIMIT

COMPILED: bool = cython.compiled

# Compiled, these are C numbers, because the check must not use Python objects.
BASE_OFFSET = cython.declare(cython.Py_ssize_t, layout.BASE_OFFSET_START)
BATCH_LENGTH = cython.declare(cython.Py_ssize_t, layout.BATCH_LENGTH_START)
MAGIC = cython.declare(cython.Py_ssize_t, layout.MAGIC_START)
CRC = cython.declare(cython.Py_ssize_t, layout.CRC_FIELD_START)
ATTRIBUTES = cython.declare(cython.Py_ssize_t, layout.ATTRIBUTES_START)
LAST_OFFSET_DELTA = cython.declare(cython.Py_ssize_t, layout.LAST_OFFSET_DELTA_START)
BASE_TIMESTAMP = cython.declare(cython.Py_ssize_t, layout.BASE_TIMESTAMP_START)
MAX_TIMESTAMP = cython.declare(cython.Py_ssize_t, layout.MAX_TIMESTAMP_START)
PRODUCER_ID = cython.declare(cython.Py_ssize_t, layout.PRODUCER_ID_START)
PRODUCER_EPOCH = cython.declare(cython.Py_ssize_t, layout.PRODUCER_EPOCH_START)
BASE_SEQUENCE = cython.declare(cython.Py_ssize_t, layout.BASE_SEQUENCE_START)
RECORD_COUNT = cython.declare(cython.Py_ssize_t, layout.RECORD_COUNT_START)
HEADER_SIZE = cython.declare(cython.Py_ssize_t, layout.HEADER_SIZE)
LOG_OVERHEAD = cython.declare(cython.Py_ssize_t, layout.LOG_OVERHEAD)
ACCEPTED_MAGIC = cython.declare(cython.int, layout.MAGIC)
NOT_ORDINARY = cython.declare(cython.longlong, layout.CODEC_MASK | layout.CONTROL)
TRANSACTIONAL = cython.declare(cython.longlong, layout.TRANSACTIONAL)
GAP = cython.declare(cython.int, HAS_GAP)
OTHER_MAX_TIMESTAMP = cython.declare(cython.int, HAS_OTHER_MAX_TIMESTAMP)

_COVERED_BY_CRC = slice(layout.CRC_START, None)


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
    attributes: cython.longlong = big_endian(data, ATTRIBUTES, 2)
    delta: cython.longlong = big_endian(data, LAST_OFFSET_DELTA, 4)
    producer: cython.longlong = big_endian(data, PRODUCER_ID, 8)
    # Another length or format, a codec, or a control batch.
    if (
        big_endian(data, BATCH_LENGTH, 4) + LOG_OVERHEAD != size
        or data[MAGIC] != ACCEPTED_MAGIC
        or attributes & NOT_ORDINARY
    ):
        return False
    # A time in the future, an invalid base offset, or more or fewer records than offsets.
    if (
        big_endian(data, MAX_TIMESTAMP, 8) > newest_max
        or big_endian(data, BASE_OFFSET, 8) >> 62 != 0
        or delta < 0
        or big_endian(data, RECORD_COUNT, 4) != delta + 1
    ):
        return False
    if producer == -1:
        # A transactional batch must have a producer id.
        return attributes & TRANSACTIONAL == 0
    return (
        producer >= 0
        and big_endian(data, PRODUCER_EPOCH, 2) >= 0
        and big_endian(data, BASE_SEQUENCE, 4) >= 0
    )


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
    progress = cython.declare(Progress)
    data: cython.pointer[cython.const[cython.uchar]]
    base: cython.longlong
    count: cython.Py_ssize_t
    PyObject_GetBuffer(batch, cython.address(view), PyBUF_SIMPLE)
    try:
        data = cython.cast(cython.pointer[cython.const[cython.uchar]], view.buf)
        if (
            not HEADER_SIZE <= view.len <= cython.cast(cython.longlong, bytes_max)
            or not has_ordinary_header(data, view.len, newest_max)
            or crc32c(batch[_COVERED_BY_CRC]) != big_endian(data, CRC, 4) & 0xFFFFFFFF
        ):
            return None
        base = big_endian(data, BASE_TIMESTAMP, 8)
        count = big_endian(data, RECORD_COUNT, 4)
        progress.position, progress.number, progress.bits = HEADER_SIZE, 0, 0
        progress.newest = -1
        if scan(
            data,
            view.len,
            count,
            base,
            base,
            NO_LIMIT,
            -NO_LIMIT,
            0,
            cython.address(progress),
        ):
            return None
        if progress.newest != big_endian(data, MAX_TIMESTAMP, 8):
            progress.bits |= OTHER_MAX_TIMESTAMP
        if progress.position != view.len or progress.bits & (
            GAP | cython.cast(cython.longlong, unusual)
        ):
            return None
        return unpack_fields(batch, 0)
    finally:
        PyBuffer_Release(cython.address(view))
