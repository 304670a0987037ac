"""Damaged batches are refused or harmless, and nothing else can happen.

First the CRC detects the damage. Then it is bypassed: the CRC of the damaged batch is computed
again, so that the record decoders have to handle garbage. The two decoders, for records and for
columns, must agree: both refuse a batch, or both return the same records.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import batch as b
from penstock.records import columnar
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import Codec, CorruptBatch
from penstock.records.compression import DecompressedTooLarge, compress
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
    read_records,
)
from penstock.testing.slowness import patient

from .strategies import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    codecs,
    from_columns,
    raw_batch,
    reseal,
    varint,
)

CAP = 1 << 20

RECORDS = [
    Record(1000, 1_700_000_000_000, b"key", b"value", (("name", b"x"), ("name", None), ("é", b""))),
    Record(1001, 1_700_000_000_050, None, b"v" * 70),
    Record(1004, 1_699_999_999_990, b"", None, (("", b"y" * 3),)),
]


def sample(codec: Codec) -> bytes:
    return bytes(build_batch(RECORDS, codec=codec, base_offset=1000, leader_epoch=3))


SAMPLES: dict[str, bytes] = {
    "control": bytes(
        control_batch(
            ControlMarker(ControlType.COMMIT, coordinator_epoch=2),
            producer_id=77,
            producer_epoch=1,
            timestamp=1_700_000_000_000,
            offset=1000,
            leader_epoch=3,
        )
    ),
    **{codec.name.lower(): sample(codec) for codec in Codec},
}
each_sample = pytest.mark.parametrize("whole", SAMPLES.values(), ids=SAMPLES)


def changed(whole: bytes, position: int, value: int) -> bytearray:
    damaged = bytearray(whole)
    damaged[position] = value
    return damaged


def other_values(original: int, *, everything: bool) -> list[int]:
    """Returns all 255 other values of a byte, or those most likely to matter."""
    if everything:
        return [value for value in range(256) if value != original]
    likely = {0, 1, 2, 0x7F, 0x80, 0xFF, original ^ 1, original ^ 0x80, (original + 2) % 256}
    return sorted(likely - {original})


def decode(batch: bytearray) -> list[Record] | None:
    """Returns the records that both decoders find in a batch, or None if they refuse it.

    An exception other than `CorruptBatch`, and any difference between the two, fails the test.
    Control batches are checked with the record decoder only: in a table they have no rows, whatever
    they contain.
    """
    try:
        records = read_records(batch, max_bytes=CAP)
    except CorruptBatch:
        records = None
    try:
        table = columnar.decode(batch, max_bytes=CAP).records
    except CorruptBatch:
        table = None
    if b.read_header(batch).is_control:
        assert table is None or not len(table)
        assert (table is None) <= (records is None)
    else:
        assert (None if table is None else from_columns(table)) == records
    return records


@each_sample
def test_a_truncated_batch_is_refused(whole: bytes) -> None:
    for size in range(len(whole)):
        with pytest.raises(CorruptBatch):
            b.validate(whole[:size])
        with pytest.raises(CorruptBatch):
            read_records(whole[:size])


@each_sample
def test_a_batch_truncated_by_the_fetch_size_is_not_damage(whole: bytes) -> None:
    """A fetch ends where its size ends, so for columns an incomplete batch is not damage."""
    for size in range(len(whole)):
        decoded = columnar.decode(whole[:size])
        assert len(decoded.records) == 0
        assert decoded.ends == (columnar.ChunkEnd(None, size),)


@each_sample
def test_any_changed_byte_is_refused_or_harmless(whole: bytes) -> None:
    """Only base offset and leader epoch are outside the CRC, and they do not affect the records."""
    before = read_records(whole, max_bytes=CAP)
    base = b.validate(whole).base_offset
    for position in range(len(whole)):
        for value in other_values(whole[position], everything=position < 61):
            damaged = changed(whole, position, value)
            try:
                header = b.validate(damaged)
            except CorruptBatch:
                assert position not in range(12, 16)
                assert position not in range(1, 8)
                assert position != 0 or value >= 0x80
                continue
            assert position < 8 or 12 <= position < 16, (position, value)
            if value % 16 == 0:  # reading all of them takes long and shows no more
                shift = header.base_offset - base
                after = read_records(damaged, max_bytes=CAP)
                assert after == [r._replace(offset=r.offset + shift) for r in before]


@each_sample
def test_truncated_bodies_with_a_correct_crc_are_refused(whole: bytes) -> None:
    """A truncated body with a correct length and CRC lacks records that its header promises."""
    for size in range(61, len(whole)):
        assert decode(reseal(bytearray(whole[:size]))) is None, size


@pytest.mark.parametrize("extra", [b"\x00", b"\x0c\x00\x00\x00\x01\x01\x00", bytes(20)])
@pytest.mark.parametrize("name", ["control", "none"])
def test_bytes_after_the_last_record_are_refused(name: str, extra: bytes) -> None:
    """Zeros or a whole further record: bytes that the count does not cover are not allowed."""
    assert decode(reseal(bytearray(SAMPLES[name] + extra))) is None


@each_sample
def test_both_decoders_agree_on_a_changed_byte_with_a_correct_crc(whole: bytes) -> None:
    """With a corrected CRC, both decoders read the same records or refuse the batch, for any
    change.

    Attributes, span and count control the decoders, so they are tried with every value.
    """
    steering = {*range(21, 27), *range(57, 61)} if whole is SAMPLES["none"] else set()
    outcomes = {"read": 0, "refused": 0}
    for position in range(21, len(whole)):
        for value in other_values(whole[position], everything=position in steering):
            damaged = changed(whole, position, value)
            b.seal(damaged, 0, len(damaged))
            outcomes["refused" if decode(damaged) is None else "read"] += 1
    assert min(outcomes.values()) > 0, outcomes


@given(data=st.data(), name=st.sampled_from(sorted(SAMPLES)))
@settings(deadline=None, max_examples=120)
def test_both_decoders_agree_on_heavy_damage_with_a_correct_crc(
    data: st.DataObject, name: str
) -> None:
    """Bytes are removed, inserted and overwritten several times."""
    damaged = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(21, len(damaged)))
        end = min(len(damaged), start + data.draw(st.integers(0, 6)))
        damaged[start:end] = data.draw(st.binary(max_size=6))
    if len(damaged) >= 61:
        decode(reseal(damaged))


small = st.integers(-3, 70) | st.sampled_from([INT32_MAX, INT32_MAX + 1, 2**40, INT64_MAX])


@given(
    bodies=st.lists(st.lists(small.map(varint) | st.binary(max_size=5), max_size=8), max_size=3),
    count=st.integers(0, 4),
    codec=codecs,
    attributes=st.sampled_from([0, 0x08, 0x20, 0x40]),
)
@settings(deadline=None, max_examples=120)
def test_both_decoders_agree_on_noise_that_looks_like_records(
    bodies: list[list[bytes]], count: int, codec: Codec, attributes: int
) -> None:
    """The numbers are where numbers belong, the lengths are correct, the values are nonsense."""
    packed = b""
    for body in bodies:
        fields = b"\x00" + b"".join(body)
        packed += varint(len(fields)) + fields
    decode(
        raw_batch(
            compress(codec, packed),
            attributes=codec | attributes,
            record_count=count,
            last_offset_delta=5,
        )
    )


@given(body=st.binary(max_size=120), count=st.integers(0, 12), codec=st.integers(0, 4))
@settings(deadline=None, max_examples=120)
def test_both_decoders_agree_on_noise_with_a_correct_crc(
    body: bytes, count: int, codec: int
) -> None:
    """Random bytes instead of records, compressed or claimed to be."""
    decode(raw_batch(body, attributes=codec, record_count=count, last_offset_delta=20))
    decode(
        raw_batch(
            compress(Codec(codec), body),
            attributes=codec,
            record_count=count,
            last_offset_delta=20,
        )
    )


def record_of(*fields: int | bytes, length: int | None = None) -> bytes:
    """Returns a record with these fields after the attributes, and with any length."""
    body = b"\x00" + b"".join(
        varint(field) if isinstance(field, int) else field for field in fields
    )
    return varint(len(body) if length is None else length) + body


OVERLONG = b"\x80" * 10 + b"\x01"
BAD_RECORDS: dict[str, bytes] = {
    "nothing": b"",
    "a negative length": record_of(0, 0, -1, -1, 0, length=-1),
    "a very negative length": record_of(0, 0, -1, -1, 0, length=-(2**31)),
    "a length of nothing": record_of(0, 0, -1, -1, 0, length=0),
    "a length one short": record_of(0, 0, -1, -1, 0, length=5),
    "a length one long": record_of(0, 0, -1, -1, 0, length=7) + b"\x00",
    "a length beyond the end": record_of(0, 0, -1, -1, 0, length=INT32_MAX),
    "a length of more than 32 bits": record_of(0, 0, -1, -1, 0, length=2**32 + 6),
    "a length without an end": b"\xff" * 20,
    "a timestamp without an end": record_of(OVERLONG, 0, -1, -1, 0),
    "a timestamp of 65 bits": record_of(b"\xff" * 9 + b"\x02", 0, -1, -1, 0),
    "an offset of 33 bits": record_of(0, 2**32, -1, -1, 0),
    "an offset before the batch": record_of(0, -1, -1, -1, 0),
    "an offset beyond the span": record_of(0, 10, -1, -1, 0),
    "a key of size -2": record_of(0, 0, -2, -1, 0),
    "a key beyond the end": record_of(0, 0, 100, b"abc", -1, 0),
    "a huge key": record_of(0, 0, INT32_MAX, b"abc", -1, 0),
    "a key over the next record": record_of(0, 0, 12, b"ab", length=6) + record_of(0, 1, -1, -1, 0),
    "a value of size -2": record_of(0, 0, -1, -2, 0),
    "a huge value": record_of(0, 0, -1, INT32_MAX, 0),
    "a value of size -2**31": record_of(0, 0, -1, -(2**31), 0),
    "no header count": record_of(0, 0, 1, b"k", -1),
    "a negative header count": record_of(0, 0, -1, -1, -1),
    "headers that are not there": record_of(0, 0, -1, -1, 1),
    "two billion headers": record_of(0, 0, -1, -1, INT32_MAX),
    "a null header key": record_of(0, 0, -1, -1, 1, -1, -1),
    "a null header key among others": record_of(0, 0, -1, -1, 2, -1, 1, b"k", -1),
    "a header key of size -2": record_of(0, 0, -1, -1, 1, -2, -1),
    "a header key beyond the end": record_of(0, 0, -1, -1, 1, 9, b"k", -1),
    "a header value beyond the end": record_of(0, 0, -1, -1, 1, 1, b"k", 9, b"v"),
    "a header value of size -2": record_of(0, 0, -1, -1, 1, 1, b"k", -2),
    "a header key that is not UTF-8": record_of(0, 0, -1, -1, 1, 2, b"\xc3\x28", -1),
    "a header key that is a surrogate": record_of(0, 0, -1, -1, 1, 3, b"\xed\xa0\x80", -1),
    "a character split over two header keys": record_of(
        0, 0, -1, -1, 2, 1, b"\xc3", -1, 1, b"\xa9", -1
    ),
    "a header too many": record_of(0, 0, -1, -1, 1, 1, b"k", -1, 1, b"k", -1),
    "bytes after the headers": record_of(0, 0, -1, -1, 0, b"\x00"),
}


@pytest.mark.parametrize("packed", BAD_RECORDS.values(), ids=BAD_RECORDS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_malformed_records_are_refused(packed: bytes, codec: Codec) -> None:
    """Each malformed record alone, after a valid record, and before one."""
    sound = record_of(0, 0, -1, -1, 0)
    assert decode(raw_batch(sound, record_count=1, last_offset_delta=9)) is not None
    for before, after in ((b"", b""), (sound, b""), (b"", record_of(0, 8, -1, -1, 0))):
        count = 1 + bool(before) + bool(after)
        body = compress(codec, before + packed + after)
        fields = {"attributes": int(codec), "record_count": count, "last_offset_delta": 9}
        assert decode(raw_batch(body, **fields)) is None


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (3, 2), (5, 5)])
def test_offsets_must_increase(offsets: tuple[int, int]) -> None:
    """Two records with one offset, or in the wrong order, would confuse every reader."""
    body = b"".join(record_of(0, offset, -1, -1, 0) for offset in offsets)
    assert decode(raw_batch(body, record_count=2, last_offset_delta=9)) is None


@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        (INT64_MAX, 0, True),
        (INT64_MAX, 1, False),
        (1, INT64_MAX, False),
        (INT64_MIN, 0, True),
        (INT64_MIN, -1, False),
        (-1, INT64_MIN, False),
        (INT64_MIN, INT64_MAX, True),
        (INT64_MAX, INT64_MIN, True),
        (0, INT64_MIN, True),
    ],
)
@pytest.mark.parametrize("append_time", [False, True])
def test_timestamps_do_not_wrap(base: int, delta: int, fits: bool, append_time: bool) -> None:
    """A sum beyond 64 bits is refused; with append time there is no sum."""
    batch = raw_batch(
        record_of(delta, 0, -1, -1, 0),
        record_count=1,
        base_timestamp=base,
        max_timestamp=77,
        attributes=0x08 if append_time else 0,
    )
    expected = 77 if append_time else base + delta
    records = decode(batch)
    assert records == ([Record(0, expected, None, None)] if fits or append_time else None)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [INT32_MAX, 1_000_000])
def test_a_wrong_record_count_is_refused_without_allocating_memory(
    count: int, codec: Codec
) -> None:
    """Billions of records in a few bytes are refused at once, without allocating for them."""
    batch = raw_batch(
        compress(codec, record_of(0, 0, -1, -1, 0)),
        attributes=codec,
        record_count=count,
        last_offset_delta=INT32_MAX,
    )
    tracemalloc.start()
    started = time.thread_time()
    try:
        assert decode(batch) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.thread_time() - started < patient(0.5)
    assert peak < 1 << 20


def test_memory_is_proportional_to_the_payload() -> None:
    """A bomb of tiny records stays within the limit and a small multiple of it."""
    tiny = b"".join(record_of(0, offset, -1, -1, 0) for offset in range(20_000))
    batch = raw_batch(
        compress(Codec.ZSTD, tiny), attributes=4, record_count=20_000, last_offset_delta=20_000
    )
    with pytest.raises(DecompressedTooLarge):
        read_records(batch, max_bytes=len(tiny) - 1)
    with pytest.raises(DecompressedTooLarge):
        columnar.decode(batch, max_bytes=len(tiny) - 1)
    tracemalloc.start()
    try:
        assert len(read_records(batch, max_bytes=len(tiny))) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 60 * len(tiny)
    finally:
        tracemalloc.stop()


def test_the_size_limit_of_columns_holds_for_control_batches_too() -> None:
    """Some markers must be decompressed, and must not bypass the limit."""
    bomb = build_batch(
        [Record(0, 0, b"\x00\x00\x00\x00" + bytes(50_000), bytes(6))],
        codec=Codec.ZSTD,
        producer_id=5,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    chunk = columnar.Chunk(bomb, aborted=[AbortedTransaction(5, 0)])
    assert len(columnar.decode(chunk, max_bytes=60_000).records) == 0
    with pytest.raises(DecompressedTooLarge):
        columnar.decode(chunk, max_bytes=40_000)
