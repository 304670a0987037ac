"""When to commit without being asked, and what."""

from __future__ import annotations

from client.membership.machine_rig import places
from penstock.client.membership.autocommit import AutoCommit
from penstock.client.model import OffsetAndMetadata

A, B = places(0, 1)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


def test_a_commit_is_due_after_the_interval_and_not_while_one_is_under_way() -> None:
    """However often it is polled."""
    auto = AutoCommit(5_000, 100, 0.0)
    assert not auto.is_due(4.9)
    assert auto.is_due(5.0)
    assert auto.begin({A: at(1)}, 5.0) == {A: at(1)}
    assert not auto.is_due(20.0)
    auto.on_end(retriable=False, now=20.0)
    assert auto.is_due(20.0)


def test_only_what_moved_is_committed() -> None:
    """By whomever it was committed before; what was given up is forgotten."""
    auto = AutoCommit(5_000, 100, 0.0)
    auto.on_committed({A: at(1), B: at(7)})
    assert auto.moved({A: at(2), B: at(7)}) == {A: at(2)}
    auto.forget([B])
    assert auto.moved({A: at(1), B: at(7)}) == {B: at(7)}


def test_nothing_to_commit_is_nothing_under_way() -> None:
    """And the next look comes after another interval."""
    auto = AutoCommit(5_000, 100, 0.0)
    assert auto.begin({}, 6.0) == {}
    assert not auto.is_due(10.9)
    assert auto.is_due(11.0)


def test_a_commit_that_may_yet_succeed_is_tried_again_soon() -> None:
    """One that cannot is not."""
    auto = AutoCommit(5_000, 100, 0.0)
    auto.begin({A: at(1)}, 5.0)
    auto.on_end(retriable=True, now=5.5)
    assert auto.is_due(5.6)
    auto.begin({A: at(1)}, 5.6)
    auto.on_end(retriable=False, now=5.7)
    assert not auto.is_due(10.5)
