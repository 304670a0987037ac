"""Loading and unloading a shard, and its checks of its own invariants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordination.invariants import InvariantViolated
from penstock.txns.effects import EndedTogether
from penstock.txns.formats import transaction_record
from penstock.txns.transaction import State, Transaction
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import EndTxnResponse, InitProducerIdResponse

from .world import World


def test_unloading_answers_all_waiting_requests() -> None:
    """Requests that wait for the log or for producer ids get NOT_COORDINATOR."""
    world = World()
    first, second = world.started("a"), world.started("b")
    world.add("b", second, "t-0")
    world.holds_log = world.holds_ids = True
    waiting = [
        world.send_init("new"),
        world.send_add("a", first, ["t-0"]),
        world.send_end_together({"b": second}),
    ]
    world.carry_out(world.shard.unload())
    moved = ErrorCode.NOT_COORDINATOR
    answers = [world.replies[token] for token in waiting]
    assert isinstance(answers[0], InitProducerIdResponse)
    assert answers[0].error_code == moved
    assert set(world.added(waiting[1]).values()) == {moved}
    assert answers[2] == EndedTogether(moved)
    assert not world.timers


@pytest.mark.parametrize("waits", ["for its id", "for an abort", "for its end"])
def test_unloading_while_a_record_is_being_written(waits: str) -> None:
    """Every kind of request that can wait gets a response."""
    world = World()
    producer = world.started("a")
    world.add("a", producer, "t-0")
    world.holds_log = True
    if waits == "for its end":
        token = world.send_end("a", producer, commit=True)
    else:
        token = world.send_init("a" if waits == "for an abort" else "b")
    world.carry_out(world.shard.unload())
    answer = world.replies[token]
    assert isinstance(answer, InitProducerIdResponse | EndTxnResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


def test_loading_restores_the_image() -> None:
    """The image after a failover equals the image before it."""
    world = World()
    for name in ("a", "b", "c"):
        producer = world.started(name)
        world.add(name, producer, "t-0")
    world.end("a", world.transaction("a").granted, commit=True)
    world.holds_markers = True
    world.end("b", world.transaction("b").granted, commit=False)
    before = dict(world.shard.state.image.transactions)
    world.fail_over()
    assert world.shard.state.image.transactions == before
    world.shard.verify()


def test_append_results_must_be_reported_in_order() -> None:
    """InvariantViolated stops a runtime that reports them out of order."""
    world = World()
    world.holds_log = True
    world.send_init("a")
    world.send_init("b")
    with pytest.raises(InvariantViolated, match="reported before"):
        world.shard.on_committed(world.waiting[1].append_id, world.now)


def test_transitions_that_are_not_in_the_table_are_refused() -> None:
    """They raise InvariantViolated before anything is written."""
    empty = Transaction("a", 1, 0, 1000, State.EMPTY, 0)
    with pytest.raises(InvariantViolated, match="from Empty to PrepareCommit"):
        empty.prepared(committed=True, client_version=2, next_producer_id=-1, now_ms=0)
    with pytest.raises(InvariantViolated, match="from Empty to CompleteAbort"):
        empty.completed(0)


@pytest.mark.parametrize(
    "change",
    [
        {"producer_epoch": 32768},
        {"producer_epoch": 32767},
        {"state": State.ONGOING, "partitions": frozenset()},
        {"producer_epoch": 3, "last_producer_epoch": 3},
        {"next_producer_id": 9},
    ],
)
def test_an_inconsistent_transaction_is_found(change: dict[str, object]) -> None:
    """By its invariants."""
    sound = Transaction("a", 1, 0, 1000, State.EMPTY, 0)
    sound.verify()
    with pytest.raises(InvariantViolated):
        replace(sound, **change).verify()  # type: ignore[arg-type]


def test_a_shard_without_a_timer_is_found() -> None:
    """An open transaction without a deadline would stay open forever."""
    world = World()
    world.add("a", world.started("a"), "t-0")
    world.shard.verify()
    record = transaction_record(world.transaction("a"))
    shard = world._new_shard()
    shard.replay(*record)
    with pytest.raises(InvariantViolated, match="deadline"):
        shard.verify()
