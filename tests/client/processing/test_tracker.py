"""Tests which offsets may be committed, for every order in which records can finish."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.processing.tracker import Tracker
from penstock.topic_partition import TopicPartition

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)

offsets_with_gaps = st.lists(
    st.integers(min_value=0, max_value=500), min_size=1, max_size=40, unique=True
).map(sorted)


def expected_safe(started: list[int], unfinished: set[int]) -> int:
    """Computes the expected result independently: the end of the leading run of finished
    records."""
    prefix = list(takewhile(lambda offset: offset not in unfinished, started))
    return prefix[-1] + 1 if prefix else started[0]


@settings(deadline=None, max_examples=200)
@given(offsets_with_gaps, st.data())
def test_no_commit_goes_beyond_an_unfinished_record(
    offsets: list[int], data: st.DataObject
) -> None:
    """This holds for any order in which records finish."""
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
def test_records_may_start_while_others_finish(steps: list[int | None]) -> None:
    """No unfinished record is ever passed."""
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


def test_only_changed_offsets_are_offered_for_commit() -> None:
    tracker = Tracker()
    tracker.start(A, 5).finish(5)
    tracker.start(B, 7)
    assert tracker.committable() == {A: 6}
    tracker.mark_committed({A: 6})
    assert tracker.committable() == {}
    tracker.start(A, 6).finish(6)
    assert tracker.committable([B]) == {}
    assert tracker.committable([A, B]) == {A: 7}


def test_closed_partitions_commit_nothing() -> None:
    """A record that finishes after its partition was closed and reopened
    does not move the new window."""
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


def test_a_seek_back_opens_a_new_window() -> None:
    """From then on the records from the new position count, and the old ones do not."""
    tracker = Tracker()
    old = tracker.start(A, 8)
    tracker.start(A, 9).finish(9)
    new = tracker.start(A, 3)
    assert new is not old
    assert old.is_closed
    old.finish(8)
    new.finish(3)
    assert tracker.committable() == {A: 4}


def test_closing_gently_lets_gaps_be_filled() -> None:
    """Records below one that has finished, or is being handled, are still wanted.
    Records above it are not."""
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
    """If all finished records are below the safe offset, finishing more gains nothing."""
    tracker = Tracker()
    window = tracker.start(A, 10)
    tracker.start(A, 11)
    window.finish(10)
    window.close_gently([])
    assert not window.wants(11)
