"""What the ZooKeeper store writes can be read again, and nothing else is taken for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ports import Delete, KeyValue, Put
from penstock.stores import zk_format
from penstock.stores.errors import StoreCorrupt
from penstock.stores.zk_format import Head, LogEntry, Pulse

ID = bytes(range(zk_format.ID_BYTES))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_LEASES = st.integers(0, 2**63 - 1)
_PUTS = st.builds(Put, _TEXTS, st.binary(max_size=20), _LEASES)
_CHANGES = st.lists(st.one_of(_PUTS, st.builds(Delete, _TEXTS)), max_size=5)
_REVISIONS = st.integers(0, 2**62)
_ENTRIES = st.builds(KeyValue, _TEXTS, st.binary(max_size=20), _REVISIONS, _REVISIONS, _LEASES)


@settings(deadline=None)
@given(_CHANGES, st.booleans())
def test_a_log_entry_is_read_as_it_was_written(
    changes: list[Put | Delete], compressed: bool
) -> None:
    data = zk_format.encode_entry(ID, changes)
    if compressed:
        data = zk_format.compress(data)
    assert zk_format.decode_entry(data, "/log") == LogEntry(ID, tuple(changes), len(data))


@settings(deadline=None)
@given(st.lists(_ENTRIES, max_size=5))
def test_a_snapshot_is_read_as_it_was_written(entries: list[KeyValue]) -> None:
    assert zk_format.decode_snapshot(zk_format.encode_snapshot(entries), "/s") == entries


def test_a_large_snapshot_has_several_parts() -> None:
    """ZooKeeper accepts 1 MiB at once. The order of the parts matters."""
    value = random.Random(1).randbytes(2 << 20)
    entry = KeyValue("/a", value, 1, 2)
    parts = zk_format.encode_snapshot([entry])
    assert len(parts) > 2
    assert all(len(part) <= zk_format.PART_BYTES for part in parts)
    assert zk_format.decode_snapshot(parts, "/s") == [entry]
    for damaged in (parts[::-1], parts[:-1]):
        with pytest.raises(StoreCorrupt, match="/s"):
            zk_format.decode_snapshot(damaged, "/s")


@settings(deadline=None)
@given(_CHANGES, st.data())
def test_a_part_of_a_log_entry_is_not_read_as_another(
    changes: list[Put | Delete], data: st.DataObject
) -> None:
    """It is refused, unless it ends after a whole change."""
    whole = zk_format.encode_entry(ID, changes)
    size = data.draw(st.integers(0, len(whole) - 1))
    try:
        entry = zk_format.decode_entry(whole[:size], "/log")
    except StoreCorrupt:
        return
    assert entry.changes == tuple(changes[: len(entry.changes)])


def test_another_kind_of_entry_is_refused() -> None:
    for data in (b"", b"\7", b"\1not compressed", b"{}"):
        with pytest.raises(StoreCorrupt, match="damaged"):
            zk_format.decode_entry(data, "/log/1")


def test_a_head_is_read_as_it_was_written() -> None:
    head = Head(7, 3, "abc", 5, 2)
    assert zk_format.decode_head(head.encode(), "/head") == head


def test_a_head_of_another_program_or_version_is_refused() -> None:
    for data in (b"", b"1", b"[]", b'{"format": 1}x', b'{"format": 1, "size": 2}'):
        with pytest.raises(StoreCorrupt, match="another namespace"):
            zk_format.decode_head(data, "/head")
    with pytest.raises(StoreCorrupt, match="format 2"):
        zk_format.decode_head(b'{"format": 2}', "/head")


def test_the_name_of_a_pulse_says_everything() -> None:
    pulse = Pulse(2**63 - 1, 9000, 17)
    assert zk_format.pulse_of(pulse.name) == pulse
    assert pulse.next() == Pulse(2**63 - 1, 9000, 18)
    for other in ("", "a.b.c", "1.2", "1.2.3.4"):
        assert zk_format.pulse_of(other) is None


def test_log_entries_sort_by_their_revisions() -> None:
    paths = [zk_format.log_path(revision) for revision in (9, 10, 2**62)]
    assert paths == sorted(paths)
