"""The index of due times in files gives the same answers as one in memory, with little memory."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.schedules.bucket_index import BucketDueIndex, DamagedIndex, clear
from penstock.schedule.advance import advance
from penstock.schedule.cursor import DueEntry, ScheduleCursor
from penstock.schedule.index import MemoryDueIndex
from penstock.storage.disk import OsDisk, OsFile

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000

dues = st.one_of(
    st.integers(NOW_MS - 1000, NOW_MS + 3 * HOUR_MS),
    st.integers(NOW_MS, NOW_MS + 40 * DAY_MS),
    st.sampled_from((0, NOW_MS - 900 * DAY_MS, NOW_MS - DAY_MS, NOW_MS, NOW_MS + 9000 * DAY_MS)),
)
queries = st.tuples(dues, st.integers(0, 40), st.integers(0, 40), st.integers(1, 12))


@given(
    batches=st.lists(st.lists(st.none() | dues, max_size=8), max_size=6),
    asked=st.lists(queries, max_size=8),
    near_max=st.integers(1, 6),
)
@settings(max_examples=150, deadline=None)
def test_it_answers_as_an_index_in_memory_does(
    batches: list[list[int | None]], asked: list[tuple[int, int, int, int]], near_max: int
) -> None:
    with TemporaryDirectory() as directory:
        index = BucketDueIndex(OsDisk(), f"{directory}/t-0", NOW_MS, 0, near_max)
        model = MemoryDueIndex()
        for batch in [*batches, []]:
            offsets = range(model.end, model.end + len(batch))
            added = [
                DueEntry(due_ms, offset)
                for offset, due_ms in zip(offsets, batch, strict=True)
                if due_ms is not None
            ]
            index.add(added, model.end + len(batch))
            model.add(added, model.end + len(batch))
            assert index.end == model.end
            for due_ms, first, end, limit in asked:
                query = (DueEntry(due_ms, first), first, end, limit)
                assert index.after(*query) == model.after(*query)
                assert index.late(*query) == model.late(*query)
                assert index.has_any(first, end) == model.has_any(first, end)


def test_a_million_due_times_over_thirty_days_need_memory_for_the_near_ones_only(
    tmp_path: Path,
) -> None:
    index = BucketDueIndex(OsDisk(), str(tmp_path / "t-0"), NOW_MS, 0, near_max=4000)
    source = random.Random(1)
    at = 0
    for _ in range(100):
        batch = [
            DueEntry(NOW_MS + source.randrange(30 * DAY_MS), at + number)
            for number in range(10_000)
        ]
        at += len(batch)
        index.add(batch, at)
    assert len(index) == 1_000_000
    cursor = ScheduleCursor.starting_at(0)
    promoted = 0
    in_memory = 0
    for hour in range(12):
        entries, cursor, next_ms = advance(cursor, index, at, NOW_MS + hour * HOUR_MS, 2000)
        promoted += len(entries)
        in_memory = max(in_memory, index.in_memory)
        assert next_ms is not None
        assert next_ms > NOW_MS + hour * HOUR_MS
    assert promoted > 10_000
    assert in_memory <= 2 * 4000
    assert index.remaining(cursor.due) == 1_000_000 - promoted
    index.close()
    assert not (tmp_path / "t-0").exists()


def test_a_crowd_in_one_bucket_is_read_in_pieces(tmp_path: Path) -> None:
    index = BucketDueIndex(OsDisk(), str(tmp_path / "t-0"), NOW_MS, 0, near_max=50)
    index.add([DueEntry(NOW_MS + 5, offset) for offset in range(1000)], 1000)
    cursor = ScheduleCursor.starting_at(0)
    promoted: list[int] = []
    while entries := (step := advance(cursor, index, 1000, NOW_MS + 5, 30)).entries:
        promoted += [each.offset for each in entries]
        cursor = step.cursor
        assert index.in_memory <= 100
    assert promoted == list(range(1000))


def test_buckets_that_all_cursors_have_passed_are_removed(tmp_path: Path) -> None:
    index = BucketDueIndex(OsDisk(), str(tmp_path / "t-0"), NOW_MS, 0)
    index.add([DueEntry(NOW_MS + hour * HOUR_MS, hour) for hour in range(5)], 5)
    due = DueEntry(NOW_MS + 3 * HOUR_MS, 4)
    index.forget(due, 2)
    assert len(index) == 3
    assert [each.offset for each in index.after(due, 0, 5, 9)] == [4]
    index.forget(due, 5)
    assert len(index) == 2


hours = st.integers(-2, 5)
"""Due times are in few buckets, so that some are removed."""


@given(
    dues=st.lists(hours, min_size=1, max_size=12),
    passed=st.lists(st.tuples(hours, st.integers(0, 12)), min_size=1, max_size=3),
    late=st.tuples(hours, st.integers(0, 12)),
)
def test_an_index_that_serves_a_cursor_has_all_that_it_needs(
    dues: list[int], passed: list[tuple[int, int]], late: tuple[int, int]
) -> None:
    """Also a cursor that did not exist when others had passed entries: that of a group that is
    loaded late needs every record from its end on, even if others were at a later time."""
    with TemporaryDirectory() as directory:
        index = BucketDueIndex(OsDisk(), f"{directory}/t-0", NOW_MS, 0)
        model = MemoryDueIndex()
        entries = [DueEntry(NOW_MS + hour * HOUR_MS, at) for at, hour in enumerate(dues)]
        index.add(entries, len(dues))
        model.add(entries, len(dues))
        for hour, end in passed:
            index.forget(DueEntry(NOW_MS + hour * HOUR_MS, len(dues)), end)
        cursor = ScheduleCursor(0, late[1], NOW_MS + late[0] * HOUR_MS, len(dues))
        if index.serves(cursor):
            after = (cursor.due, cursor.floor, len(dues), len(dues))
            assert index.after(*after) == model.after(*after)
            newer = (cursor.due, cursor.end, len(dues), len(dues))
            assert index.late(*newer) == model.late(*newer)
        assert len(index) < len(dues) or index.serves(cursor), "nothing was removed"


class FillingDisk(OsDisk):
    """The disk is full for the files whose names are in `full`."""

    __slots__ = ("full",)

    def __init__(self) -> None:
        self.full: set[str] = set()

    def open(self, path: str, *, create: bool = False, private: bool = False) -> OsFile:
        file = super().open(path, create=create, private=private)
        if path.rpartition("/")[2] in self.full:
            file.close()
            raise OSError(errno.ENOSPC, "the disk is full")
        return file


def test_a_write_that_has_failed_is_repeated_without_duplicates(tmp_path: Path) -> None:
    disk = FillingDisk()
    index = BucketDueIndex(disk, str(tmp_path / "t-0"), NOW_MS, 0)
    entries = [DueEntry(NOW_MS + hour * HOUR_MS, hour) for hour in range(3)]
    disk.full = {"2"}
    with pytest.raises(OSError, match="full"):
        index.add(entries, 3)
    assert index.end == 0
    assert len(index) == 0
    disk.full = set()
    index.add(entries, 3)
    assert index.after(DueEntry(0, 0), 0, 9, 9) == entries


def test_a_file_that_was_changed_by_others_is_noticed(tmp_path: Path) -> None:
    index = BucketDueIndex(OsDisk(), str(tmp_path / "t-0"), NOW_MS, 0)
    index.add([DueEntry(NOW_MS, 0), DueEntry(NOW_MS + HOUR_MS, 1)], 2)
    (tmp_path / "t-0" / "0").write_bytes(b"short")
    with pytest.raises(DamagedIndex):
        index.after(DueEntry(0, 0), 0, 9, 9)
    (tmp_path / "t-0" / "1").unlink()
    with pytest.raises(DamagedIndex):
        index.add([DueEntry(NOW_MS + HOUR_MS, 2)], 3)


def test_a_new_index_begins_empty(tmp_path: Path) -> None:
    directory = str(tmp_path / "due" / "t-0")
    BucketDueIndex(OsDisk(), directory, NOW_MS, 0).add([DueEntry(NOW_MS, 0)], 1)
    again = BucketDueIndex(OsDisk(), directory, NOW_MS, 0)
    assert again.after(DueEntry(0, 0), 0, 9, 9) == []
    clear(OsDisk(), str(tmp_path / "due"))
    assert not (tmp_path / "due").exists()
