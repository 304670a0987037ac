"""The records of consumer groups, compared with bytes built by hand from Kafka's schemas."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordination.effects import LogRecord
from penstock.groups.consumer.records import (
    ClassicProtocol,
    Current,
    CurrentEntry,
    Entry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    MemberMetadata,
    MemberState,
    RegexEntry,
    ResolvedRegex,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TopicIdPartition,
    read_entry,
    record_of,
)
from penstock.groups.consumer.stored_group import StoredGroup
from penstock.groups.formats import GroupValue, OffsetValue, group_record, offset_record
from penstock.groups.image import ShardImage
from penstock.wire.errors import ProtocolError

TOPIC = bytes(range(16))
OFFSET = OffsetValue(7)


def key(kind: int, *texts: str) -> bytes:
    """Keys are not flexible: each string has a 16-bit length."""
    data = struct.pack(">h", kind)
    for each in texts:
        data += struct.pack(">h", len(each)) + each.encode()
    return data


def text(value: str) -> bytes:
    """A compact string: its length plus one, then UTF-8."""
    return bytes([len(value) + 1]) + value.encode()


def tag(number: int, data: bytes) -> bytes:
    """One tagged field: how many there are, its number, its size."""
    return bytes([1, number, len(data)]) + data


VERSION = b"\x00\x00"
NO_TAGS = b"\x00"

SAMPLES: list[tuple[Entry, LogRecord]] = [
    (
        EpochEntry("g", GroupEpoch(7, 258)),
        LogRecord(key(3, "g"), VERSION + struct.pack(">i", 7) + tag(0, struct.pack(">q", 258))),
    ),
    (
        EpochEntry("g", GroupEpoch(7)),
        LogRecord(key(3, "g"), VERSION + struct.pack(">i", 7) + NO_TAGS),
    ),
    (
        MemberEntry("g", "m", MemberMetadata("c", "/h", "one", None, frozenset("ab"), "x.*", 9)),
        LogRecord(
            key(5, "g", "m"),
            VERSION
            + text("one")
            + b"\x00"
            + text("c")
            + text("/h")
            + b"\x03"
            + text("a")
            + text("b")
            + text("x.*")
            + struct.pack(">i", 9)
            + b"\x00"
            + NO_TAGS,
        ),
    ),
    (
        MemberEntry("g", "m", MemberMetadata(classic=ClassicProtocol(5, (("range", b"\x01"),)))),
        LogRecord(
            key(5, "g", "m"),
            VERSION
            + b"\x00\x00"
            + text("")
            + text("")
            + b"\x01\x00"
            + struct.pack(">i", -1)
            + b"\x00"
            # Nullable, so a byte says that the struct is there.
            + tag(
                0,
                b"\x01"
                + struct.pack(">i", 5)
                + b"\x02"
                + text("range")
                + b"\x02\x01"
                + NO_TAGS
                + NO_TAGS,
            ),
        ),
    ),
    (
        TargetEpochEntry("g", TargetEpoch(7, 99)),
        LogRecord(key(6, "g"), VERSION + struct.pack(">i", 7) + tag(0, struct.pack(">q", 99))),
    ),
    (
        TargetEntry("g", "m", frozenset([TopicIdPartition(TOPIC, 2), TopicIdPartition(TOPIC, 1)])),
        LogRecord(
            key(7, "g", "m"),
            VERSION + b"\x02" + TOPIC + b"\x03" + struct.pack(">ii", 1, 2) + NO_TAGS + NO_TAGS,
        ),
    ),
    (
        CurrentEntry(
            "g", "m", Current(7, 6, MemberState.UNREVOKED, {TopicIdPartition(TOPIC, 1): 5}, {})
        ),
        LogRecord(
            key(8, "g", "m"),
            VERSION
            + struct.pack(">iib", 7, 6, 1)
            + b"\x02"
            + TOPIC
            + b"\x02"
            + struct.pack(">i", 1)
            + tag(0, b"\x02" + struct.pack(">i", 5))
            + b"\x01"
            + NO_TAGS,
        ),
    ),
    (
        RegexEntry("g", "x.*", ResolvedRegex(frozenset(["x1"]), 3, 4)),
        LogRecord(
            key(16, "g", "x.*"),
            VERSION + b"\x02" + text("x1") + struct.pack(">qq", 3, 4) + NO_TAGS,
        ),
    ),
]


@pytest.mark.parametrize(("entry", "record"), SAMPLES)
def test_the_bytes_are_those_of_kafka(entry: Entry, record: LogRecord) -> None:
    assert record_of(entry) == record
    assert read_entry(*record) == entry


@pytest.mark.parametrize(("entry", "record"), SAMPLES)
def test_a_tombstone_has_the_key_and_no_value(entry: Entry, record: LogRecord) -> None:
    removed = entry._replace(value=None)
    assert record_of(removed) == LogRecord(record.key, None)
    assert read_entry(record.key, None) == removed


def test_partition_metadata_of_old_brokers_is_skipped() -> None:
    assert read_entry(key(4, "g"), None) is None
    assert read_entry(key(4, "g"), VERSION + b"\x01\x00") is None


@pytest.mark.parametrize("kind", [0, 1, 2, 9, 10, 15, 17, 23])
def test_other_kinds_are_skipped(kind: int) -> None:
    assert read_entry(key(kind, "g"), None) is None


def test_a_partition_without_an_epoch_was_assigned_in_the_epoch_of_its_member() -> None:
    value = VERSION + struct.pack(">iib", 7, 6, 0) + b"\x02" + TOPIC + b"\x02"
    value += struct.pack(">i", 1) + NO_TAGS + b"\x01" + NO_TAGS
    entry = read_entry(key(8, "g", "m"), value)
    assert isinstance(entry, CurrentEntry)
    assert entry.value == Current(7, 6, assigned={TopicIdPartition(TOPIC, 1): 7})


def test_an_unknown_state_is_kept_as_unknown() -> None:
    value = VERSION + struct.pack(">iib", 7, 6, 99) + b"\x01\x01" + NO_TAGS
    entry = read_entry(key(8, "g", "m"), value)
    assert isinstance(entry, CurrentEntry)
    assert entry.value is not None
    assert entry.value.state is MemberState.UNKNOWN


@pytest.mark.parametrize(("entry", "record"), SAMPLES)
def test_a_damaged_value_is_an_error(entry: Entry, record: LogRecord) -> None:
    assert record.value is not None
    with pytest.raises(ProtocolError):
        read_entry(record.key, record.value[:-3])
    with pytest.raises(ProtocolError, match="too new"):
        read_entry(record.key, b"\x00\x09" + record.value[2:])


names = st.text(max_size=6)
partitions = st.builds(
    TopicIdPartition, st.binary(min_size=16, max_size=16), st.integers(0, 1 << 20)
)
owned = st.dictionaries(partitions, st.integers(0, 1 << 30), max_size=6)
epochs = st.integers(-2, 1 << 30)
longs = st.integers(0, 1 << 60)
classics = st.builds(
    ClassicProtocol,
    st.integers(0, 1 << 30),
    st.lists(st.tuples(names, st.binary(max_size=5)), max_size=3).map(tuple),
)
metadata = st.builds(
    MemberMetadata,
    names,
    names,
    st.none() | names,
    st.none() | names,
    st.frozensets(names, max_size=4),
    st.none() | st.text(min_size=1, max_size=6),
    epochs,
    st.none() | names,
    st.none() | classics,
)
states = st.sampled_from([MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED])
entries = st.one_of(
    st.builds(EpochEntry, names, st.builds(GroupEpoch, epochs, longs)),
    st.builds(MemberEntry, names, names, metadata),
    st.builds(TargetEpochEntry, names, st.builds(TargetEpoch, epochs, longs)),
    st.builds(TargetEntry, names, names, st.frozensets(partitions, max_size=6)),
    st.builds(CurrentEntry, names, names, st.builds(Current, epochs, epochs, states, owned, owned)),
    st.builds(
        RegexEntry,
        names,
        names,
        st.builds(ResolvedRegex, st.frozensets(names, max_size=4), longs, longs),
    ),
)


@settings(max_examples=200, deadline=None)
@given(entries)
def test_every_entry_survives_its_record(entry: Entry) -> None:
    assert read_entry(*record_of(entry)) == entry


@settings(max_examples=50, deadline=None)
@given(st.lists(entries, max_size=10))
def test_a_copy_of_a_stored_group_changes_by_itself(changes: list[Entry]) -> None:
    group = StoredGroup()
    for entry in changes:
        group.apply(entry)
    kept = group.copy()
    assert kept == group
    for entry in changes:
        group.apply(entry._replace(value=None))
    assert not group
    for entry in changes:
        group.apply(entry)
    assert kept == group


def test_values_of_a_newer_version_are_skipped_when_the_log_is_replayed() -> None:
    image = ShardImage()
    epoch = record_of(EpochEntry("g", GroupEpoch(4)))
    assert epoch.value is not None
    image.replay(epoch.key, epoch.value)
    newer = (9).to_bytes(2, "big") + epoch.value[2:]
    image.replay(epoch.key, newer)
    image.replay(epoch.key, newer)
    for record in (
        group_record("h", GroupValue("consumer", 1)),
        offset_record("h", "t", 0, OFFSET),
    ):
        assert record.value is not None
        image.replay(record.key, (77).to_bytes(2, "big") + record.value[2:])
    assert image.consumer_groups["g"].epoch == GroupEpoch(4)
    assert image.too_new == {("EpochValue", 9), ("GroupValue", 77), ("OffsetValue", 77)}
    assert (image.groups, image.offsets) == ({}, {})
    with pytest.raises(ProtocolError):
        image.replay(epoch.key, epoch.value[:3])
