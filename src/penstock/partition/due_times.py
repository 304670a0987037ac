"""Checks the due times of records that a producer sends to a timed topic or a delay topic. Pure.

A record that is due after retention has deleted it would be lost without a word. So it is refused,
like one whose due time is not a number.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.records.batch import BatchHeader, HeaderFields
from penstock.records.job_headers import DELIVER_AT, EXPIRES_AT, time_in
from penstock.records.kernels import RecordReader, read_records
from penstock.records.record import Record

_NAMES: Final = re.compile(f"{DELIVER_AT}|{EXPIRES_AT}".encode())


def bad_due_times(
    fields: HeaderFields, payload: memoryview, latest_ms: int, errors_max: int
) -> list[tuple[int, str]]:
    """Returns the indexes of records with times that cannot be, and what is wrong with them.

    The caller has checked that the records of `payload` are well-formed.
    """
    if not _NAMES.search(payload):
        return []
    header = BatchHeader._make(fields)
    count, base = header.record_count, header.base_timestamp
    reader = RecordReader(payload, count, header.last_offset_delta, base, None)
    bad: list[tuple[int, str]] = []
    for index, record in enumerate(read_records(reader, count, 0, Record._make)):
        problem = _problem(record, latest_ms)
        if problem is not None:
            bad.append((index, problem))
            if len(bad) == errors_max:
                break
    return bad


def _problem(record: Record, latest_ms: int) -> str | None:
    for name, value in record.headers:
        if name not in (DELIVER_AT, EXPIRES_AT):
            continue
        time_ms = time_in(value)
        if time_ms is None:
            return f"the header {name} is not a number: give milliseconds since 1970, as digits"
        if name == DELIVER_AT and time_ms > latest_ms:
            return (
                f"the record is due at {time_ms}, after {latest_ms}, when retention.ms may have "
                "deleted it: choose an earlier time, or raise retention.ms of this topic"
            )
    return None
