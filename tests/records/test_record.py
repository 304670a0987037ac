"""Encoding and decoding records and batches loses nothing."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import batch as b
from penstock.records import kernels
from penstock.records.batch import Codec, CorruptBatch, TimestampType
from penstock.records.compression import DecompressedTooLarge
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_control,
    read_records,
    rebuild_batch,
)

from .strategies import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    codecs,
    producers,
    raw_batch,
    raw_record,
    record_lists,
    timestamps,
    varint,
)

CAP = 1 << 20


def test_penstock_pure_runs_the_uncompiled_kernels() -> None:
    """Otherwise a run with PENSTOCK_PURE would not test the uncompiled kernels."""
    if os.environ.get("PENSTOCK_PURE"):
        assert not kernels.COMPILED


@given(
    records=record_lists(), codec=codecs, producer=producers, flags=st.tuples(*[st.booleans()] * 3)
)
@settings(deadline=None, max_examples=50)
def test_records_survive_a_round_trip(
    records: list[Record],
    codec: Codec,
    producer: tuple[int, int, int],
    flags: tuple[bool, bool, bool],
) -> None:
    """Every field of records and batch, with every codec."""
    transactional, control, as_view = flags
    batch = build_batch(
        records,
        codec=codec,
        leader_epoch=9,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
        control=control,
    )
    header = b.validate(batch)
    assert header.size == len(batch)
    assert header.codec is codec
    assert header.base_offset == records[0].offset
    assert header.last_offset == records[-1].offset
    assert header.record_count == len(records)
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert (header.is_transactional, header.is_control) == (transactional, control)
    assert header.leader_epoch == 9
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.delete_horizon_ms is None
    assert read_records(memoryview(batch) if as_view else batch, max_bytes=CAP) == records
    assert read_records(bytes(batch), header, max_bytes=CAP) == records


@given(records=record_lists())
@settings(deadline=None, max_examples=50)
def test_a_batch_is_encoded_as_the_format_describes(records: list[Record]) -> None:
    """An uncompressed batch is exactly as the format describes."""
    base, first = records[0].offset, records[0].timestamp
    assert build_batch(records) == raw_batch(
        b"".join(raw_record(record, base, first) for record in records),
        base_offset=base,
        last_offset_delta=records[-1].offset - base,
        base_timestamp=first,
        max_timestamp=max(record.timestamp for record in records),
        record_count=len(records),
    )


@given(records=record_lists(), codec=codecs, before=st.integers(0, 50), after=st.integers(0, 50))
@settings(deadline=None, max_examples=30)
def test_the_span_may_exceed_the_records(
    records: list[Record], codec: Codec, before: int, after: int
) -> None:
    """Compaction leaves offsets without records at both ends of a batch."""
    records = [record._replace(offset=record.offset + before) for record in records]
    base = records[0].offset - before
    span = records[-1].offset - base + after
    batch = build_batch(records, codec=codec, base_offset=base, last_offset_delta=span)
    header = b.validate(batch)
    assert (header.base_offset, header.last_offset_delta) == (base, span)
    assert read_records(batch, max_bytes=CAP) == records


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("span", [0, 7, INT32_MAX])
def test_empty_batches_keep_their_offsets_and_producer(codec: Codec, span: int) -> None:
    """A batch without records still covers its offsets and still names its producer."""
    batch = build_batch(
        [],
        codec=codec,
        base_offset=50,
        last_offset_delta=span,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
    )
    header = b.validate(batch)
    assert len(batch) == 61
    assert (header.base_offset, header.next_offset, header.record_count) == (50, 51 + span, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 2, 3)
    assert header.codec is Codec.NONE
    assert read_records(batch) == []


@pytest.mark.parametrize("attributes", list(Codec))
def test_an_empty_batch_may_name_a_codec(attributes: int) -> None:
    """Nothing was compressed, so there is nothing to decompress."""
    assert read_records(raw_batch(attributes=attributes, last_offset_delta=4)) == []


@given(records=record_lists(), codec=codecs, horizon=timestamps)
@settings(deadline=None, max_examples=30)
def test_a_delete_horizon_moves_the_base_timestamp_only(
    records: list[Record], codec: Codec, horizon: int
) -> None:
    """The horizon is stored in the base timestamp; the timestamps of the records do not change."""
    batch = build_batch(records, codec=codec, delete_horizon_ms=horizon)
    header = b.validate(batch)
    assert header.delete_horizon_ms == header.base_timestamp == horizon
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert read_records(batch, max_bytes=CAP) == records


@given(records=record_lists(), codec=codecs, now_ms=timestamps)
@settings(deadline=None, max_examples=30)
def test_with_append_time_every_record_has_the_time_of_the_broker(
    records: list[Record], codec: Codec, now_ms: int
) -> None:
    """Whether the batch is built with append time or stamped later."""
    expected = [record._replace(timestamp=now_ms) for record in records]
    built = build_batch(
        records,
        codec=codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=now_ms,
    )
    stamped = build_batch(records, codec=codec)
    b.stamp_append_time(stamped, 0, now_ms)
    assert built == stamped
    assert read_records(built, max_bytes=CAP) == expected


@given(
    records=record_lists(min_size=2),
    codec=codecs,
    producer=producers,
    keep=st.data(),
    horizons=st.tuples(st.none() | timestamps, st.none() | timestamps),
    append_time=st.none() | timestamps,
)
@settings(deadline=None, max_examples=50)
def test_compaction_keeps_the_fields_of_a_batch(
    *,
    records: list[Record],
    codec: Codec,
    producer: tuple[int, int, int],
    keep: st.DataObject,
    horizons: tuple[int | None, int | None],
    append_time: int | None,
) -> None:
    """A rebuilt batch has the old span, producer, epoch and flags, and the remaining records."""
    first_horizon, second_horizon = horizons
    batch = build_batch(
        records,
        codec=codec,
        leader_epoch=4,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=True,
        delete_horizon_ms=first_horizon,
    )
    if append_time is not None:
        b.stamp_append_time(batch, 0, append_time)
    old = b.validate(batch)
    all_kept = read_records(batch, max_bytes=CAP)
    kept = [record for record in all_kept if keep.draw(st.booleans())]
    rebuilt = rebuild_batch(old, kept, delete_horizon_ms=second_horizon)
    new = b.validate(rebuilt)
    assert read_records(rebuilt, max_bytes=CAP) == kept
    for field in (
        "base_offset",
        "last_offset_delta",
        "leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "timestamp_type",
        "is_transactional",
        "is_control",
    ):
        assert getattr(new, field) == getattr(old, field), field
    assert new.record_count == len(kept)
    assert new.codec is (codec if kept else Codec.NONE)
    assert new.delete_horizon_ms == (second_horizon if first_horizon is None else first_horizon)
    if not kept or append_time is not None:
        assert new.max_timestamp == old.max_timestamp


@pytest.mark.parametrize(
    "times",
    [
        [0],
        [-1],
        [INT64_MAX],
        [INT64_MIN],
        [0, INT64_MAX, 5],
        [0, INT64_MIN, -5],
        [INT64_MAX, 0],
        [-1, INT64_MAX - 1],
        [-1, INT64_MIN],
        [INT64_MIN, -1],
        [INT64_MIN, 0, INT64_MIN],
        [2**31, 2**31 - 1, 2**62, -(2**62)],
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_extreme_timestamps_survive_or_are_refused(times: list[int], codec: Codec) -> None:
    """The whole int64 range works if the differences fit an int64; otherwise building fails."""
    records = [Record(offset, time, None, None) for offset, time in enumerate(times)]
    if all(INT64_MIN <= time - times[0] <= INT64_MAX for time in times):
        assert read_records(build_batch(records, codec=codec)) == records
    else:
        with pytest.raises(ValueError, match="timestamp"):
            build_batch(records, codec=codec)


@pytest.mark.parametrize(
    "records",
    [
        [Record(5, 0, None, None), Record(5, 0, None, None)],
        [Record(5, 0, None, None), Record(4, 0, None, None)],
        [Record(0, 0, None, None), Record(2**31, 0, None, None)],
        [Record(0, 0, None, None), Record(1, 2**63, None, None)],
        [Record(0, 2**63, None, None)],
        [Record(0, -(2**63) - 1, None, None)],
        [Record(0, -10, None, None), Record(1, -(2**63) - 5, None, None)],
        [Record(0, 10, None, None), Record(1, 2**63 + 5, None, None)],
        [Record(-1, 0, None, None)],
        [Record(2**63, 0, None, None)],
    ],
)
def test_records_that_the_format_cannot_represent_are_refused(records: list[Record]) -> None:
    """`build_batch` fails at once instead of building a batch that no reader accepts."""
    with pytest.raises(ValueError, match=r"offset|timestamp"):
        build_batch(records)


@pytest.mark.parametrize(
    "arguments",
    [
        {"base_offset": 1},
        {"base_offset": -1},
        {"last_offset_delta": -1},
        {"last_offset_delta": 0},
        {"last_offset_delta": 2**31},
    ],
)
def test_a_span_that_does_not_hold_the_records_is_refused(arguments: dict[str, int]) -> None:
    """Base offset and span are checked against the records and the format."""
    with pytest.raises(ValueError, match="offset"):
        build_batch([Record(0, 0, None, None), Record(1, 0, None, None)], **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 8190, 8191, 8192, 1_048_574, 1_048_577])
def test_sizes_around_each_varint_length(size: int) -> None:
    """Lengths that just fit, and just do not fit, into one, two, three and four bytes."""
    data = b"\x5a" * size
    records = [Record(0, 0, data, None), Record(1, 0, None, data), Record(2, 0, b"", b"")]
    records.append(Record(3, 0, None, None, (("k" * size, data), ("", None))))
    batch = build_batch(records)
    assert read_records(batch) == records
    assert bytes(batch[61:]) == b"".join(raw_record(record, 0, 0) for record in records)


@pytest.mark.parametrize("delta", [1, 63, 64, 8191, 8192, 2**20, 2**27, 2**28, INT32_MAX])
def test_offset_deltas_of_every_length(delta: int) -> None:
    """Sparse batches up to the largest possible span."""
    records = [Record(7, 0, b"a", None), Record(7 + delta, 0, b"b", None)]
    assert read_records(build_batch(records)) == records


def test_many_headers() -> None:
    """The header count is a varint too."""
    headers = tuple((f"name-{index}", b"%d" % index) for index in range(300))
    records = [Record(0, 0, b"k", b"v", headers)]
    assert read_records(build_batch(records)) == records


@pytest.mark.parametrize("codec", list(Codec))
def test_the_decompressed_size_is_limited(codec: Codec) -> None:
    """The limit applies to the decompressed size of the records; exactly that size passes."""
    records = [Record(0, 0, None, bytes(5000))]
    packed = len(build_batch(records)) - 61
    batch = build_batch(records, codec=codec)
    assert read_records(batch, max_bytes=packed) == records
    with pytest.raises(DecompressedTooLarge):
        read_records(batch, max_bytes=packed - 1)


def test_values_are_copies() -> None:
    """Records stay valid when the buffer they were read from changes."""
    batch = build_batch([Record(0, 0, b"key", b"value", (("h", b"x"),))])
    (record,) = read_records(batch)
    batch[61:] = bytes(len(batch) - 61)
    assert record == Record(0, 0, b"key", b"value", (("h", b"x"),))
    assert [type(item) for item in (record.key, record.value)] == [bytes, bytes]


def test_a_following_batch_is_not_read() -> None:
    """Decoding stops at the end of the batch, not of the buffer."""
    first, second = build_batch([Record(0, 0, b"a", None)]), build_batch([Record(1, 0, b"b", None)])
    assert [record.key for record in read_records(first + second)] == [b"a"]


def test_a_header_from_elsewhere_is_not_trusted_for_length() -> None:
    """A header whose length exceeds the data is refused."""
    batch = build_batch([Record(0, 0, b"key", b"value")])
    header = b.validate(batch)
    with pytest.raises(CorruptBatch):
        read_records(batch[:-1], header)
    with pytest.raises(CorruptBatch):
        read_records(batch, header._replace(batch_length=10))


@given(
    commit=st.booleans(),
    coordinator_epoch=st.integers(-1, INT32_MAX),
    producer_id=st.integers(0, INT64_MAX),
    producer_epoch=st.integers(0, INT16_MAX),
    timestamp=timestamps,
    offset=st.integers(0, INT64_MAX),
)
@settings(deadline=None, max_examples=30)
def test_transaction_markers_survive_a_round_trip(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    offset: int,
) -> None:
    """A marker is a transactional control batch with one record, without a sequence number."""
    marker = ControlMarker(ControlType(commit), coordinator_epoch)
    batch = control_batch(
        marker,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=8,
    )
    header = b.validate(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch)
    assert (header.base_sequence, header.leader_epoch) == (-1, 8)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (offset, 0, 1)
    (record,) = read_records(batch)
    assert (record.offset, record.timestamp) == (offset, timestamp)
    assert record.key == b"\x00\x00" + bytes([0, commit])
    assert record.value == b"\x00\x00" + coordinator_epoch.to_bytes(4, "big", signed=True)
    assert read_control(record) == marker


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (b"", bytes(6)),
        (bytes(3), bytes(6)),
        (bytes(4), None),
        (bytes(4), bytes(5)),
        (b"\x00\x00\x00\x02", bytes(6)),
        (b"\x00\x00\xff\xff", bytes(6)),
        (b"\xff\xff\x00\x00", bytes(6)),
        (bytes(4), b"\xff\xff" + bytes(4)),
    ],
)
def test_malformed_markers_are_refused(key: bytes | None, value: bytes | None) -> None:
    """Short, null, negative or unknown values do not end a transaction."""
    with pytest.raises(CorruptBatch):
        read_control(Record(0, 0, key, value))


def test_markers_of_newer_versions_are_read() -> None:
    """Later versions only add fields after the known ones."""
    record = Record(0, 0, b"\x00\x05\x00\x01more", b"\x00\x03\x00\x00\x00\x09more")
    assert read_control(record) == ControlMarker(ControlType.COMMIT, 9)


def test_padded_varints_are_accepted() -> None:
    """Varints padded with zero groups are wasteful but valid: Java reads them."""
    body = b"\x00" + varint(0) + b"\x80\x80\x00" + varint(-1) + b"\x81\x00" + varint(0)
    packed = varint(len(body)) + body
    assert read_records(raw_batch(packed, record_count=1)) == [Record(0, 0, None, None)]


def test_record_attributes_are_ignored() -> None:
    """The byte is reserved and has no meaning yet, so any value is allowed."""
    packed = bytearray(raw_record(Record(0, 0, b"k", b"v"), 0, 0))
    packed[1] = 0xFF
    assert read_records(raw_batch(bytes(packed), record_count=1)) == [Record(0, 0, b"k", b"v")]
