"""The copy of the metadata that a handle of the ZooKeeper store has."""

from __future__ import annotations

import pytest

from penstock.ports import Compare, Delete, KeyValue, Put, WatchEvent
from penstock.stores import zk_replica
from penstock.stores.errors import RevisionNotKept
from penstock.stores.zk_format import LogEntry
from penstock.stores.zk_replica import Replica


def entry(*changes: Put | Delete, name: bytes = b"") -> LogEntry:
    return LogEntry(name, changes, size=100)


def test_entries_are_applied_once_and_in_order() -> None:
    replica = Replica()
    replica.apply(1, entry(Put("/b", b"1"), Put("/a", b"1")))
    replica.apply(1, entry(Delete("/b")))
    replica.apply(2, entry(Put("/a", b"2"), Delete("/b")))
    assert replica.range("/") == [KeyValue("/a", b"2", 1, 2)]
    with pytest.raises(AssertionError, match="follow"):
        replica.apply(4, entry(Put("/a", b"4")))
    assert replica.events("/", 1, 10) == [
        WatchEvent("/b", b"1", 1),
        WatchEvent("/a", b"1", 1),
        WatchEvent("/a", b"2", 2),
        WatchEvent("/b", None, 2),
    ]
    assert replica.events("/b", 2, 10) == [WatchEvent("/b", None, 2)]
    assert replica.events("/", 3, 10) == []
    assert replica.events("/", 9, 10) == []


def test_conditions_are_revisions_of_keys() -> None:
    replica = Replica()
    replica.apply(1, entry(Put("/a", b"")))
    assert replica.holds([Compare("/a", 1), Compare("/b", 0)])
    assert not replica.holds([Compare("/a", 0)])
    assert not replica.holds([Compare("/b", 1)])
    assert replica.effective([Delete("/b"), Delete("/a")]) == [Delete("/a")]


def test_keys_follow_their_present_lease() -> None:
    replica = Replica()
    replica.apply(1, entry(Put("/b", b"", 7), Put("/a", b"", 7), Put("/c", b"", 7)))
    replica.apply(2, entry(Put("/b", b"", 8), Delete("/c")))
    assert replica.keys_under(7) == ["/a"]
    assert replica.keys_under(8) == ["/b"]
    replica.reset(replica.entries(), 2)
    assert replica.keys_under(8) == ["/b"]
    assert replica.keys_under(9) == []


def test_a_snapshot_ends_the_history() -> None:
    """A watch that needs an earlier revision must begin again."""
    replica = Replica()
    replica.apply(1, entry(Put("/a", b"1"), name=b"x"))
    assert replica.entry_id(1) == b"x"
    replica.reset([KeyValue("/a", b"5", 1, 5), KeyValue("/0", b"", 2, 2)], 5)
    assert [each.key for each in replica.range("")] == ["/0", "/a"]
    assert (replica.revision, replica.first_kept, replica.entry_id(1)) == (5, 6, None)
    with pytest.raises(RevisionNotKept):
        replica.events("/", 5, 10)
    assert replica.events("/", 6, 10) == []
    replica.apply(6, entry(Put("/b", b"")))
    assert len(replica.events("/", 6, 10)) == 1


def test_the_history_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its length and by its size."""
    replica = Replica()
    monkeypatch.setattr(zk_replica, "HISTORY_REVISIONS", 3)
    for revision in range(1, 6):
        replica.apply(revision, entry(Put("/a", b"")))
    assert replica.first_kept == 3
    monkeypatch.setattr(zk_replica, "HISTORY_BYTES", 250)
    for revision in range(6, 9):
        replica.apply(revision, entry(Put("/a", b"x" * 98)))
    assert replica.first_kept == 7
    assert replica.log_bytes == 800


def test_events_come_in_portions_of_whole_revisions() -> None:
    replica = Replica()
    for revision in range(1, 6):
        replica.apply(revision, entry(Put("/a", b""), Put("/b", b"")))
    assert [event.revision for event in replica.events("/", 2, 2)] == [2, 2, 3, 3]


def test_the_history_is_limited_by_its_size_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large log entry is compressed, so its size says nothing about what it takes."""
    monkeypatch.setattr(zk_replica, "HISTORY_BYTES", 1_000)
    replica = Replica()
    for revision in range(1, 21):
        value = b"x" * 200
        replica.apply(revision, LogEntry(b"", (Put(f"/{revision}", value),), size=1))
    assert 16 <= replica.first_kept <= 17
    assert len(replica.events("/", replica.first_kept, 100)) <= 5
