"""The random walk finds each of these planted bugs within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.coordination.invariants import InvariantViolated
from penstock.partition.producers import ProducerStates
from penstock.partition.transactions import TransactionIndex
from penstock.txns import adding, ending, initializing, markers
from penstock.txns.ending import Verdict
from penstock.txns.formats import transaction_record
from penstock.txns.shard import TransactionShard
from penstock.txns.shard_state import Doing, ShardState
from penstock.txns.transaction import State, Transaction
from penstock.wire.errors import ErrorCode

from .partitions import Partition
from .test_walk import walked

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def late_end_is_taken(patch: pytest.MonkeyPatch) -> None:
    """An EndTxn with the previous epoch ends the transaction that is open now."""
    judge = ending.judge

    def careless(transaction, producer, **kind):  # type: ignore[no-untyped-def]
        is_open = transaction is not None and transaction.state is State.ONGOING
        if is_open and producer in (transaction.granted, transaction.last):
            return Verdict.DUE
        return judge(transaction, producer, **kind)

    patch.setattr(ending, "judge", careless)


def fencing_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """A producer that takes over aborts the open transaction but does not raise the epoch."""
    fenced = Transaction.fenced
    initialized = Transaction.initialized

    def lenient(self, **how):  # type: ignore[no-untyped-def]
        return replace(fenced(self, **how), producer_epoch=self.producer_epoch)

    def same_epoch(self, **how):  # type: ignore[no-untyped-def]
        return initialized(self, **(how | {"epoch": self.producer_epoch}))

    patch.setattr(Transaction, "fenced", lenient)
    patch.setattr(Transaction, "initialized", same_epoch)


def markers_are_lost_on_failover(patch: pytest.MonkeyPatch) -> None:
    """The next coordinator completes decided transactions without sending the markers again."""
    on_loaded = TransactionShard.on_loaded

    def forgetful(self, now):  # type: ignore[no-untyped-def]
        transactions = self.state.image.transactions
        for name, transaction in transactions.items():
            if transaction.state.is_preparing:
                transactions[name] = transaction.completed(now.wall_ms)
        return on_loaded(self, now)

    patch.setattr(TransactionShard, "on_loaded", forgetful)


def complete_before_the_markers(patch: pytest.MonkeyPatch) -> None:
    """Every answer counts as a written marker."""
    patch.setattr(markers, "_DONE", frozenset(ErrorCode))


def answer_before_the_decision_is_durable(patch: pytest.MonkeyPatch) -> None:
    """EndTxn is confirmed when its record is sent to the log, not when it is committed."""
    prepare = ending._prepare
    confirm = ending._confirm

    def eager(shard, asked, transaction, next_producer_id, now):  # type: ignore[no-untyped-def]
        ahead = transaction.prepared(
            committed=asked.committed,
            client_version=asked.client_version,
            next_producer_id=next_producer_id,
            now_ms=now.wall_ms,
        )
        confirm(shard, asked, ahead)
        prepare(shard, asked, transaction, next_producer_id, now)

    patch.setattr(ending, "_prepare", eager)
    patch.setattr(ending, "_confirm", lambda shard, asked, transaction: None)


def additions_are_answered_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    """If the coordinator then dies, the next one does not know where to send markers."""
    add = adding._add

    def eager(shard, asked, now, *only_beside):  # type: ignore[no-untyped-def]
        transaction = shard.image.get(asked.transactional_id)
        code = adding.why_not(transaction, asked.producer, asked.transactional_id)
        if code is ErrorCode.NONE and asked.transactional_id not in shard.busy:
            shard.effects.reply(*asked.answer(code))
            shard.begin(asked.transactional_id, Doing.ADDING, transaction)
            head = transaction.joined_by(asked.partitions, now.wall_ms)
            shard.appends.start([transaction_record(head)], Silent(asked.transactional_id), now)
        else:
            add(shard, asked, now, *only_beside)

    patch.setattr(adding, "_add", eager)


class Silent:
    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id

    def committed(self, shard: ShardState, now: object) -> None:
        shard.finish(self.transactional_id)
        shard.set_deadline(self.transactional_id, 1 << 40)

    def failed(self, shard: ShardState, error: ErrorCode, now: object) -> None:
        shard.finish(self.transactional_id)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...


def timeouts_do_not_abort(patch: pytest.MonkeyPatch) -> None:
    """The transaction of a dead producer stays open forever."""
    patch.setattr(ending, "on_timeout", lambda shard, transactional_id, now: None)


def late_markers_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A marker from a dead connection ends the transaction after the one it was for."""
    patch.setattr(ProducerStates, "check_marker", lambda self, *who, **how: None)


def last_stable_offset_too_high(patch: pytest.MonkeyPatch) -> None:
    """Readers of committed records get data of open transactions."""
    patch.setattr(Partition, "last_stable_offset", property(lambda self: len(self.log)))


def aborted_are_not_listed(patch: pytest.MonkeyPatch) -> None:
    """Readers do not learn which transactions were aborted."""
    patch.setattr(TransactionIndex, "search", lambda self, start, end: ([], False))


def epoch_before_is_given_to_anyone(patch: pytest.MonkeyPatch) -> None:
    """A producer that was replaced may return while the one that replaced it is active."""
    grant = initializing._grant

    def generous(shard, transaction, epoch, last_epoch, asked, now):  # type: ignore[no-untyped-def]
        grant(shard, transaction, epoch, transaction.producer_epoch, asked, now)

    patch.setattr(initializing, "_grant", generous)


@pytest.mark.parametrize(
    "plant",
    [
        late_end_is_taken,
        fencing_is_skipped,
        markers_are_lost_on_failover,
        complete_before_the_markers,
        answer_before_the_decision_is_durable,
        additions_are_answered_before_they_are_durable,
        timeouts_do_not_abort,
        late_markers_are_taken,
        last_stable_offset_too_high,
        aborted_are_not_listed,
        epoch_before_is_given_to_anyone,
    ],
)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same walks pass without the bug."""
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            walked(seed)
        except (AssertionError, InvariantViolated, KeyError):
            return
    pytest.fail(f"{plant.__name__} went unnoticed in {SEEDS} walks")
