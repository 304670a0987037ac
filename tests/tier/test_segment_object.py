"""Segment objects: what is encoded can be read back, found by offset and time, and is checked."""

from __future__ import annotations

from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.epochs import EpochStart
from penstock.partition.transactions import AbortedEntry
from penstock.records.batch import CorruptBatch
from penstock.tier.errors import CorruptObject
from penstock.tier.footer import (
    TRAILER_SIZE,
    ByteRange,
    Footer,
    decode_footer,
    decode_trailer,
    encode_footer,
)
from penstock.tier.segment_object import EncodedObject, Lineage, batches_from, encode, verify

from .object_samples import OWNER, batch

LINEAGE = Lineage(
    [EpochStart(0, 0), EpochStart(3, 40)], [AbortedEntry(7, 12, 19, 12)], b"a snapshot"
)


def joined(encoded: EncodedObject) -> bytes:
    return b"".join(encoded.parts)


def some_object(batches: list[bytes], covers: tuple[int, int]) -> EncodedObject:
    return encode(OWNER, 3, covers, batches, LINEAGE, block_bytes=200, chunk_bytes=128)


def ten_batches() -> EncodedObject:
    return some_object([batch(offset, 3) for offset in range(10, 40, 3)], (10, 40))


def test_the_batches_stay_as_they_are() -> None:
    batches = [batch(10, 5), batch(15, 5)]
    encoded = some_object(batches, (10, 20))
    assert joined(encoded).startswith(b"".join(batches))
    assert len(joined(encoded)) == encoded.size


def test_the_footer_says_what_was_encoded() -> None:
    encoded = ten_batches()
    footer = decode_footer(joined(encoded))
    assert footer == encoded.footer == verify(joined(encoded))
    assert (footer.owner, footer.leader_epoch) == (OWNER, 3)
    assert (footer.base_offset, footer.end_offset) == (10, 40)
    assert (footer.batch_count, footer.record_count, footer.max_timestamp) == (10, 30, 39)
    assert (footer.epochs, footer.aborted) == (tuple(LINEAGE.epochs), tuple(LINEAGE.aborted))
    assert footer.producers == b"a snapshot"


def test_the_footer_is_read_from_the_tail_alone() -> None:
    encoded = ten_batches()
    trailer = decode_trailer(joined(encoded)[-TRAILER_SIZE:])
    assert trailer.object_size == encoded.size
    assert decode_footer(joined(encoded)[-trailer.tail_size :]) == encoded.footer
    with pytest.raises(CorruptObject, match="the tail has"):
        decode_footer(joined(encoded)[-trailer.tail_size + 1 :])


def test_compaction_may_leave_gaps_and_nothing_at_all() -> None:
    """The object still covers all offsets of its range."""
    sparse = some_object([batch(20, 2), batch(30, 2)], (10, 40))
    assert verify(joined(sparse)).end_offset == 40
    empty = some_object([], (10, 40))
    assert verify(joined(empty)).range_from(10, 1000) is None
    assert empty.footer.range_at_time(0) is None


