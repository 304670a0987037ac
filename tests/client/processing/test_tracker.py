"""What may be committed, for every order in which records can end."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.model import TopicPartition
from penstock.client.processing.tracker import Tracker

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)

offsets_with_gaps = st.lists(
    st.integers(min_value=0, max_value=500), min_size=1, max_size=40, unique=True
).map(sorted)


def expected_safe(started: list[int], unfinished: set[int]) -> int:
    """Said another way than the tracker does it: past the finished ones that come first."""
    prefix = list(takewhile(lambda offset: offset not in unfinished, started))
    return prefix[-1] + 1 if prefix else started[0]


@settings(deadline=None, max_examples=200)
@given(offsets_with_gaps, st.data())
def test_never_beyond_an_unfinished_record(offsets: list[int], data: st.DataObject) -> None:
    """Whatever the order of ends, what may be committed ends before the first unfinished one."""
    tracker = Tracker()
    windows = [tracker.start(A, offset) for offset in offsets]
    unfinished = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        windows[0].finish(offset)
        unfinished.discard(offset)
        safe = expected_safe(offsets, unfinished)
        assert not any(other < safe for other in unfinished)
        assert tracker.committable() == ({} if safe == offsets[0] else {A: safe})
    assert tracker.committable() == {A: offsets[-1] + 1}
    assert tracker.held == 0


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.none(), st.integers(0, 1000)), min_size=1, max_size=80))
def test_starts_and_ends_mixed(steps: list[int | None]) -> None:
    """Records that come while others end are counted, and none is ever passed over."""
    tracker = Tracker()
    started = [10]
    unfinished = [10]
    window = tracker.start(A, 10)
    for step in steps:
        if step is None or not unfinished:
            started.append(started[-1] + 1 + len(started) % 3)
            unfinished.append(started[-1])
            assert tracker.start(A, started[-1]) is window
        else:
            window.finish(unfinished.pop(step % len(unfinished)))
        assert window.safe == expected_safe(started, set(unfinished))
        assert window.held == sum(offset >= window.safe for offset in started)


def test_only_what_moved_is_worth_a_commit() -> None:
    """An offset that was committed is offered again only after it has moved."""
    tracker = Tracker()
    tracker.start(A, 5).finish(5)
    tracker.start(B, 7)
    assert tracker.committable() == {A: 6}
    tracker.mark_committed({A: 6})
    assert tracker.committable() == {}
    tracker.start(A, 6).finish(6)
    assert tracker.committable([B]) == {}
    assert tracker.committable([A, B]) == {A: 7}


def test_partitions_that_left_commit_nothing() -> None:
    """What ends after its partition left, and came back, does not move the new window."""
    tracker = Tracker()
    old = tracker.start(A, 5)
    (closed,) = tracker.close([A, B])
    assert closed is old
    assert old.is_closed
    new = tracker.start(A, 5)
    old.finish(5)
    assert not new.is_closed
    assert tracker.committable() == {}
    new.finish(5)
    assert tracker.committable() == {A: 6}


def test_a_position_set_back_begins_anew() -> None:
    """After a seek back the records from there on count, and the old ones do not."""
    tracker = Tracker()
    old = tracker.start(A, 8)
    tracker.start(A, 9).finish(9)
    new = tracker.start(A, 3)
    assert new is not old
    assert old.is_closed
    old.finish(8)
    new.finish(3)
    assert tracker.committable() == {A: 4}


def test_closing_gently_fills_the_gaps() -> None:
    """What lies below something that ended, or will, is wanted still; what lies above is not."""
    tracker = Tracker()
    windows = [tracker.start(A, offset) for offset in range(10, 20)]
    window = windows[0]
    window.finish(10)
    window.finish(13)
    window.close_gently([15])
    assert [offset for offset in range(10, 20) if window.wants(offset)] == [10, 11, 12, 13, 14]
    window.close()
    assert not window.wants(11)


def test_closing_gently_without_gaps_wants_nothing() -> None:
    """When all that ended is below the safe offset there is nothing to be gained."""
    tracker = Tracker()
    window = tracker.start(A, 10)
    tracker.start(A, 11)
    window.finish(10)
    window.close_gently([])
    assert not window.wants(11)
