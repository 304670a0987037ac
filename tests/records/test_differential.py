"""Compares our batches with two other implementations, in both directions.

    kafka-python      gzip, and snappy: its own xerial framing with Arrow's block functions; its
                      lz4 and zstd need packages that are not among our dependencies
    aiokafka, C       all codecs
    aiokafka, Python  all codecs

So lz4 and zstd are compared with aiokafka only; test_compression.py compares them with Arrow too.
An uncompressed batch has only one correct encoding and must be equal byte for byte. A compressed
batch must only decode to the same records, because two compressors may differ and both be correct.

The last tests compare our columnar encoder and decoder with those for single records.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.records import batch as b
from penstock.records import columnar
from penstock.records.batch import Codec
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)

from .strategies import (
    INT64_MAX,
    base_offsets,
    codecs,
    from_columns,
    producers,
    put,
    record_lists,
)
from .test_compression import snappy_length

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python loads its schemas in a deprecated way
    import aiokafka.record.default_records as aiokafka_python
    import kafka.codec
    import kafka.record.default_records as kafka_python
    from aiokafka.record import _crecords as aiokafka_c
    from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
    from aiokafka.record.memory_records import MemoryRecords as AiokafkaMemoryRecords
    from kafka.record.memory_records import MemoryRecords as KafkaPythonMemoryRecords

CAP = 1 << 20
Producer = tuple[int, int, int]
NO_PRODUCER: Producer = (-1, -1, -1)


@dataclass(frozen=True)
class Foreign:
    """Another implementation: builder and reader classes, leader epoch of its new batches."""

    builder: Any
    reader: Any
    leader_epoch: int
    codecs: frozenset[Codec]

    def build(
        self,
        records: Sequence[Record],
        codec: Codec = Codec.NONE,
        producer: Producer = NO_PRODUCER,
        transactional: bool = False,
    ) -> bytes:
        """Offsets are those that a producer writes: deltas from a base offset of 0."""
        builder = self.builder(
            magic=2,
            compression_type=int(codec),
            is_transactional=int(transactional),
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            batch_size=CAP,
        )
        for offset, timestamp, key, value, headers in records:
            assert builder.append(offset, timestamp, key, value, list(headers)) is not None
        return bytes(builder.build())

    def read(self, batch: b.Buffer) -> list[Record]:
        reader = self.reader(bytes(batch))
        assert reader.validate_crc()
        return [
            Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
            for record in reader
        ]


def loses(foreign: Foreign, records: list[Record]) -> bool:
    """aiokafka's C builder takes a first timestamp of -1 for "none yet", and loses it."""
    return foreign is FOREIGN["aiokafka-c"] and records[0].timestamp == -1


FOREIGN = {
    "kafka-python": Foreign(
        kafka_python.DefaultRecordBatchBuilder,
        kafka_python.DefaultRecordBatch,
        leader_epoch=0,
        codecs=frozenset({Codec.NONE, Codec.GZIP, Codec.SNAPPY}),
    ),
    "aiokafka-c": Foreign(
        aiokafka_c.DefaultRecordBatchBuilder,
        aiokafka_c.DefaultRecordBatch,
        leader_epoch=-1,
        codecs=frozenset(Codec),
    ),
    "aiokafka-python": Foreign(
        aiokafka_python._DefaultRecordBatchBuilderPy,
        aiokafka_python._DefaultRecordBatchPy,
        leader_epoch=-1,
        codecs=frozenset(Codec),
    ),
}
PAIRS = [
    pytest.param(foreign, codec, id=f"{name}-{codec.name.lower()}")
    for name, foreign in FOREIGN.items()
    for codec in sorted(foreign.codecs)
]
each_foreign = pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
each_pair = pytest.mark.parametrize(("foreign", "codec"), PAIRS)


@pytest.fixture(autouse=True, scope="module")
def lend_snappy_blocks() -> Any:
    """Gives kafka-python block functions like those of python-snappy, so that it can use snappy."""
    with pytest.MonkeyPatch.context() as patch:
        blocks = SimpleNamespace(
            compress=lambda data: pa.compress(data, codec="snappy", asbytes=True),
            decompress=lambda block: pa.decompress(
                block, decompressed_size=snappy_length(block), codec="snappy", asbytes=True
            ),
        )
        patch.setattr(kafka.codec, "snappy", blocks)
        yield


def test_both_implementations_of_aiokafka_are_tested() -> None:
    """The C extension and the Python classes are different code; both are tested."""
    assert aiokafka_python.DefaultRecordBatch is aiokafka_c.DefaultRecordBatch
    assert aiokafka_python._DefaultRecordBatchPy is not aiokafka_c.DefaultRecordBatch


