"""Which records are duplicates: by id, by time, and after a new leader has read them again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shares.duplicates import DuplicateFinder


def test_a_second_record_within_the_window_is_a_duplicate() -> None:
    finder = DuplicateFinder(100)
    assert not finder.is_duplicate(b"a", 1000)
    assert not finder.is_duplicate(b"b", 1000)
    assert finder.is_duplicate(b"a", 1099)
    assert not finder.is_duplicate(b"b", 1100)


def test_a_duplicate_begins_the_window_again() -> None:
    """What was appended last decides, so that one window of the log is enough to know."""
    finder = DuplicateFinder(100)
    assert [finder.is_duplicate(b"a", at) for at in (0, 90, 180, 270)] == [False, True, True, True]


def test_clocks_of_producers_may_differ() -> None:
    finder = DuplicateFinder(100)
    finder.is_duplicate(b"a", 1000)
    assert finder.is_duplicate(b"a", 950)
    assert not finder.is_duplicate(b"a", 700)


def test_ids_are_forgotten_after_the_window() -> None:
    finder = DuplicateFinder(100)
    for at in range(1000):
        finder.is_duplicate(b"%d" % at, at)
    assert len(finder) == 100
    assert finder.forgotten == 0


def test_the_number_of_ids_is_limited() -> None:
    finder = DuplicateFinder(100, ids_max=3)
    for each in (b"a", b"b", b"c", b"d"):
        finder.is_duplicate(each, 0)
    assert (len(finder), finder.forgotten) == (3, 1)
    assert finder.is_duplicate(b"d", 1)
    assert not finder.is_duplicate(b"a", 1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 60)), max_size=40))
def test_a_new_leader_decides_the_same_after_it_has_read_one_window(
    steps: list[tuple[bytes, int]],
) -> None:
    """With timestamps in order, reading from any offset finds the same duplicates one window
    later."""
    now, log = 0, []
    for record_id, step in steps:
        now += step
        log.append((record_id, now))
    first = DuplicateFinder(100)
    expected = [first.is_duplicate(*each) for each in log]
    for start in range(len(log)):
        begin = next(at for at, each in enumerate(log) if each[1] > log[start][1] - 100)
        second = DuplicateFinder(100)
        found = [second.is_duplicate(*each) for each in log[begin:]]
        assert found[start - begin :] == expected[start:]
