"""The scan accepts exactly those batches that the decoder accepts and a producer may send."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import checking
from penstock.records.batch import HEADER_SIZE, BatchHeader, CorruptBatch, read_header
from penstock.records.checking import (
    HAS_EARLY,
    HAS_KEYLESS,
    HAS_OTHER_MAX_TIMESTAMP,
    scan_payload,
)
from penstock.records.kernels import RecordReader, read_records
from penstock.records.record import Record, build_batch
from penstock.records.searching import (
    find_records,
    first_record_at,
    largest_timestamp,
    newest_record,
)
from penstock.sim.actors.bad_batches import KINDS, bad_batch

from .strategies import INT64_MAX, INT64_MIN, raw_batch, record_lists, varint

T = 1_700_000_000_000
SAMPLE = [
    Record(0, T, b"key", b"value", (("name", b"x"), ("name", None), ("é", b""))),
    Record(1, T + 50, None, b"v" * 70),
    Record(2, T - 10, b"", None, (("", b"y" * 3),)),
]


def decoded(payload: bytes, header: BatchHeader) -> list[Record] | None:
    """Returns the decoded records of a producer's batch; None if the decoder refuses them."""
    try:
        reader = RecordReader(
            payload,
            header.record_count,
            header.last_offset_delta,
            header.base_timestamp,
            None,
        )
        records = read_records(reader, header.record_count, 0, Record._make)
    except CorruptBatch:
        return None
    numbered = [record.offset for record in records] == list(range(header.record_count))
    return records if numbered else None


def expected(records: list[Record], header: BatchHeader) -> int:
    """Returns the flags by their definition."""
    found = HAS_KEYLESS if any(record.key is None for record in records) else 0
    if any(0 <= record.timestamp < header.base_timestamp for record in records):
        found |= HAS_EARLY
    if max(-1, *(record.timestamp for record in records)) != header.max_timestamp:
        found |= HAS_OTHER_MAX_TIMESTAMP
    return found


def check(batch: bytes | bytearray) -> None:
    """Checks that scan and decoder agree on a batch, for both ways of scanning."""
    header = read_header(batch)
    payload = bytes(batch[HEADER_SIZE:])
    records = decoded(payload, header)
    scans: tuple[Callable[[], int], ...] = (
        partial(scan_payload, payload, header),
        partial(scan_payload, payload, header, True),
    )
    for scan in scans:
        if records is None:
            with pytest.raises(CorruptBatch):
                scan()
        else:
            assert scan() == expected(records, header)


@settings(max_examples=300, deadline=None)
@given(record_lists(sparse=False, base_offset=0))
def test_batches_that_a_producer_builds_are_accepted(records: list[Record]) -> None:
    batch = build_batch(records)
    assert decoded(bytes(batch[HEADER_SIZE:]), read_header(batch)) == records
    check(batch)


@settings(max_examples=400, deadline=None)
@given(record_lists(base_offset=0), st.data())
def test_the_scan_and_the_decoder_agree_on_damaged_records(
    records: list[Record], data: st.DataObject
) -> None:
    """Bytes are changed, removed and added; counts and timestamps are wrong."""
    batch = bytearray(build_batch(records))
    for _ in range(data.draw(st.integers(0, 3))):
        if len(batch) > HEADER_SIZE:
            at = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
            batch[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 2))
    del batch[len(batch) - cut :]
    batch += data.draw(st.binary(max_size=2))
    header = read_header(batch)
    count = max(0, header.record_count + data.draw(st.integers(-1, 1)))
    edges = st.sampled_from([INT64_MIN, INT64_MIN + 1, -1, 0, 1, T, INT64_MAX])
    check(
        raw_batch(
            bytes(batch[HEADER_SIZE:]),
            record_count=count,
            last_offset_delta=max(0, count - 1),
            base_timestamp=data.draw(st.just(header.base_timestamp) | edges),
            max_timestamp=data.draw(st.just(header.max_timestamp) | edges),
        )
    )