@pytest.mark.parametrize(
    ("batches", "covers"),
    [
        ([batch(5)], (6, 10)),
        ([batch(8, 3)], (6, 10)),
        ([batch(8), batch(7)], (6, 10)),
        ([batch(8), batch(8)], (6, 10)),
        ([batch(8)[:-1]], (6, 10)),
        ([batch(8)[:-1] + b"x"], (6, 10)),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches: list[bytes], covers: tuple[int, int]) -> None:
    """Outside the range, not in order, cut, or damaged."""
    with pytest.raises(CorruptBatch):
        some_object(batches, covers)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 200)), max_size=30),
    st.data(),
)
def test_every_record_is_found_by_offset_and_by_time(
    shape: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Whatever the gaps between the batches, their sizes and their timestamps."""
    offset, batches, stamps = 0, [], {}
    for gap, count, timestamp in shape:
        offset += gap
        batches.append(batch(offset, count, timestamp))
        stamps[offset] = timestamp
        offset += count
    encoded = some_object(batches, (0, offset + 1))
    whole, footer = joined(encoded), encoded.footer
    assert verify(whole) == footer
    wanted = data.draw(st.integers(0, offset))
    first = next((start for start in stamps if decode_last(batches, start) >= wanted), None)
    found = footer.range_from(wanted, data.draw(st.integers(1, 500)))
    if first is not None:
        assert found is not None
        read = list(batches_from(whole[found.start : footer.data_size], wanted, offset + 1))
        assert read[0][1].base_offset == first
        # Also without reading on: otherwise a reader would return nothing, again and again.
        read = list(batches_from(whole[slice(*found)], wanted, offset + 1))
        assert read[0][1].base_offset == first
    time = data.draw(st.integers(0, 201))
    timed = footer.range_at_time(time)
    newer = next((start for start, stamp in stamps.items() if stamp >= time), None)
    assert (timed is None) == (newer is None)
    if timed is not None:
        part = [each[1].base_offset for each in batches_from(whole[slice(*timed)], 0, offset + 1)]
        assert newer in part


def decode_last(batches: list[bytes], start: int) -> int:
    found = [header for data in batches for _, header in batches_from(data, 0, 1 << 62)]
    return next(each.last_offset for each in found if each.base_offset == start)


def test_a_range_has_a_batch_although_compaction_left_a_gap_before_it() -> None:
    """The offset is after the last batch of its block, whose range alone would have nothing."""
    batches = [batch(0), batch(1), batch(1000), batch(2000)]
    encoded = encode(OWNER, 3, (0, 3000), batches, LINEAGE, block_bytes=1)
    whole = joined(encoded)
    for wanted, first in ((0, 0), (500, 1000), (1000, 1000), (1001, 2000), (2000, 2000)):
        found = encoded.footer.range_from(wanted, 1)
        assert found is not None
        read = list(batches_from(whole[slice(*found)], wanted, 3000))
        assert [each[1].base_offset for each in read][:1] == [first]
    last = encoded.footer.range_from(2500, 1)
    assert last is None or list(batches_from(whole[slice(*last)], 2500, 3000)) == []


def test_a_range_has_at_least_one_whole_block() -> None:
    footer = ten_batches().footer
    for offset in range(10, 40):
        found = footer.range_from(offset, 1)
        assert found is not None
        whole = joined(ten_batches())[slice(*found)]
        assert any(h.last_offset >= offset for _, h in batches_from(whole, offset, 40))
    assert footer.range_from(0, 1) == footer.range_from(10, 1)
    assert footer.range_from(40, 1) is None
    assert footer.range_from(10, 1 << 30) == ByteRange(0, footer.data_size)


def test_readers_stop_at_the_end_of_the_entry() -> None:
    """An entry may end before its object, after a truncation."""
    whole = joined(ten_batches())
    footer = ten_batches().footer
    found = [header.base_offset for _, header in batches_from(whole[: footer.data_size], 0, 19)]
    assert found == [10, 13, 16]


def test_chunks_show_every_changed_byte() -> None:
    """Also in base offset and leader epoch, which the CRC of the batch does not cover."""
    encoded = ten_batches()
    whole, footer = joined(encoded), encoded.footer
    part = footer.whole_chunks(ByteRange(130, 300))
    assert part == ByteRange(128, 384)
    footer.check_chunks(whole[slice(*part)], part)
    for position in range(part.start, part.end):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(CorruptObject):
            footer.check_chunks(damaged[slice(*part)], part)
        with pytest.raises(CorruptObject):
            verify(damaged)
    with pytest.raises(CorruptObject, match="the object was truncated"):
        footer.check_chunks(whole[part.start : part.end - 1], part)
    with pytest.raises(CorruptObject, match="other bounds"):
        footer.check_chunks(whole[1:9], ByteRange(1, 9))


def test_every_damaged_byte_of_the_footer_is_noticed() -> None:
    tail = ten_batches().tail
    for position in range(len(tail)):
        damaged = bytearray(tail)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptObject):
            decode_footer(damaged)
    for size in range(len(tail)):
        with pytest.raises(CorruptObject):
            decode_footer(tail[:size])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_a_footer_with_a_valid_checksum_and_impossible_content_is_refused(body: bytes) -> None:
    """Whatever it says, the error is `CorruptObject`."""
    trailer = pack(">8sHHIIq", b"PNSTKSEG", 1, 0, len(body), crc32c(body), 0)
    tail = body + trailer + pack(">I", crc32c(trailer))
    try:
        decode_footer(tail)
    except CorruptObject:
        return


def test_a_newer_version_is_refused_by_name() -> None:
    for version, flags in ((2, 0), (1, 1)):
        trailer = pack(">8sHHIIq", b"PNSTKSEG", version, flags, 0, 0, 0)
        with pytest.raises(CorruptObject, match="upgrade penstock"):
            decode_trailer(trailer + pack(">I", crc32c(trailer)))


def test_an_object_of_another_size_is_refused() -> None:
    encoded = ten_batches()
    with pytest.raises(CorruptObject, match="its trailer says"):
        verify(b"x" + joined(encoded))


def test_an_empty_footer_can_be_encoded() -> None:
    footer = Footer(OWNER, 0, 0, 1, -1, 0, 0, 0)
    assert decode_footer(encode_footer(footer)) == footer
