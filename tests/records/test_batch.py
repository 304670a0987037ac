"""The batch header: reading, validating, and changing it in place."""

from __future__ import annotations

from struct import calcsize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import batch as b

from .strategies import FIELDS, INT32_MAX, INT64_MAX, plain_crc32c, raw_batch

BODY = b"records as their producer packed them"

SAMPLE = {
    "base_offset": 0x0102030405060708,
    "leader_epoch": 0x11121314,
    "attributes": 0,
    "last_offset_delta": 0x21222324,
    "base_timestamp": 0x3132333435363738,
    "max_timestamp": 0x4142434445464748,
    "producer_id": 0x5152535455565758,
    "producer_epoch": 0x6162,
    "base_sequence": 0x71727374,
    "record_count": 3,
}
"""Every byte of every field is different, so that reading from a wrong position is noticed."""


def refuses(buffer: b.Buffer, reason: str, position: int = 0) -> None:
    with pytest.raises(b.CorruptBatch, match=reason):
        b.validate(buffer, position)


def test_the_tests_own_crc32c_is_correct() -> None:
    """The CRC32C that these tests compute matches the published check values."""
    assert plain_crc32c(b"123456789") == 0xE3069283
    assert plain_crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("position", [0, 1, 7, 60, 61, 500])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_header_is_read_at_any_position(position: int, kind: type) -> None:
    """Each field is read from its position in the format, wherever the batch starts."""
    buffer = kind(bytes(position) + bytes(raw_batch(BODY, **SAMPLE)) + b"next")
    header = b.validate(buffer, position)
    assert header == b.read_header(buffer, position)
    for field, value in SAMPLE.items():
        assert getattr(header, field) == value, field
    assert header.magic == 2
    assert header.batch_length == 61 + len(BODY) - 12
    assert header.size == 61 + len(BODY)
    assert header.crc == plain_crc32c(buffer[position + 21 : position + header.size])


@given(
    st.fixed_dictionaries(
        {
            field: st.integers(-(256**size) // 2, 256**size // 2 - 1)
            if field != "crc"
            else st.integers(0, 2**32 - 1)
            for field, (_, size) in FIELDS.items()
        }
    )
)
@settings(deadline=None, max_examples=50)
def test_header_fields_cover_their_whole_range(fields: dict[str, int]) -> None:
    """Reading and writing a header are inverse for every value that a field can have."""
    buffer = raw_batch(b"", **fields)
    header = b.read_header(buffer)
    assert header._asdict() == fields
    written = bytearray(61 + 5)
    b.write_header(written, 5, header)
    assert written == bytes(5) + buffer


def test_header_properties_follow_from_the_fields() -> None:
    header = b.read_header(raw_batch(base_offset=100, last_offset_delta=9, attributes=0))
    assert (header.last_offset, header.next_offset) == (109, 110)
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_producer
    assert header.last_sequence == -1
    assert header.delete_horizon_ms is None
    assert header.timestamp_type is b.TimestampType.CREATE_TIME
    full = b.read_header(
        raw_batch(
            attributes=0x7C, producer_id=0, base_sequence=5, last_offset_delta=2, base_timestamp=77
        )
    )
    assert full.codec is b.Codec.ZSTD
    assert full.timestamp_type is b.TimestampType.LOG_APPEND_TIME
    assert full.is_transactional
    assert full.is_control
    assert full.has_producer
    assert full.last_sequence == 7
    assert full.delete_horizon_ms == 77


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (INT32_MAX, 0, INT32_MAX), (INT32_MAX, 1, 0), (INT32_MAX - 1, 3, 1)],
)
def test_sequences_wrap_to_zero(base: int, delta: int, last: int) -> None:
    """0 follows 2**31 - 1; sequence numbers are never negative."""
    header = b.read_header(raw_batch(base_sequence=base, last_offset_delta=delta))
    assert header.last_sequence == last


@pytest.mark.parametrize("codec", list(b.Codec))
def test_every_codec_is_accepted_without_decoding_the_body(codec: b.Codec) -> None:
    """The body is not decoded: `validate` accepts garbage if the CRC matches."""
    assert b.validate(raw_batch(BODY, attributes=codec)).codec is codec


@pytest.mark.parametrize("size", range(61))
def test_refuses_a_torn_header(size: int) -> None:
    """A header needs all of its 61 bytes."""
    refuses(bytes(raw_batch(BODY))[:size], f"only {size} are left")