@each_foreign
@given(records=record_lists(base_offset=0), producer=producers, transactional=st.booleans())
@settings(deadline=None, max_examples=40)
def test_uncompressed_batches_are_equal_byte_for_byte(
    foreign: Foreign, records: list[Record], producer: Producer, transactional: bool
) -> None:
    """Same header, varints, null markers, headers and CRC."""
    assume(not loses(foreign, records))
    ours = build_batch(
        records,
        base_offset=0,
        leader_epoch=foreign.leader_epoch,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    assert bytes(ours) == foreign.build(records, producer=producer, transactional=transactional)


@each_pair
@given(records=record_lists(base_offset=0), base_offset=st.integers(0, 2**62))
@settings(deadline=None, max_examples=12)
def test_we_read_batches_of_other_implementations(
    foreign: Foreign, codec: Codec, records: list[Record], base_offset: int
) -> None:
    """The batches are stamped as a broker would stamp them."""
    assume(not loses(foreign, records))
    batch = bytearray(foreign.build(records, codec))
    b.stamp(batch, 0, base_offset, 7)
    b.validate(batch)
    expected = [record._replace(offset=record.offset + base_offset) for record in records]
    assert read_records(batch, max_bytes=CAP) == expected


@each_pair
@given(records=record_lists())
@settings(deadline=None, max_examples=12)
def test_other_implementations_read_our_batches(
    foreign: Foreign, codec: Codec, records: list[Record]
) -> None:
    """At any base offset."""
    batch = build_batch(records, codec=codec, base_offset=records[0].offset)
    assert foreign.read(batch) == records


LONG = [
    Record(offset, 1_700_000_000_000 + offset, b"key-%d" % (offset % 7), b"value " * 40)
    for offset in range(1000)
]
"""About 250 KB: several snappy and lz4 blocks, large enough that every codec compresses it."""


@each_pair
def test_long_compressed_batches_are_read_in_both_directions(
    foreign: Foreign, codec: Codec
) -> None:
    """Both sides really use the codec, for more than one block."""
    theirs = foreign.build(LONG, codec)
    ours = build_batch(LONG, codec=codec, base_offset=0)
    assert b.validate(theirs).codec is codec
    assert b.validate(ours).codec is codec
    assert codec is Codec.NONE or max(len(theirs), len(ours)) < 60_000
    assert read_records(theirs, max_bytes=CAP) == LONG
    assert foreign.read(ours) == LONG


@each_foreign
@given(records=record_lists(), producer=producers, transactional=st.booleans(), codec=...)
@settings(deadline=None, max_examples=12)
def test_other_implementations_read_the_same_header_fields(
    foreign: Foreign,
    records: list[Record],
    producer: Producer,
    transactional: bool,
    codec: Codec,
) -> None:
    batch = build_batch(
        records,
        codec=codec,
        base_offset=records[0].offset,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    header = b.validate(batch)
    theirs = foreign.reader(bytes(batch))
    assert theirs.validate_crc()
    assert (
        theirs.base_offset,
        theirs.magic,
        theirs.crc,
        theirs.attributes,
        theirs.last_offset_delta,
        theirs.first_timestamp,
        theirs.max_timestamp,
        theirs.producer_id,
        theirs.producer_epoch,
        theirs.base_sequence,
        theirs.next_offset,
        theirs.compression_type,
        theirs.is_transactional,
        theirs.is_control_batch,
    ) == (
        header.base_offset,
        header.magic,
        header.crc,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.next_offset,
        header.codec,
        header.is_transactional,
        header.is_control,
    )


@each_pair
@given(records=record_lists(), now_ms=st.integers(0, 2**62))
@settings(deadline=None, max_examples=12)
def test_log_append_time_has_the_same_meaning(
    foreign: Foreign, codec: Codec, records: list[Record], now_ms: int
) -> None:
    """With log append time every record has the batch's max timestamp."""
    batch = build_batch(records, codec=codec, base_offset=records[0].offset)
    b.stamp_append_time(batch, 0, now_ms)
    expected = [record._replace(timestamp=now_ms) for record in records]
    assert foreign.read(batch) == expected
    assert read_records(batch, max_bytes=CAP) == expected


@given(batches=st.lists(record_lists(max_size=3), min_size=1, max_size=4), codec=...)
@settings(deadline=None, max_examples=20)
@pytest.mark.parametrize("memory_records", [KafkaPythonMemoryRecords, AiokafkaMemoryRecords])
def test_other_implementations_split_a_segment_into_the_same_batches(
    memory_records: Any, batches: list[list[Record]], codec: Codec
) -> None:
    """A log segment as a consumer receives it: several batches, the last one incomplete."""
    codec = codec if codec in FOREIGN["kafka-python"].codecs else Codec.GZIP
    built = [
        bytes(build_batch(records, codec=codec, base_offset=records[0].offset))
        for records in batches
    ]
    reader = memory_records(b"".join(built) + built[0][:-1])
    found = []
    while reader.has_next():
        found.append([record.value for record in reader.next_batch()])
    assert found == [[record.value for record in records] for records in batches]


@pytest.mark.parametrize(("commit", "marker"), [(False, ABORT_MARKER), (True, COMMIT_MARKER)])
@each_foreign
def test_other_implementations_read_our_transaction_markers(
    foreign: Foreign, commit: bool, marker: ControlRecord
) -> None:
    """A marker is a control batch with one record whose key says commit or abort."""
    batch = control_batch(
        ControlMarker(ControlType(commit), coordinator_epoch=6),
        producer_id=1234,
        producer_epoch=5,
        timestamp=1_700_000_000_000,
        offset=41,
    )
    reader = foreign.reader(bytes(batch))
    assert reader.validate_crc()
    assert reader.is_control_batch
    assert reader.is_transactional
    assert (reader.producer_id, reader.producer_epoch) == (1234, 5)
    (record,) = reader
    assert (record.offset, record.timestamp) == (41, 1_700_000_000_000)
    assert ControlRecord.parse(record.key) == marker
    if foreign is FOREIGN["kafka-python"]:
        assert (record.version, record.commit, record.abort) == (0, commit, not commit)


@each_pair
@given(records=record_lists(base_offset=0, max_size=4), data=st.data())
@settings(deadline=None, max_examples=12)
def test_compacted_batches_are_read_the_same_way(
    foreign: Foreign, codec: Codec, records: list[Record], data: st.DataObject
) -> None:
    """Compaction keeps the span of a batch even if its last records are removed."""
    batch = build_batch(records, codec=codec, base_offset=0)
    span = records[-1].offset + data.draw(st.integers(0, 1000))
    put(batch, "last_offset_delta", span)
    b.seal(batch, 0, len(batch))
    assert b.validate(batch).next_offset == span + 1
    assert foreign.reader(bytes(batch)).next_offset == span + 1
    assert foreign.read(batch) == read_records(batch, max_bytes=CAP) == records


@given(
    batches=st.lists(st.tuples(record_lists(max_size=3), codecs), max_size=4),
    window=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
)
@settings(deadline=None, max_examples=50)
def test_columns_contain_the_same_records(
    batches: list[tuple[list[Record], Codec]], window: tuple[int, int] | None
) -> None:
    """Decoding several batches with a range of offsets gives the same records."""
    data = b"".join(bytes(build_batch(records, codec=codec)) for records, codec in batches)
    everything = [record for records, _ in batches for record in records]
    low, high = window or (0, INT64_MAX)
    decoded = columnar.decode(columnar.Chunk(data, from_offset=low, to_offset=high))
    assert from_columns(decoded.records) == [r for r in everything if low <= r.offset < high]


@pytest.mark.parametrize("codec", list(Codec))
def test_column_buffers_grow_as_needed(codec: Codec) -> None:
    """Batches that decompress to far more than their size suggests, with nulls and headers."""
    records = [
        Record(
            offset,
            offset * 1000,
            None if offset % 3 == 0 else b"key-%d" % offset,
            None if offset % 7 == 0 else b"v" * (offset % 500),
            tuple(
                (f"name-{index}", None if index % 2 else b"x" * index)
                for index in range(offset % 5)
            ),
        )
        for offset in range(1500)
    ]
    data = b"".join(
        bytes(build_batch(records[start : start + 300], codec=codec))
        for start in range(0, len(records), 300)
    )
    assert from_columns(columnar.decode(data).records) == records


@given(
    records=record_lists(sparse=False, base_offset=0),
    codec=codecs,
    base_offset=base_offsets,
    sliced_off=st.integers(0, 9),
)
@settings(deadline=None, max_examples=50)
def test_columns_are_encoded_to_the_same_bytes(
    records: list[Record], codec: Codec, base_offset: int, sliced_off: int
) -> None:
    """The columnar encoder writes the same batch for the same rows, even for a slice."""
    records = [record._replace(offset=record.offset + base_offset) for record in records]
    longer = [Record(0, 0, None, b"before", (("x", b"y"),))] * sliced_off + records
    headers = [[{"key": k, "value": v} for k, v in record.headers] for record in longer]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = pa.record_batch(
        {
            "key": pa.array([record.key for record in longer], pa.binary()),
            "value": pa.array([record.value for record in longer], pa.binary()),
            "timestamp": pa.array([record.timestamp for record in longer], pa.int64()),
            "headers": pa.array(headers, pa.list_(header)),
        }
    ).slice(sliced_off)
    options = columnar.BatchOptions(codec=codec, producer_id=3, producer_epoch=4)
    assert columnar.encode(rows, options, base_offset=base_offset, base_sequence=5) == [
        build_batch(records, codec=codec, producer_id=3, producer_epoch=4, base_sequence=5)
    ]
