"""The records of `__consumer_offsets`, compared with bytes built by hand from Kafka's schemas."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.effects import LogRecord
from penstock.groups.formats import (
    GroupEntry,
    GroupKey,
    GroupValue,
    OffsetEntry,
    OffsetKey,
    OffsetValue,
    group_record,
    offset_record,
    read_record,
)
from penstock.groups.image import ShardImage
from penstock.wire.errors import ProtocolError


def text(value: str) -> bytes:
    """Encodes a string as all versions but the flexible ones do: 16-bit length, then UTF-8."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def block(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


NULL_TEXT = struct.pack(">h", -1)

MEMBER = GroupValue.Member(
    member_id="m-1",
    group_instance_id="one",
    client_id="client",
    client_host="/10.0.0.1",
    rebalance_timeout=60_000,
    session_timeout=10_000,
    subscription=b"\x00\x01sub",
    assignment=b"\x00\x01asg",
)
GROUP = GroupValue(
    "consumer",
    7,
    protocol="range",
    leader="m-1",
    current_state_timestamp=1_700_000_000_000,
    members=[MEMBER],
)


def test_offset_bytes() -> None:
    """An offset is written with key version 1 and value version 3."""
    record = offset_record("grüppe", "orders", 5, OffsetValue(42, 3, "note", 1_700_000_000_000))
    assert record.key == b"\x00\x01" + text("grüppe") + text("orders") + struct.pack(">i", 5)
    assert record.value == (
        b"\x00\x03"
        + struct.pack(">qi", 42, 3)
        + text("note")
        + struct.pack(">q", 1_700_000_000_000)
    )


def test_offset_bytes_in_hex() -> None:
    """The same again as plain hex, so that no code of Penstock computes the expectation."""
    record = offset_record("g", "t", 0, OffsetValue(1, -1, "", 2))
    assert record.key.hex() == "000100016700017400000000"
    assert record.value is not None
    assert record.value.hex() == "00030000000000000001ffffffff00000000000000000002"


def test_bytes_of_an_offset_with_its_own_retention() -> None:
    """Only value version 1 has a field for the expiry time, and it has no leader epoch."""
    record = offset_record("g", "t", 0, OffsetValue(1, 9, "m", 2, 3))
    assert record.value == b"\x00\x01" + struct.pack(">q", 1) + text("m") + struct.pack(">qq", 2, 3)
    entry = read_record(*record)
    assert entry == OffsetEntry(OffsetKey("g", "t", 0), OffsetValue(1, -1, "m", 2, 3))


def test_group_bytes() -> None:
    """A group is written with key version 2 and value version 3."""
    record = group_record("g", GROUP)
    assert record.key == b"\x00\x02" + text("g")
    assert record.value == (
        b"\x00\x03"
        + text("consumer")
        + struct.pack(">i", 7)
        + text("range")
        + text("m-1")
        + struct.pack(">q", 1_700_000_000_000)
        + struct.pack(">i", 1)
        + text("m-1")
        + text("one")
        + text("client")
        + text("/10.0.0.1")
        + struct.pack(">ii", 60_000, 10_000)
        + block(b"\x00\x01sub")
        + block(b"\x00\x01asg")
    )


def test_empty_group_bytes() -> None:
    """A group without members has no protocol and no leader."""
    record = group_record("g", GroupValue("consumer", 8, current_state_timestamp=5))
    assert record.value == (
        b"\x00\x03"
        + text("consumer")
        + struct.pack(">i", 8)
        + NULL_TEXT
        + NULL_TEXT
        + struct.pack(">qi", 5, 0)
    )


def test_tombstones_have_no_value() -> None:
    assert offset_record("g", "t", 1, None).value is None
    assert group_record("g", None) == LogRecord(b"\x00\x02" + text("g"), None)


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            b"\x00\x00" + struct.pack(">q", 42) + text("m") + struct.pack(">q", 7),
            OffsetValue(42, -1, "m", 7),
        ),
        (
            b"\x00\x01" + struct.pack(">q", 42) + text("m") + struct.pack(">qq", 7, 9),
            OffsetValue(42, -1, "m", 7, 9),
        ),
        (
            b"\x00\x02" + struct.pack(">q", 42) + text("m") + struct.pack(">q", 7),
            OffsetValue(42, -1, "m", 7),
        ),
        (
            b"\x00\x03" + struct.pack(">qi", 42, 3) + text("m") + struct.pack(">q", 7),
            OffsetValue(42, 3, "m", 7),
        ),
        (
            # Version 4: compact string, and a topic id in tagged field 0, which is skipped.
            b"\x00\x04"
            + struct.pack(">qi", 42, 3)
            + b"\x02m"
            + struct.pack(">q", 7)
            + b"\x01\x00\x10"
            + bytes(range(16)),
            OffsetValue(42, 3, "m", 7),
        ),
    ],
    ids=["v0", "v1", "v2", "v3", "v4"],
)
def test_every_offset_version_is_read(
    key_version: int, value: bytes, expected: OffsetValue
) -> None:
    """Logs written by any version of Kafka can be read."""
    key = struct.pack(">h", key_version) + text("g") + text("t") + struct.pack(">i", 5)
    assert read_record(key, value) == OffsetEntry(OffsetKey("g", "t", 5), expected)


