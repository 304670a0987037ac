"""Tests when auto-commit commits, and which offsets."""

from __future__ import annotations

from client.membership.machine_driver import topic_partitions
from penstock.client.membership.autocommit import AutoCommit
from penstock.client.model import OffsetAndMetadata

A, B = topic_partitions(0, 1)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


def test_a_commit_is_due_after_the_interval_unless_one_is_in_flight() -> None:
    auto = AutoCommit(5_000, 100, 0.0)
    assert not auto.is_due(4.9)
    assert auto.is_due(5.0)
    assert auto.begin({A: at(1)}, 5.0) == {A: at(1)}
    assert not auto.is_due(20.0)
    auto.on_end(retriable=False, now=20.0)
    assert auto.is_due(20.0)


def test_only_changed_offsets_are_committed() -> None:
    """Offsets that were committed explicitly count as well. Partitions that
    were given up are forgotten."""
    auto = AutoCommit(5_000, 100, 0.0)
    auto.on_committed({A: at(1), B: at(7)})
    assert auto.moved({A: at(2), B: at(7)}) == {A: at(2)}
    auto.forget([B])
    assert auto.moved({A: at(1), B: at(7)}) == {B: at(7)}


def test_nothing_to_commit_starts_no_commit() -> None:
    """The next check comes after another interval."""
    auto = AutoCommit(5_000, 100, 0.0)
    assert auto.begin({}, 6.0) == {}
    assert not auto.is_due(10.9)
    assert auto.is_due(11.0)


def test_a_retriable_commit_is_retried_soon() -> None:
    """A commit with a permanent error is not retried."""
    auto = AutoCommit(5_000, 100, 0.0)
    auto.begin({A: at(1)}, 5.0)
    auto.on_end(retriable=True, now=5.5)
    assert auto.is_due(5.6)
    auto.begin({A: at(1)}, 5.6)
    auto.on_end(retriable=False, now=5.7)
    assert not auto.is_due(10.5)
