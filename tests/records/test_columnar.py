"""Arrow columns to batches and back, checked against the codec for single records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import kernels
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import HEADER_SIZE, Codec, CorruptBatch, TimestampType, validate
from penstock.records.columnar import (
    BatchOptions,
    Chunk,
    ChunkEnd,
    decode,
    encode,
    encode_partitions,
)
from penstock.records.compression import DecompressedTooLarge
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)

from .strategies import from_columns

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

blobs = st.none() | st.binary(max_size=20) | st.integers(50, 9000).map(bytes)
header_lists = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3
)
contents = st.lists(
    st.tuples(st.integers(-1, NOW_MS * 2), blobs, blobs, header_lists.map(tuple)), max_size=30
)


def as_records(rows: Sequence[tuple[Any, ...]], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + index, *row) for index, row in enumerate(rows)]


def as_columns(records: Sequence[Record]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in record.headers] for record in records], HEADERS
            ),
            "timestamp": pa.array([record.timestamp for record in records], pa.int64()),
        }
    )


def values_of(*batches: bytes | bytearray | memoryview) -> list[bytes | None]:
    return [record.value for batch in batches for record in read_records(batch)]


def test_the_kernels_are_compiled_unless_penstock_pure_is_set() -> None:
    """PENSTOCK_PURE=1 runs the same source uncompiled; otherwise the compiled extension is used."""
    assert kernels.COMPILED is (os.environ.get("PENSTOCK_PURE") != "1")


@settings(deadline=None, max_examples=60)
@given(rows=contents, codec=st.sampled_from(Codec), base_offset=st.integers(0, 1 << 62))
def test_columns_and_records_encode_to_the_same_bytes(
    rows: list[tuple[Any, ...]], codec: Codec, base_offset: int
) -> None:
    records = as_records(rows, base_offset)
    encoded = encode(as_columns(records), BatchOptions(codec=codec), base_offset=base_offset)
    expected = [build_batch(records, codec=codec)] if records else []
    assert [bytes(batch) for batch in encoded] == [bytes(batch) for batch in expected]


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.tuples(contents, st.sampled_from(Codec)), max_size=5),
    base_offset=st.integers(0, 1 << 40),
)
def test_batches_of_any_codec_decode_to_one_table(
    groups: list[tuple[list[tuple[Any, ...]], Codec]], base_offset: int
) -> None:
    """Consecutive batches decode to one Arrow batch with their records in order."""
    expected: list[Record] = []
    chunk = b""
    for rows, codec in groups:
        records = as_records(rows, base_offset + len(expected))
        chunk += build_batch(records, codec=codec) if records else b""
        expected += records
    decoded = decode(chunk)
    assert from_columns(decoded.records) == expected
    last = base_offset + len(expected) if expected else None
    assert decoded.ends == (ChunkEnd(last, 0),)


@settings(deadline=None, max_examples=40)
@given(
    rows=contents,
    bytes_max=st.integers(HEADER_SIZE + 1, 20_000),
    records_max=st.integers(1, 40),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    sequence=st.integers(0, 2**31 - 1),
)
def test_rows_are_split_into_batches_within_their_limits(
    rows: list[tuple[Any, ...]], bytes_max: int, records_max: int, codec: Codec, sequence: int
) -> None:
    """Batches are as full as allowed; offsets and sequence numbers continue, and wrap."""
    records = as_records(rows, 7)
    options = BatchOptions(
        codec=codec,
        batch_bytes_max=bytes_max,
        batch_records_max=records_max,
        producer_id=5,
        producer_epoch=2,
    )
    encoded = encode(as_columns(records), options, base_offset=7, base_sequence=sequence)
    position = 0
    for batch in encoded:
        header = validate(batch)
        count = header.record_count
        plain = build_batch(records[position : position + count])
        assert (header.base_offset, header.last_offset_delta) == (7 + position, count - 1)
        assert (header.producer_id, header.producer_epoch) == (5, 2)
        assert header.base_sequence == (sequence + position) % 2**31
        assert count <= records_max
        assert len(plain) <= bytes_max or count == 1
        one_more = records[position : position + count + 1]
        if len(one_more) > count:
            assert count == records_max or len(build_batch(one_more)) > bytes_max
        assert read_records(batch) == records[position : position + count]
        position += count
    assert position == len(records)


@settings(deadline=None, max_examples=40)
@given(rows=contents, first=st.integers(0, 40), last=st.integers(0, 40), wide=st.booleans())
def test_slices_of_small_and_large_types_encode_as_their_own_rows(
    rows: list[tuple[Any, ...]], first: int, last: int, wide: bool
) -> None:
    """A slice whose buffers begin before it encodes as its own rows."""
    records = as_records(rows)
    table = as_columns(records)
    if wide:
        pairs = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
        types = [pa.large_binary(), pa.large_binary(), pa.large_list(pairs), pa.int64()]
        table = pa.record_batch(
            [column.cast(kind) for column, kind in zip(table.columns, types, strict=True)],
            names=table.schema.names,
        )
    first = min(first, len(records))
    chosen = [
        record._replace(offset=index) for index, record in enumerate(records[first : first + last])
    ]
    encoded = encode(table.slice(first, last))
    assert [record for batch in encoded for record in read_records(batch)] == chosen


def test_chunked_tables_encode_as_if_they_were_whole() -> None:
    """The chunks of a table do not affect its batches."""
    records = as_records([(NOW_MS, b"k", bytes([index]), (("h", b"1"),)) for index in range(50)])
    whole = as_columns(records)
    table = pa.Table.from_batches([whole.slice(0, 3), whole.slice(3, 40), whole.slice(43)])
    assert [bytes(batch) for batch in encode(table)] == [bytes(batch) for batch in encode(whole)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(2),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_every_text_and_binary_type_is_accepted(kind: pa.DataType) -> None:
    """Keys and values may have any of these types, with nulls and slices."""
    column = pa.array(["no", "ab", None, "cd", "no"]).cast(pa.string())
    source = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    column = column.cast(source)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    rows = pa.record_batch({"key": column, "value": column}).slice(1, 3)
    (batch,) = encode(rows, now_ms=NOW_MS)
    for field in ("key", "value"):
        assert [getattr(record, field) for record in read_records(batch)] == [b"ab", None, b"cd"]


def test_headers_may_be_a_map_and_null_or_empty_means_no_headers() -> None:
    """Lists of pairs and maps work, also with an offset."""
    kind = pa.map_(pa.string(), pa.binary())
    lists = [[("x", b"0")], [("a", b"1"), ("b", None)], None, [], [("", b"")]]
    rows = pa.record_batch({"value": pa.nulls(5), "headers": pa.array(lists, kind)}).slice(1)
    (batch,) = encode(rows, now_ms=NOW_MS)
    expected = [(("a", b"1"), ("b", None)), (), (), (("", b""),)]
    assert [record.headers for record in read_records(batch)] == expected


def test_a_header_without_a_key_is_refused() -> None:
    """Kafka has no such header; this holds for a null key and for a null pair."""
    for pair in ({"key": None, "value": b"v"}, None):
        rows = pa.record_batch({"value": [b"v"], "headers": pa.array([[pair]], HEADERS)})
        with pytest.raises(ValueError, match="without a key"):
            encode(rows, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (pa.int64(), 1_500),
        (pa.int32(), 1_500),
        (pa.timestamp("s", "UTC"), 2),
        (pa.timestamp("ms"), 1_500),
        (pa.timestamp("us", "Europe/Prague"), 1_500_999),
        (pa.timestamp("ns"), 1_500_999_999),
    ],
    ids=str,
)
def test_timestamps_come_in_any_unit_and_default_to_now(kind: pa.DataType, raw: int) -> None:
    """Finer units are truncated to milliseconds; rows without a timestamp get `now_ms`."""
    column = pa.array([7, raw, None], pa.int64()).cast(kind).slice(1)
    (batch,) = encode(pa.record_batch({"value": pa.nulls(2), "timestamp": column}), now_ms=NOW_MS)
    expected_ms = 2_000 if kind == pa.timestamp("s", "UTC") else 1_500
    assert [record.timestamp for record in read_records(batch)] == [expected_ms, NOW_MS]
    assert validate(batch).max_timestamp == NOW_MS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [b"k"]}, "no value column"),
        ({"value": [1]}, "cast it to binary"),
        ({"value": [b"v"], "vaule": [b"v"]}, "vaule"),
        ({"value": [b"v"], "headers": [[1]]}, "headers column"),
        ({"value": [b"v"], "timestamp": ["now"]}, "timestamp column"),
        ({"value": [b"v"], "partition": [0]}, "encode_partitions"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    """The error names the column and says what to do."""
    with pytest.raises(ValueError, match=message):
        encode(pa.record_batch(columns), now_ms=NOW_MS)


def test_timestamps_are_never_made_up() -> None:
    """Without a column and without `now_ms` there is no timestamp to use."""
    with pytest.raises(ValueError, match="give now_ms"):
        encode(pa.record_batch({"value": [b"v"]}))


def test_timestamps_too_far_apart_are_refused() -> None:
    """A delta that does not fit 64 bits must not wrap around."""
    rows = {"value": pa.nulls(2), "timestamp": pa.array([-5, (1 << 63) - 1], pa.int64())}
    with pytest.raises(ValueError, match="too far"):
        encode(pa.record_batch(rows))


@settings(deadline=None, max_examples=40)
@given(partitions=st.lists(st.integers(0, 4), max_size=40), records_max=st.integers(1, 10))
def test_rows_are_split_by_partition_in_their_order(
    partitions: list[int], records_max: int
) -> None:
    """Each partition has its rows in order and its own sequence numbers; empty ones are omitted."""
    values = [b"%d" % index for index in range(len(partitions))]
    rows = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "partition": pa.array(partitions, pa.int32())}
    )
    encoded = encode_partitions(
        rows,
        BatchOptions(batch_records_max=records_max, producer_id=1, producer_epoch=0),
        now_ms=NOW_MS,
        base_sequences={partition: partition * 100 for partition in range(5)},
    )
    assert list(encoded) == sorted(set(partitions))
    for partition, batches in encoded.items():
        expected = [value for value, p in zip(values, partitions, strict=True) if p == partition]
        assert values_of(*batches) == expected
        assert [validate(batch).base_sequence for batch in batches] == list(
            range(partition * 100, partition * 100 + len(expected), records_max)
        )


def test_a_row_without_a_partition_is_refused() -> None:
    """Choosing the partition is the partitioner's task."""
    rows = pa.record_batch({"value": [b"a"], "partition": pa.array([None], pa.int32())})
    with pytest.raises(ValueError, match="every row a partition"):
        encode_partitions(rows, now_ms=NOW_MS)


