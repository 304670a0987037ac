"""The snapshot file has exactly Kafka's bytes, and every kind of damage is found."""

from __future__ import annotations

from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition.producer_snapshot import (
    CorruptSnapshot,
    decode_snapshot,
    decode_with_times,
    encode_snapshot,
)
from penstock.partition.producer_state import ProducerEntry

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(
    st.builds(ProducerEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64), max_size=4
)


def test_the_layout_is_kafkas() -> None:
    """Version, CRC over the rest, count, then 46 bytes per producer."""
    entry = ProducerEntry(
        producer_id=0x0102,
        epoch=3,
        last_sequence=9,
        last_offset=0x40,
        offset_delta=4,
        timestamp=0x0506,
        coordinator_epoch=-1,
        current_transaction_first_offset=0x11,
    )
    body = bytes.fromhex(
        "00000001"
        "0000000000000102 0003 00000009 0000000000000040 00000004"
        "0000000000000506 ffffffff 0000000000000011"
    )
    assert encode_snapshot([entry]) == pack(">hI", 1, crc32c(body)) + body


@settings(deadline=None, max_examples=50)
@given(ENTRIES)
def test_entries_survive_encoding_and_decoding(entries: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


@settings(deadline=None, max_examples=50)
@given(ENTRIES)
def test_append_times_survive_encoding_and_decoding(entries: list[ProducerEntry]) -> None:
    """They are stored after the entries, where Kafka does not read. The bytes before them do not
    change."""
    times = {entry.producer_id: entry.producer_id ^ 77 for entry in entries}
    stored = encode_snapshot(entries, times)
    assert decode_with_times(stored) == (entries, times)
    assert decode_with_times(encode_snapshot(entries)) == (entries, {})
    without = encode_snapshot(entries)
    assert stored[6 : len(without)] == without[6:]


@settings(deadline=None, max_examples=60)
@given(ENTRIES, st.data())
def test_damage_is_found(entries: list[ProducerEntry], data: st.DataObject) -> None:
    """A flipped bit, a cut or an extra byte is reported as CorruptSnapshot, and as nothing else."""
    sound = encode_snapshot(entries)
    position = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), sound[:position], sound + b"\0"):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(damaged)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "at least 10 bytes"),
        (pack(">hIi", 2, 0, 0), "version 2 is unknown"),
        (pack(">hIi", 1, 1, 0), "CRC is"),
        (pack(">hI", 1, crc32c(pack(">i", -1))) + pack(">i", -1), "-1 entries"),
        (pack(">hI", 1, crc32c(pack(">i", 9))) + pack(">i", 9), "9 entries of 46 bytes"),
    ],
)
def test_the_error_gives_the_reason(data: bytes, reason: str) -> None:
    """The message says what is wrong, also when the CRC of invalid contents is correct."""
    with pytest.raises(CorruptSnapshot, match=reason):
        decode_snapshot(data)
