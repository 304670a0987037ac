"""Tests when a topic that was deleted and created again counts as wrong."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast
from unittest.mock import patch

from penstock.aio import Admin
from penstock.sim.faults.topic_changes import TopicRecreation
from penstock.sim.history import INFO, OK, History


class FakeShared:
    def __init__(self, *known: bool) -> None:
        self.history = History()
        self.counters: dict[str, int] = {}
        self._known = list(known)

    def is_known(self, topic: str) -> bool:
        return self._known.pop(0)

    def now_ms(self) -> float:
        return 0.0

    def count(self, name: str, times: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + times

    async def rest(self, seconds: float) -> None:
        pass


class FakeActor:
    name = "operator"

    def __init__(self, shared: FakeShared) -> None:
        self.shared = shared


def look(shared: FakeShared, *errors: str) -> list[tuple[str, str]]:
    """Returns what the history gets if the looks find these errors."""
    recreation = TopicRecreation(FakeActor(shared), Random(1), "t")  # type: ignore[arg-type]
    found = list(errors)

    async def next_look(_: Any) -> str:
        return found.pop(0)

    with patch.object(recreation, "_look", next_look):
        asyncio.run(recreation.look(cast("Admin", None)))
    return [(entry.status, entry.error) for entry in shared.history.entries]


def test_old_records_are_wrong_if_every_broker_knew_the_new_topic() -> None:
    assert look(FakeShared(True), "old is still there") == [(INFO, "old is still there")]


def test_while_a_broker_has_not_heard_of_the_new_topic_it_is_tried_again() -> None:
    shared = FakeShared(False, False, True)
    assert look(shared, "old", "old", "") == [(OK, "")]
    assert shared.counters["topics_reborn_unheard"] == 2
    assert look(FakeShared(False, True), "old", "old") == [(INFO, "old")]


def test_a_good_result_counts_although_a_broker_has_not_heard() -> None:
    assert look(FakeShared(False), "") == [(OK, "")]


def test_without_a_verdict_nothing_is_reported() -> None:
    assert look(FakeShared(*[False] * 5), *["old"] * 5) == []