def test_refuses_a_position_past_the_end() -> None:
    """The error reports 0 bytes left, not a negative number."""
    refuses(raw_batch(BODY), "only 0 are left", position=10_000)


def test_refuses_a_torn_body() -> None:
    """All bytes of the batch must be there."""
    whole = bytes(raw_batch(BODY))
    for size in range(61, len(whole)):
        refuses(whole[:size], f"should have {len(whole)} bytes, but only {size} are left")
    assert b.validate(whole).size == len(whole)


@pytest.mark.parametrize("length", [48, 1, 0, -1, -12, -(2**31)])
def test_refuses_a_length_below_the_header(length: int) -> None:
    """With a length smaller than the header a scan would stand still or go back."""
    refuses(raw_batch(batch_length=length), f"batch length {length} is below")


def test_refuses_a_length_beyond_the_buffer() -> None:
    """A huge length raises an error and allocates nothing."""
    refuses(raw_batch(batch_length=INT32_MAX), "only 61 are left")


def test_bytes_after_the_batch_are_ignored() -> None:
    """Any bytes may follow a valid batch."""
    assert b.validate(raw_batch(BODY) + b"\xff" * 7).size == 61 + len(BODY)


@pytest.mark.parametrize("magic", [-128, -1, 0, 1, 3, 127])
def test_refuses_other_formats(magic: int) -> None:
    """Only record batch v2 is accepted."""
    refuses(raw_batch(BODY, magic=magic), f"magic {magic} is not 2")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_refuses_unknown_codecs(codec: int) -> None:
    """A batch with an unassigned codec number cannot be stored: no consumer could read it."""
    refuses(raw_batch(BODY, attributes=codec), f"unknown compression codec {codec}")


@pytest.mark.parametrize("bit", range(8))
def test_refuses_any_flipped_bit_under_the_checksum(bit: int) -> None:
    """A single flipped bit anywhere that the CRC covers, or in the CRC itself."""
    whole = bytes(raw_batch(BODY, **SAMPLE))
    for position in range(17, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        refuses(damaged, "CRC is")


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": -1},
        {"base_offset": -(2**63)},
        {"last_offset_delta": -1},
        {"last_offset_delta": -(2**31), "record_count": 1},
    ],
)
def test_refuses_negative_offsets(fields: dict[str, int]) -> None:
    """Offsets start at zero, and a batch spans at least one."""
    refuses(raw_batch(BODY, **fields), "cannot be negative")


def test_refuses_offsets_beyond_64_bits() -> None:
    """The last offset must be one that a fetch can request."""
    assert b.validate(raw_batch(base_offset=INT64_MAX - 5, last_offset_delta=5))
    refuses(raw_batch(base_offset=INT64_MAX - 5, last_offset_delta=6), "does not fit 64 bits")


@pytest.mark.parametrize(
    ("count", "delta"), [(-1, 0), (-(2**31), 5), (2, 0), (7, 5), (INT32_MAX, 0)]
)
def test_refuses_a_count_the_span_cannot_hold(count: int, delta: int) -> None:
    """Compaction leaves fewer records than offsets; there can never be more."""
    refuses(raw_batch(BODY, record_count=count, last_offset_delta=delta), "do not fit a span")


@pytest.mark.parametrize(
    ("count", "delta"), [(0, 0), (0, 9), (1, 9), (10, 9), (0, INT32_MAX), (INT32_MAX, INT32_MAX)]
)
def test_accepts_sparse_and_empty_batches(count: int, delta: int) -> None:
    """Compaction removes records and keeps the span of offsets."""
    header = b.validate(raw_batch(record_count=count, last_offset_delta=delta))
    assert (header.record_count, header.next_offset) == (count, delta + 1)