def test_the_scan_and_the_decoder_agree_for_any_changed_byte() -> None:
    whole = build_batch(SAMPLE)
    for position in range(HEADER_SIZE, len(whole)):
        for value in range(256):
            batch = bytearray(whole)
            batch[position] = value
            check(batch)


@pytest.mark.parametrize("delta", [INT64_MIN, INT64_MIN + 1, -(1 << 55), 1 << 55, INT64_MAX])
@pytest.mark.parametrize("base", [INT64_MIN, -1, 0, 1, INT64_MAX])
def test_timestamps_use_all_64_bits(delta: int, base: int) -> None:
    fields = b"\x00" + varint(delta) + b"\x00\x01\x01\x00"
    check(raw_batch(varint(len(fields)) + fields, record_count=1, base_timestamp=base))


@pytest.mark.parametrize(
    "name",
    [
        *("é".encode(), "鍵".encode(), "🔑".encode(), b"\xff", b"\xc0\x80", b"\xe0\x80\x80"),
        *(b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"),
        *(b"\xc3", b"\xe9\x8d", b"a\xf0\x9f\x94", b"\xf4\x8f\xbf\xbf", b"\xed\x9f\xbf"),
        b"\xee\x80\x80",
    ],
)
def test_header_names_must_be_utf8(name: bytes) -> None:
    """Neither Python nor Arrow can represent other bytes as text."""
    fields = b"\x00\x00\x00\x01\x01" + varint(1) + varint(len(name)) + name + varint(-1)
    check(raw_batch(varint(len(fields)) + fields, record_count=1))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("compressed")])
def test_bad_batches_are_refused(kind: str) -> None:
    batch = bad_batch(kind, SAMPLE[:2])
    check(batch)
    with pytest.raises(CorruptBatch, match=r"record|bytes"):
        scan_payload(batch[HEADER_SIZE:], read_header(batch))


def test_the_message_names_the_bad_record() -> None:
    batch = build_batch(SAMPLE)
    second = HEADER_SIZE + 1 + batch[HEADER_SIZE] // 2
    batch[second + 2] = 0xFF
    batch[second + 3] = 0xFF
    with pytest.raises(CorruptBatch, match="record 1 of 3 is malformed: "):
        scan_payload(batch[HEADER_SIZE:], read_header(batch))


@settings(max_examples=200, deadline=None)
@given(record_lists(), st.integers(-2, T + 200_000), st.integers(-2, T + 200_000), st.booleans())
def test_record_searches_match_their_definitions(
    records: list[Record], one: int, two: int, keyless: bool
) -> None:
    batch = build_batch(records)
    header, payload = read_header(batch), bytes(batch[HEADER_SIZE:])
    count, base_offset, base = header.record_count, header.base_offset, header.base_timestamp
    earliest, latest = min(one, two), max(one, two)
    found = find_records(
        payload, count, base, keyless=keyless, earliest=earliest, latest=latest, records_max=2
    )
    bounds = [
        (at, record.timestamp, record.timestamp > latest or 0 <= record.timestamp < earliest)
        for at, record in enumerate(records)
    ]
    wanted = [
        each
        for each, record in zip(bounds, records, strict=True)
        if each[2] or (keyless and record.key is None)
    ]
    assert found == wanted[:2]
    assert largest_timestamp(payload, count, base) == max(-1, *(r.timestamp for r in records))
    start = records[len(records) // 2].offset
    visible = [(record.offset, record.timestamp) for record in records if record.offset >= start]
    first = first_record_at(
        payload, count, base_offset, base, timestamp_ms=latest, start_offset=start
    )
    assert first == next((each for each in visible if each[1] >= latest), None)
    timed = [each for each in visible if each[1] >= 0]
    newest = newest_record(payload, count, base_offset, base, start_offset=start)
    assert newest == max(timed, key=lambda each: each[1], default=None)


def test_the_kernel_knows_whether_it_is_compiled() -> None:
    assert isinstance(checking.COMPILED, bool)
