"""The records of share groups, compared with bytes built by hand from Kafka's schemas."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groups.consumer.test_records import NO_TAGS, TOPIC, VERSION, key, tag, text
from penstock.coordination.effects import LogRecord
from penstock.groups.consumer.records import GroupEpoch, TargetEpoch, TopicIdPartition
from penstock.groups.share.records import (
    CurrentEntry,
    Entry,
    EpochEntry,
    MemberEntry,
    ShareCurrent,
    ShareMember,
    ShareStates,
    StatesEntry,
    TargetEntry,
    TargetEpochEntry,
    TopicShares,
    read_entry,
    record_of,
)
from penstock.groups.share.stored_group import StoredShareGroup
from penstock.wire.errors import ProtocolError

OTHER = bytes(reversed(TOPIC))
PARTITIONS = b"\x03" + struct.pack(">ii", 1, 4)
"""A compact list of two numbers."""

SAMPLES: list[tuple[Entry, LogRecord]] = [
    (
        MemberEntry("g", "m", ShareMember("c", "/1", "r", frozenset({"b", "a"}))),
        LogRecord(
            key(10, "g", "m"),
            VERSION
            + text("r")
            + text("c")
            + text("/1")
            + b"\x03"
            + text("a")
            + text("b")
            + NO_TAGS,
        ),
    ),
    (
        MemberEntry("g", "m", ShareMember("c", "/1")),
        LogRecord(
            key(10, "g", "m"), VERSION + b"\x00" + text("c") + text("/1") + b"\x01" + NO_TAGS
        ),
    ),
    (
        EpochEntry("g", GroupEpoch(7, 258)),
        LogRecord(key(11, "g"), VERSION + struct.pack(">iq", 7, 258) + NO_TAGS),
    ),
    (
        TargetEpochEntry("g", TargetEpoch(7)),
        LogRecord(key(12, "g"), VERSION + struct.pack(">i", 7) + NO_TAGS),
    ),
    (
        TargetEpochEntry("g", TargetEpoch(7, 99)),
        LogRecord(key(12, "g"), VERSION + struct.pack(">i", 7) + tag(0, struct.pack(">q", 99))),
    ),
    (
        TargetEntry("g", "m", frozenset({TopicIdPartition(TOPIC, 4), TopicIdPartition(TOPIC, 1)})),
        LogRecord(key(13, "g", "m"), VERSION + b"\x02" + TOPIC + PARTITIONS + NO_TAGS + NO_TAGS),
    ),
    (
        CurrentEntry(
            "g",
            "m",
            ShareCurrent(5, 4, frozenset({TopicIdPartition(TOPIC, 1), TopicIdPartition(TOPIC, 4)})),
        ),
        LogRecord(
            key(14, "g", "m"),
            VERSION
            + struct.pack(">iib", 5, 4, 0)
            + b"\x02"
            + TOPIC
            + PARTITIONS
            + NO_TAGS
            + NO_TAGS,
        ),
    ),
    (
        StatesEntry(
            "g",
            ShareStates(
                {TOPIC: TopicShares("t", frozenset({1, 4}))},
                {OTHER: TopicShares("u", frozenset({1, 4}))},
                {OTHER: "u"},
            ),
        ),
        LogRecord(
            key(15, "g"),
            VERSION
            + b"\x02"
            + TOPIC
            + text("t")
            + PARTITIONS
            + NO_TAGS
            + b"\x02"
            + OTHER
            + text("u")
            + PARTITIONS
            + NO_TAGS
            + b"\x02"
            + OTHER
            + text("u")
            + NO_TAGS
            + NO_TAGS,
        ),
    ),
]
IDS = [f"{type(entry).__name__}-{index}" for index, (entry, _) in enumerate(SAMPLES)]


@pytest.mark.parametrize(("entry", "record"), SAMPLES, ids=IDS)
def test_records_have_kafkas_bytes(entry: Entry, record: LogRecord) -> None:
    assert record_of(entry) == record
    assert read_entry(*record) == entry


@pytest.mark.parametrize(("entry", "record"), SAMPLES, ids=IDS)
def test_a_record_without_a_value_is_a_tombstone(entry: Entry, record: LogRecord) -> None:
    gone = entry._replace(value=None)
    assert record_of(gone) == LogRecord(record.key, None)
    assert read_entry(record.key, None) == gone


@pytest.mark.parametrize(("entry", "record"), SAMPLES, ids=IDS)
def test_damaged_records_are_refused(entry: Entry, record: LogRecord) -> None:
    assert record.value is not None
    for cut in range(2, len(record.value)):
        with pytest.raises(ProtocolError):
            read_entry(record.key, record.value[:cut])


def test_other_kinds_are_not_share_groups() -> None:
    assert [read_entry(key(kind, "g"), None) for kind in (0, 3, 8, 9, 16, 17)] == [None] * 6


@settings(max_examples=50)
@given(st.permutations(SAMPLES))
def test_a_group_is_what_its_records_say_and_tombstones_erase_it(
    samples: list[tuple[Entry, LogRecord]],
) -> None:
    stored = StoredShareGroup()
    for _, record in samples:
        entry = read_entry(*record)
        assert entry is not None
        stored.apply(entry)
    assert stored
    same = stored.copy()
    for entry, _ in samples:
        stored.apply(entry._replace(value=None))
    assert not stored
    assert same.members
    assert same.states.deleting
