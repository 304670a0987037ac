"""How transactions of a workload are recorded in the history, even if their client is killed."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

from penstock.client.environment import ClientEnv
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.actors.transaction_work import Work
from penstock.sim.history import FAIL, INFO, OK, History, Send, Txn
from penstock.sim.scenario import draw


def actor() -> Actor:
    shared = SharedState(draw(1), ["host:1"], History(), lambda: 1.0, cast(asyncio.Event, None))
    return Actor(shared, cast(ClientEnv, None), "t0", Random(1))


def told(one: Actor) -> list[tuple[str, str]]:
    entries: list[Any] = one.shared.history.entries
    return [(entry.kind, entry.status) for entry in entries]


def test_a_transaction_is_recorded_when_it_ends() -> None:
    """Its sends name it, and it contains what it read."""
    one = actor()
    work = Work(one, "x")
    work.note("t-0").add(OK, 3)
    work.has_read({"t-0": ((1, "a"),)})
    work.has_read({"t-0": ((2, "b"),)})
    work.asks_for_commit()
    work.end(OK)
    assert told(one) == [("send", OK), ("txn", OK)]
    sent, ended = one.shared.history.entries
    assert isinstance(sent, Send) and isinstance(ended, Txn)
    assert (sent.txn, ended.name, ended.ending_ms) == ("t0:1", "t0:1", 1000)
    assert ended.reads == {"t-0": ((1, "a"), (2, "b"))}
    assert not one.shared.under_way


def test_a_client_killed_before_the_commit_has_aborted() -> None:
    """Whether sends in flight were written is unknown."""
    one = actor()
    work = Work(one, "x")
    work.note("t-0").add(OK, 3)
    work.note("t-0")
    one.shared.on_killed("t0")
    assert told(one) == [("send", OK), ("send", INFO), ("txn", FAIL)]


def test_the_outcome_is_unknown_if_a_client_is_killed_while_it_commits() -> None:
    one = actor()
    work = Work(one, "x")
    work.asks_for_commit()
    one.shared.on_killed("t0")
    assert told(one) == [("txn", INFO)]


def test_an_error_before_the_commit_means_that_the_transaction_aborts() -> None:
    """An error leaves the transaction open at most, and the coordinator aborts it later."""
    one = actor()
    Work(one, "x").end_in_doubt("lost")
    work = Work(one, "x")
    work.note("t-0")
    work.asks_for_commit()
    work.end_in_doubt("lost")
    assert told(one) == [("txn", FAIL), ("send", INFO), ("txn", INFO)]