def test_an_oversized_record_gets_its_own_batch() -> None:
    """The records next to it are not affected; whether it is too large is the broker's decision."""
    rows = pa.record_batch({"value": [b"a", bytes(5000), b"b", b"c"]})
    batches = encode(rows, BatchOptions(batch_bytes_max=200), now_ms=NOW_MS)
    assert [values_of(batch) for batch in batches] == [[b"a"], [bytes(5000)], [b"b", b"c"]]


def test_batches_can_be_stamped_by_a_broker() -> None:
    """The result of `encode` is writable, and batches do not share bytes."""
    batches = encode(
        pa.record_batch({"value": [b"a", b"b"]}), BatchOptions(batch_records_max=1), now_ms=NOW_MS
    )
    batches[0][:] = bytes(len(batches[0]))
    assert values_of(batches[1]) == [b"b"]


@given(cut=st.integers(0, 400))
@settings(deadline=None, max_examples=50)
def test_the_bytes_of_an_incomplete_batch_are_reported(cut: int) -> None:
    """A fetch may end anywhere in a batch; the complete batches before it still count."""
    batches = [
        bytes(build_batch(as_records([(NOW_MS, None, bytes(60), ())], offset)))
        for offset in range(3)
    ]
    size = len(batches[0])
    data = b"".join(batches)[:cut]
    decoded = decode(data)
    whole = len(data) // size
    assert decoded.records.column("offset").to_pylist() == list(range(whole))
    assert decoded.ends == (ChunkEnd(whole or None, len(data) - whole * size),)