def member_bytes(version: int) -> bytes:
    data = text("m-1")
    if version >= 3:
        data += text("one")
    data += text("client") + text("/10.0.0.1")
    if version >= 1:
        data += struct.pack(">i", 60_000)
    return data + struct.pack(">i", 10_000) + block(b"\x00\x01sub") + block(b"\x00\x01asg")


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_group_version_is_read(version: int) -> None:
    """Fields that a version does not have get their defaults."""
    value = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 7)
    value += text("range") + text("m-1")
    if version >= 2:
        value += struct.pack(">q", 1_700_000_000_000)
    value += struct.pack(">i", 1) + member_bytes(version)
    entry = read_record(b"\x00\x02" + text("g"), value)
    assert isinstance(entry, GroupEntry)
    assert entry.key == GroupKey("g")
    assert entry.value is not None
    (member,) = entry.value.members
    assert entry.value.current_state_timestamp == (1_700_000_000_000 if version >= 2 else -1)
    assert member.group_instance_id == ("one" if version >= 3 else None)
    assert member.rebalance_timeout == (60_000 if version >= 1 else -1)
    assert (member.session_timeout, member.assignment) == (10_000, b"\x00\x01asg")


def test_flexible_group_version_is_read() -> None:
    """Version 4 has compact lengths and tagged fields in the group and in each member."""
    value = b"\x00\x04" + b"\x09consumer" + struct.pack(">i", 7) + b"\x06range" + b"\x04m-1"
    value += struct.pack(">q", 1_700_000_000_000) + b"\x02"
    value += b"\x04m-1" + b"\x04one" + b"\x07client" + b"\x0a/10.0.0.1"
    value += struct.pack(">ii", 60_000, 10_000)
    value += b"\x06\x00\x01sub" + b"\x06\x00\x01asg" + b"\x01\x05\x02xy" + b"\x00"
    assert read_record(b"\x00\x02" + text("g"), value) == GroupEntry(GroupKey("g"), GROUP)


@pytest.mark.parametrize("version", [3, 4, 5, 10, 17])
def test_records_of_other_group_types_are_skipped(version: int) -> None:
    """Key versions above 2 belong to groups of other protocols."""
    assert read_record(struct.pack(">h", version) + text("g"), b"whatever") is None
    assert read_record(None, b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\x00", None),
        (b"\x00\x01\x00\x05ab", None),
        (b"\x00\x02" + text("g"), b"\x00"),
        (b"\x00\x02" + text("g"), b"\x00\x05"),
        (b"\x00\x02" + text("g"), b"\x00\x03" + text("consumer")),
        (b"\x00\x02" + b"\x00\x01\xff", None),
    ],
)
def test_a_damaged_record_is_an_error(key: bytes, value: bytes | None) -> None:
    """It raises ProtocolError. Reading does not crash, and does not guess."""
    with pytest.raises(ProtocolError):
        read_record(key, value)


names = st.text(max_size=20)
members = st.builds(
    GroupValue.Member,
    member_id=names,
    group_instance_id=st.none() | names,
    client_id=names,
    client_host=names,
    rebalance_timeout=st.integers(0, 1 << 30),
    session_timeout=st.integers(0, 1 << 30),
    subscription=st.binary(max_size=40),
    assignment=st.binary(max_size=40),
)
values = st.builds(
    GroupValue,
    names,
    st.integers(0, (1 << 31) - 1),
    protocol=st.none() | names,
    leader=st.none() | names,
    current_state_timestamp=st.integers(-1, 1 << 50),
    members=st.lists(members, max_size=3),
)


@settings(deadline=None, max_examples=100)
@given(names, values)
def test_a_group_survives_the_log(group: str, value: GroupValue) -> None:
    """Every field is read as it was written."""
    assert read_record(*group_record(group, value)) == GroupEntry(GroupKey(group), value)


@settings(deadline=None, max_examples=100)
@given(names, names, st.integers(0, 1000), st.integers(0, 1 << 62), names, st.integers(-1, 1000))
def test_an_offset_survives_the_log(
    group: str, topic: str, partition: int, offset: int, metadata: str, epoch: int
) -> None:
    """Every field is read as it was committed."""
    value = OffsetValue(offset, epoch, metadata, 1_700_000_000_000)
    entry = read_record(*offset_record(group, topic, partition, value))
    assert entry == OffsetEntry(OffsetKey(group, topic, partition), value)


def test_the_image_keeps_the_last_record_of_each_key() -> None:
    """So a compacted log replays to the same image as the whole one."""
    records = [
        offset_record("g", "t", 0, OffsetValue(1)),
        offset_record("g", "t", 1, OffsetValue(2)),
        group_record("g", GroupValue("consumer", 1)),
        offset_record("g", "t", 0, OffsetValue(3)),
        group_record("h", GROUP),
        offset_record("g", "t", 1, None),
        offset_record("h", "t", 1, None),
        group_record("g", None),
    ]
    compacted = list({record.key: record for record in records}.values())
    whole, short = ShardImage(), ShardImage()
    for record in records:
        whole.replay(*record)
    for record in compacted:
        short.replay(*record)
    assert whole.groups == short.groups == {"h": GROUP}
    assert whole.offsets == short.offsets == {"g": {("t", 0): OffsetValue(3)}}
