"""Per-record work: the one place that knows how a record is laid out.

    length            varint    bytes after this field
    attributes        int8      unused
    timestamp delta   varlong   from the batch's base timestamp
    offset delta      varint    from the batch's base offset
    key size          varint    -1 for null, then the key
    value size        varint    -1 for null, then the value
    header count      varint    then for each: key size, key (UTF-8), value size (-1 null), value

Varints are zigzag: 0, -1, 1, -2 become 0, 1, 2, 3, written in groups of seven bits, low first.

The modules `reading`, `scanning` and `writing` are typed Python. Compiled by Cython they work on
raw memory; uncompiled, on memoryviews, with the same results and only slower. `reading` and
`writing` serve records as Python objects and records as Arrow buffers with the same code for a
record's fields; `scanning` looks at records and makes nothing of them.
"""

from __future__ import annotations

from penstock.records import reading, scanning, writing
from penstock.records.reading import (
    BinarySink,
    ColumnDecoder,
    RecordReader,
    append_headers,
    read_records,
    untrack,
)
from penstock.records.scanning import (
    HAS_EARLY,
    HAS_KEYLESS,
    HAS_OTHER_MAX_TIMESTAMP,
    find_records,
    first_record_at,
    largest_timestamp,
    newest_record,
    ordinary_fields,
    scan_payload,
)
from penstock.records.writing import ColumnEncoder, Ranges, append_record, append_records

COMPILED: bool = reading.COMPILED and scanning.COMPILED and writing.COMPILED
"""Whether records are handled by compiled code; without it everything works, only slower."""

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