@given(low=st.integers(0, 30), high=st.integers(0, 30), with_headers=st.booleans())
@settings(deadline=None, max_examples=50)
def test_only_requested_offsets_are_returned(low: int, high: int, with_headers: bool) -> None:
    """A fetch returns whole batches; records that were not requested are dropped."""
    records = as_records([(NOW_MS, None, b"v", (("h", b"%d" % i),)) for i in range(25)])
    data = b"".join(build_batch(records[start : start + 10]) for start in (0, 10, 20))
    decoded = decode(Chunk(data, from_offset=low, to_offset=high), headers=with_headers)
    assert ("headers" in decoded.records.schema.names) is with_headers
    assert decoded.records.column("offset").to_pylist() == list(range(low, min(high, 25)))
    if with_headers:
        assert from_columns(decoded.records) == records[low:high]
    assert decoded.ends[0].next_offset == 25


def test_chunks_of_several_partitions_decode_together() -> None:
    """Each row has its partition, and each chunk reports where it ended."""
    one, two = build_batch(as_records([(1, None, b"a", ())], 5)), b"short"
    three = build_batch(as_records([(1, None, b"b", ()), (2, b"", None, ())], 9))
    decoded = decode([Chunk(one, partition=3), Chunk(two, partition=1), Chunk(three, partition=0)])
    assert decoded.records.column("partition").to_pylist() == [3, 0, 0]
    assert decoded.records.column("value").to_pylist() == [b"a", b"b", None]
    assert decoded.ends == (ChunkEnd(6, 0), ChunkEnd(None, 5), ChunkEnd(11, 0))


