"""The functions that read and write single records: the only code that knows their layout.

    length            varint    bytes after this field
    attributes        int8      unused
    timestamp delta   varlong   from the batch's base timestamp
    offset delta      varint    from the batch's base offset
    key size          varint    -1 for null, then the key
    value size        varint    -1 for null, then the value
    header count      varint    then for each: key size, key (UTF-8), value size (-1 null), value

Varints are zigzag-encoded: 0, -1, 1, -2 become 0, 1, 2, 3, written in groups of seven bits, lowest
group first.

The modules `reading`, `checking`, `ordinary_batch` and `writing` are typed Python. Compiled by
Cython, they work on raw memory. Uncompiled, they work on memoryviews, with the same results but
slower. `reading` and `writing` handle records as Python objects and as Arrow buffers, with the same
code for a record's fields. `checking` checks records without making objects, `ordinary_batch` does
so for a whole batch, and `searching` finds single records.
"""

from __future__ import annotations

from penstock.records import checking, gc_tracking, ordinary_batch, reading, writing
from penstock.records.checking import (
    HAS_EARLY,
    HAS_KEYLESS,
    HAS_OTHER_MAX_TIMESTAMP,
    scan_payload,
)
from penstock.records.gc_tracking import untrack
from penstock.records.ordinary_batch import ordinary_fields
from penstock.records.reading import (
    BinarySink,
    ColumnDecoder,
    RecordReader,
    append_headers,
    read_records,
)
from penstock.records.searching import (
    find_records,
    first_record_at,
    largest_timestamp,
    newest_record,
)
from penstock.records.writing import ColumnEncoder, Ranges, append_record, append_records

COMPILED: bool = all(
    kernel.COMPILED for kernel in (checking, gc_tracking, ordinary_batch, reading, writing)
)
"""Whether this code is compiled. Without it everything works, but slower."""

__all__ = [
    "COMPILED",
    "HAS_EARLY",
    "HAS_KEYLESS",
    "HAS_OTHER_MAX_TIMESTAMP",
    "BinarySink",
    "ColumnDecoder",
    "ColumnEncoder",
    "Ranges",
    "RecordReader",
    "append_headers",
    "append_record",
    "append_records",
    "find_records",
    "first_record_at",
    "largest_timestamp",
    "newest_record",
    "ordinary_fields",
    "read_records",
    "scan_payload",
    "untrack",
]
