"""Batches that were refused are not overtaken by those of the same producer."""

from __future__ import annotations

from penstock.partition.refused import PRODUCERS_MAX, REMEMBERED_MS, RefusedBatches


def refused(*sequences: int, now_ms: int = 0) -> RefusedBatches:
    made = RefusedBatches()
    for sequence in sequences:
        made.note(7, 0, sequence, now_ms)
    return made


def test_what_comes_after_waits_for_the_lowest() -> None:
    """In whatever order they were refused; when it is back, nobody waits."""
    held = refused(5, 3, 9)
    assert held.holds_back(7, 0, 5, 1)
    assert held.holds_back(7, 0, 4, 1)
    assert not held.holds_back(7, 0, 3, 1)
    assert not held
    assert not held.holds_back(7, 0, 5, 1)


def test_one_from_before_ends_the_waiting() -> None:
    """The client begins further back: it knows better."""
    held = refused(5)
    assert not held.holds_back(7, 0, 2, 1)
    assert not held.holds_back(7, 0, 6, 1)


def test_others_do_not_wait() -> None:
    """Another producer, or a later epoch of the same."""
    held = refused(5)
    assert not held.holds_back(8, 0, 6, 1)
    assert not held.holds_back(7, 1, 6, 1)
    assert held.holds_back(7, 0, 6, 1)


def test_nothing_is_remembered_for_long() -> None:
    """However often those behind it are refused in between; a clock set back counts as long."""
    held = refused(5)
    for now_ms in range(0, REMEMBERED_MS + 1, 1000):
        assert held.holds_back(7, 0, 6, now_ms)
        held.note(7, 0, 6, now_ms)
    assert not held.holds_back(7, 0, 6, REMEMBERED_MS + 1)
    assert not refused(5, now_ms=1000).holds_back(7, 0, 6, 999)


def test_sequences_go_round() -> None:
    """After the largest comes 0."""
    last = 2**31 - 1
    assert refused(last).holds_back(7, 0, 0, 1)
    assert not refused(0).holds_back(7, 0, last, 1)


def test_no_more_than_so_many_are_remembered() -> None:
    """The oldest goes."""
    held = RefusedBatches()
    for producer_id in range(PRODUCERS_MAX + 1):
        held.note(producer_id, 0, 5, 0)
    assert not held.holds_back(0, 0, 6, 1)
    assert held.holds_back(1, 0, 6, 1)