def test_no_data_decodes_to_no_rows() -> None:
    """An empty response has all columns and no rows."""
    decoded = decode(b"")
    decoded.records.validate(full=True)
    assert len(decoded.records) == 0
    names = "key value headers timestamp timestamp_type offset"
    assert decoded.records.schema.names == names.split()


def test_log_append_time_and_sparse_batches_are_decoded() -> None:
    """Compacted batches keep their gaps and may be empty; append time replaces all timestamps."""
    sparse = build_batch(
        [Record(12, 5, b"k", b"v"), Record(17, 6, b"l", None)],
        base_offset=10,
        last_offset_delta=9,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=NOW_MS,
    )
    empty = build_batch([], base_offset=20, last_offset_delta=4, codec=Codec.GZIP)
    decoded = decode(bytes(sparse) + bytes(empty))
    assert decoded.records.column("offset").to_pylist() == [12, 17]
    assert decoded.records.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_MS, NOW_MS]
    assert decoded.records.column("timestamp_type").to_pylist() == [1, 1]
    assert decoded.ends[0].next_offset == 25


def test_aborted_transactions_and_markers_are_left_out() -> None:
    """Only the batches of the listed producer are dropped, and only up to its abort marker."""

    def data(offset: int, producer_id: int, transactional: bool = True) -> bytearray:
        return build_batch(
            [Record(offset, NOW_MS, None, b"%d" % offset)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )

    def marker(offset: int, producer_id: int, kind: ControlType) -> bytearray:
        return control_batch(
            ControlMarker(kind, 1),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=NOW_MS,
            offset=offset,
        )

    log = bytes(data(0, 1) + data(1, 2) + data(2, 1, transactional=False))
    log += marker(3, 1, ControlType.ABORT) + data(4, 1) + marker(5, 2, ControlType.COMMIT)
    log += data(6, 2) + marker(7, 2, ControlType.ABORT) + marker(8, 1, ControlType.COMMIT)
    aborted = [AbortedTransaction(2, 6), AbortedTransaction(1, 0)]
    assert decode(Chunk(log, aborted=aborted)).records.column("offset").to_pylist() == [1, 2, 4]
    assert decode(log).records.column("offset").to_pylist() == [0, 1, 2, 4, 6]
    assert decode(log).ends == (ChunkEnd(9, 0),)


def test_buffers_grow_beyond_what_the_batch_size_suggests() -> None:
    """Compressed batches hold far more than their size suggests."""
    records = as_records([(NOW_MS + i, b"k" * 50, bytes(500), (("h", None),)) for i in range(3000)])
    data = b"".join(
        build_batch(records[start : start + 500], codec=Codec.ZSTD) for start in range(0, 3000, 500)
    )
    assert len(data) < 100_000
    assert from_columns(decode(data).records) == records


def test_decoding_stops_at_its_byte_limit() -> None:
    """The limit applies to all batches of a call together."""
    batch = build_batch(as_records([(NOW_MS, None, bytes(100_000), ())]), codec=Codec.ZSTD)
    assert len(decode(bytes(batch) * 2, max_bytes=201_000).records) == 2
    with pytest.raises(DecompressedTooLarge, match="201000"):
        decode(bytes(batch) * 3, max_bytes=201_000)


@settings(deadline=None, max_examples=150)
@given(rows=contents.filter(bool), codec=st.sampled_from(Codec), data=st.data())
def test_a_damaged_chunk_is_refused_or_decoded_like_single_records(
    rows: list[tuple[Any, ...]], codec: Codec, data: st.DataObject
) -> None:
    """With any byte changed and no CRC check, decoding agrees with the record codec."""
    batch = build_batch(as_records(rows), codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    header = validate(batch, check_crc=False)
    try:
        expected = read_records(batch, header)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode(batch, check_crc=False)
    else:
        assert from_columns(decode(batch, check_crc=False).records) == expected


def test_a_wrong_crc_is_found_unless_the_check_is_skipped() -> None:
    """The CRC is checked by default."""
    batch = build_batch(as_records([(NOW_MS, None, b"value", ())]))
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode(batch)
    assert decode(batch, check_crc=False).records.column("value").to_pylist() == [b"valud"]


def test_a_header_key_that_is_not_text_is_corrupt() -> None:
    """Arrow strings must be UTF-8."""
    batch = build_batch(as_records([(NOW_MS, None, None, (("key", b"v"),))]))
    batch[batch.index(b"key")] = 0xFF
    with pytest.raises(CorruptBatch, match="UTF-8"):
        decode(batch, check_crc=False)
    assert len(decode(batch, check_crc=False, headers=False).records) == 1


def test_malformed_arrow_arrays_are_refused() -> None:
    """Offsets outside the data are not followed."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1 << 20, 3)))
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with pytest.raises(ValueError, match="validate"):
        encode(pa.record_batch({"value": array}), now_ms=NOW_MS)


@pytest.mark.parametrize(
    "options",
    [{"batch_bytes_max": HEADER_SIZE}, {"batch_bytes_max": 1 << 31}, {"batch_records_max": 0}],
)
def test_impossible_limits_are_refused(options: dict[str, int]) -> None:
    """They are refused when they are set, not when the first batch is built."""
    with pytest.raises(ValueError, match="give"):
        BatchOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in parts"):
        decode(b"", max_bytes=1 << 31)
