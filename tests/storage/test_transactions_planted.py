"""Planted bugs in the handling of transactions: the crash harness finds every one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from penstock.partition.compaction import map_batch
from penstock.partition.producers import ProducerStates
from penstock.partition.transactions import (
    AbortedEntry,
    CleaningTransactions,
    MarkerFate,
    TransactionIndex,
)
from penstock.sim.crash.case import run_case
from penstock.storage import cleaner
from penstock.storage.aborted import AbortedIndex
from penstock.storage.aborted_recovery import AbortedOpening
from penstock.storage.log_reader import LogReader
from penstock.storage.segment import Segment

SEEDS_MAX = 600
Plant = Callable[[], AbstractContextManager[Any]]
PLANTED: dict[str, Plant] = {}


def planted(plant: Plant) -> Plant:
    PLANTED[plant.__name__] = plant
    return plant


def nothing(*_: object, **__: object) -> None:
    """Does nothing, in place of a function that should do something."""


@planted
def last_stable_offset_too_high() -> AbstractContextManager[Any]:
    def last_stable_offset(_: ProducerStates, high_watermark: int, log_start_offset: int) -> int:
        return high_watermark

    return patch.object(ProducerStates, "last_stable_offset", last_stable_offset)


@planted
def aborted_transactions_not_noted() -> AbstractContextManager[Any]:
    return patch.object(Segment, "note_aborted", nothing)


@planted
def lists_lost_by_a_restart() -> AbstractContextManager[Any]:
    return patch.object(AbortedOpening, "load", lambda *_: [])


@planted
def segments_read_back_are_not_replayed() -> AbstractContextManager[Any]:
    """Transactions are restored only from files that the checkpoint lists."""
    original = AbortedOpening.load

    def load(self: AbortedOpening, files: set[int]) -> list[Segment]:
        return [each for each in original(self, files) if each.base_offset not in self._scanned]

    return patch.object(AbortedOpening, "load", load)


@planted
def truncation_keeps_the_entries() -> AbstractContextManager[Any]:
    return patch.object(AbortedIndex, "truncate", nothing)


@planted
def search_ends_with_the_first_segment() -> AbstractContextManager[Any]:
    """Transactions that end in a later segment than they begin are missed."""
    original = TransactionIndex.search

    def search(
        self: TransactionIndex, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedEntry], bool]:
        return original(self, start_offset, end_offset)[0], True

    return patch.object(TransactionIndex, "search", search)


@planted
def segment_that_holds_the_offset_is_not_looked_at() -> AbstractContextManager[Any]:
    original = LogReader._aborted_from

    def aborted_from(self: LogReader, offset: int) -> Any:
        found = original(self, offset)
        next(found, None)
        return found

    return patch.object(LogReader, "_aborted_from", aborted_from)


@planted
def aborted_records_supersede() -> AbstractContextManager[Any]:
    """Compaction removes a committed value because of an aborted one."""
    original = map_batch

    def map_all(*arguments: Any, aborted: bool, **options: Any) -> bool:
        return original(*arguments, **options)

    return patch.object(cleaner, "map_batch", map_all)


@planted
def markers_dropped_with_their_data() -> AbstractContextManager[Any]:
    """A reader that is in between never learns that the records it has seen were aborted."""
    return patch.object(CleaningTransactions, "_fate", lambda *_: MarkerFate.DROP)


def seeds_to_find(name: str) -> int | None:
    with PLANTED[name]():
        for count in range(1, SEEDS_MAX + 1):
            if run_case(count).failure is not None:
                return count
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """A case fails with the bug, and the same case passes without it."""
    found = seeds_to_find(name)
    record_property("seeds", found)
    assert found is not None, f"{name} survived {SEEDS_MAX} seeds"
    assert run_case(found).failure is None, f"seed {found} fails without {name} as well"