@given(
    position=st.integers(0, 20),
    base_offset=st.integers(0, INT64_MAX - 4),
    epoch=st.integers(-1, INT32_MAX),
    use_view=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_stamp_touches_only_what_the_checksum_does_not_cover(
    position: int, base_offset: int, epoch: int, use_view: bool
) -> None:
    """Only base offset and leader epoch change, and the batch stays valid."""
    fields = SAMPLE | {"last_offset_delta": 4}
    before = bytes(position) + bytes(raw_batch(BODY, **fields)) + b"after"
    buffer = bytearray(before)
    b.stamp(memoryview(buffer) if use_view else buffer, position, base_offset, epoch)
    assert buffer[position : position + 8] == base_offset.to_bytes(8, "big")
    assert buffer[position + 12 : position + 16] == epoch.to_bytes(4, "big", signed=True)
    untouched = [*range(position), *range(position + 8, position + 12)]
    untouched += range(position + 16, len(before))
    assert all(buffer[index] == before[index] for index in untouched)
    header = b.validate(buffer, position)
    assert (header.base_offset, header.leader_epoch) == (base_offset, epoch)


@pytest.mark.parametrize("position", [0, 13])
@pytest.mark.parametrize("attributes", [0, 0x14, 0x08])
def test_append_time_replaces_the_clients_clock(position: int, attributes: int) -> None:
    """The flag, the max timestamp and the CRC change; the batch stays valid."""
    before = bytes(position) + bytes(raw_batch(BODY, **SAMPLE | {"attributes": attributes}))
    buffer = bytearray(before + b"after")
    header = b.stamp_append_time(buffer, position, 1_700_000_000_123)
    assert header == b.validate(buffer, position)
    assert header.timestamp_type is b.TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 1_700_000_000_123
    assert header.attributes == attributes | 0x08
    old = b.validate(before, position)
    assert header == old._replace(
        attributes=header.attributes, max_timestamp=header.max_timestamp, crc=header.crc
    )
    assert buffer[position + 61 :] == BODY + b"after"
    assert buffer[:position] == before[:position]


def test_the_crc_check_can_be_skipped() -> None:
    """Everything but the CRC is still checked."""
    assert b.validate(raw_batch(BODY, crc=1), check_crc=False).crc == 1
    for fields in ({"magic": 1}, {"batch_length": 48}, {"base_offset": -1}, {"attributes": 7}):
        with pytest.raises(b.CorruptBatch):
            b.validate(raw_batch(BODY, **fields), check_crc=False)


def test_seal_makes_a_changed_batch_valid_again() -> None:
    """The CRC covers exactly the given batch, not the bytes around it."""
    buffer = bytearray(b"front") + raw_batch(BODY) + b"after"
    buffer[5 + 61] ^= 0xFF
    refuses(buffer, "CRC is", position=5)
    b.seal(buffer, 5, 61 + len(BODY))
    assert b.validate(buffer, 5).crc == plain_crc32c(buffer[5 + 21 : 5 + 61 + len(BODY)])


def test_batches_are_iterated_in_order() -> None:
    """Each batch comes with its position; an empty buffer has none."""
    bodies = [b"", b"one", BODY]
    buffer = b"".join(
        bytes(raw_batch(body, base_offset=index)) for index, body in enumerate(bodies)
    )
    walked = list(b.iter_batches(memoryview(buffer)))
    assert [position for position, _ in walked] == [0, 61, 61 + 64]
    assert [header.base_offset for _, header in walked] == [0, 1, 2]
    assert list(b.iter_batches(b"")) == []


@pytest.mark.parametrize("tail", [b"\x00", bytes(60), bytes(61), bytes(raw_batch(BODY))[:-1]])
def test_iteration_stops_at_the_first_bad_batch(tail: bytes) -> None:
    """It returns the valid batches first, then raises."""
    walk = b.iter_batches(bytes(raw_batch(BODY)) + tail)
    assert next(walk)[0] == 0
    with pytest.raises(b.CorruptBatch):
        next(walk)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=120)
def test_noise_is_refused(noise: bytes) -> None:
    """Whatever the bytes, `validate` raises nothing but `CorruptBatch`."""
    with pytest.raises(b.CorruptBatch):
        b.validate(noise)


@given(
    st.fixed_dictionaries({}, optional={f: st.integers(-128, 127) for f in FIELDS if f != "crc"})
)
@settings(deadline=None, max_examples=120)
def test_any_header_is_either_accepted_or_refused(fields: dict[str, int]) -> None:
    """Any header with a correct CRC is either accepted as consistent or refused."""
    buffer = raw_batch(BODY, **fields)
    try:
        header = b.validate(buffer)
    except b.CorruptBatch:
        return
    assert header.magic == 2
    assert 61 <= header.size <= len(buffer)
    assert header.codec in b.Codec
    assert 0 <= header.record_count <= header.next_offset - header.base_offset


def test_the_start_of_each_field_is_that_of_the_header() -> None:
    """The constants that compiled code reads single fields with."""
    names = [name if name != "crc" else "crc_field" for name in b.BatchHeader._fields]
    starts = [getattr(b, f"{name}_START".upper()) for name in names]
    formats = b._HEADER.format[1:]
    assert starts == [calcsize(">" + formats[:count]) for count in range(len(names))]
