"""Planted bugs in transactions: see `replication`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from penstock.coordination.effects import Now
from penstock.groups import offset_fetch
from penstock.groups.image import ShardImage
from penstock.partition.decisions import Append, Decision, Refuse
from penstock.partition.leadership import Leadership
from penstock.partition.machine import PartitionMachine
from penstock.partition.producer_errors import ProducerRefused
from penstock.partition.producers import ProducerStates
from penstock.partition.sequence_gate import check_sequence
from penstock.records.batch import BatchHeader
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.storage.segment import Segment
from penstock.txns import ending, markers, multi_commit
from penstock.txns.config import EPOCH_PER_TRANSACTION
from penstock.txns.effects import Effect
from penstock.txns.formats import transaction_record
from penstock.txns.shard import TransactionShard
from penstock.txns.shard_state import ShardState
from penstock.txns.transaction import NO_PRODUCER_ID, Producer, State, Transaction
from penstock.wire.errors import ErrorCode

TRANSACTION_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, TRANSACTION_BUGS)


# -- the coordinator


@_bug("late-end-accepted")
def _ends_anything(patches: ExitStack) -> None:
    """A late EndTxn, from a connection that was given up, ends the next transaction."""
    judge = ending.judge

    def lax(transaction: Transaction | None, producer: Producer, **more: Any) -> Any:
        if transaction is None or transaction.state is not State.ONGOING:
            return judge(transaction, producer, **more)
        same = producer.producer_id == transaction.producer_id
        return judge(transaction, transaction.granted if same else producer, **more)

    patch(patches, ending, "judge", lax)


@_bug("fencing-skipped")
def _never_fences(patches: ExitStack) -> None:
    """A producer that takes over a transactional id gets the epoch that its predecessor has."""
    initialized = Transaction.initialized

    def shared(self: Transaction, *, epoch: int, **more: Any) -> Transaction:
        return initialized(self, epoch=max(0, epoch - 1) if epoch else 0, **more)

    patch(patches, Transaction, "initialized", shared)


@_bug("timeout-commits")
def _commits_in_time(patches: ExitStack) -> None:
    """A transaction that times out is committed as it is."""

    def rashly(self: Transaction, *, may_return: bool, now_ms: int) -> Transaction:
        return self._to(
            State.PREPARE_COMMIT,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if may_return else -1,
            client_version=EPOCH_PER_TRANSACTION,
        )

    patch(patches, Transaction, "fenced", rashly)


@_bug("epoch-not-bumped")
def _keeps_epoch(patches: ExitStack) -> None:
    """Transactions end without a new epoch, so a late EndTxn may end the next one
    (before KIP-890)."""
    prepared = Transaction.prepared

    def plain(self: Transaction, *, client_version: int, **more: Any) -> Transaction:
        return prepared(self, client_version=0, **more)

    patch(patches, Transaction, "prepared", plain)


@_bug("decision-answered-early")
def _answers_early(patches: ExitStack) -> None:
    """A producer is told that its transaction is committed when the decision is only appended."""
    prepare = ending._prepare

    def eager(
        shard: ShardState, asked: Any, transaction: Transaction, next_id: int, now: Now
    ) -> None:
        prepare(shard, asked, transaction, next_id, now)
        epoch = transaction.producer_epoch + 1
        ending._confirm(shard, asked, replace(transaction, producer_epoch=epoch))

    patch(patches, ending, "_prepare", eager)


@_bug("decisions-forgotten-on-failover")
def _carries_nothing_out(patches: ExitStack) -> None:
    """A new coordinator does not send the markers of earlier decisions."""
    on_loaded = TransactionShard.on_loaded

    def idle(self: TransactionShard, now: Now) -> list[Effect]:
        with ExitStack() as quiet:
            patch(quiet, markers, "begin", lambda *given: None)
            return on_loaded(self, now)

    patch(patches, TransactionShard, "on_loaded", idle)


@_bug("decisions-turned-on-failover")
def _turns_decisions(patches: ExitStack) -> None:
    """A new coordinator aborts transactions that its predecessor had decided to commit."""
    on_loaded, begin = TransactionShard.on_loaded, markers.begin

    def careful(self: TransactionShard, now: Now) -> list[Effect]:
        def abort(shard: ShardState, transaction: Transaction, at: Now) -> None:
            begin(shard, replace(transaction, state=State.PREPARE_ABORT), at)

        with ExitStack() as turned:
            patch(turned, markers, "begin", abort)
            return on_loaded(self, now)

    patch(patches, TransactionShard, "on_loaded", careful)


@_bug("open-transactions-forgotten-on-failover")
def _forgets_open(patches: ExitStack) -> None:
    """A new coordinator does not time out transactions that began before it."""
    on_loaded = TransactionShard.on_loaded

    def blind(self: TransactionShard, now: Now) -> list[Effect]:
        with ExitStack() as quiet:
            patch(quiet, ShardState, "set_deadline", lambda *given: None)
            return on_loaded(self, now)

    patch(patches, TransactionShard, "on_loaded", blind)


@_bug("markers-sent-once")
def _sends_once(patches: ExitStack) -> None:
    """The coordinator does not retry a marker that a partition did not accept."""
    try_later = markers._try_later

    def complete(shard: ShardState, transactional_id: str, marking: Any, now: Now) -> None:
        if not marking.due:
            # The record that completes the transaction could not be written.
            try_later(shard, transactional_id, marking, now)
            return
        marking.due.clear()
        if not marking.asked:
            markers._complete(shard, transactional_id, now)

    patch(patches, markers, "_try_later", complete)


@dataclass(frozen=True, slots=True)
class _Half:
    """The first of two batches, when the second is still to come."""

    rest: Sequence[Transaction]
    done: multi_commit.PreparedMultiCommit

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.appends.start([transaction_record(each) for each in self.rest], self.done, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.done.failed(shard, error, now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        self.done.abandoned(shard, code)


@_bug("joint-decision-torn")
def _tears(patches: ExitStack) -> None:
    """Transactions that end together are decided one after the other, in two batches."""

    def torn(
        shard: ShardState, asked: multi_commit.Ending, producer_ids: Sequence[int], now: Now
    ) -> None:
        prepared = [
            shard.image.transactions[each].prepared(
                committed=asked.is_commit,
                client_version=EPOCH_PER_TRANSACTION,
                next_producer_id=NO_PRODUCER_ID,
                now_ms=now.wall_ms,
            )
            for each in asked.due
        ]
        done = multi_commit.PreparedMultiCommit(asked, tuple(prepared))
        first, rest = prepared[:1], prepared[1:]
        shard.appends.start(
            [transaction_record(each) for each in first], _Half(rest, done) if rest else done, now
        )

    patch(patches, multi_commit, "_prepare", torn)


# -- the partition


@_bug("last-stable-offset-too-high")
def _all_is_stable(patches: ExitStack) -> None:
    """Readers of committed records receive records of undecided transactions."""
    patch(
        patches, PartitionMachine, "last_stable_offset", property(lambda self: self.high_watermark)
    )


@_bug("stable-before-the-marker-is-committed")
def _stable_early(patches: ExitStack) -> None:
    """A transaction counts as ended when its marker is written, not when the marker
    is committed."""

    def eager(self: ProducerStates, high_watermark: int, log_start_offset: int = 0) -> int:
        first = next(iter(self._ongoing), high_watermark)
        return max(min(first, high_watermark), log_start_offset)

    patch(patches, ProducerStates, "last_stable_offset", eager)


@_bug("aborted-list-incomplete")
def _lists_nothing(patches: ExitStack) -> None:
    """Aborted transactions are missing from the list that readers receive."""
    patch(patches, Segment, "note_aborted", lambda self, ended: None)


@_bug("transactions-not-verified")
def _takes_on_trust(patches: ExitStack) -> None:
    """A partition does not verify batches with the coordinator: a late one begins a
    hanging transaction."""

    in_sequence = PartitionMachine._in_sequence

    def trusting(
        self: PartitionMachine[Any], header: BatchHeader, leadership: Leadership, *given: Any
    ) -> Decision:
        now_ms, verification = given
        if verification is not None or not header.is_transactional:
            return in_sequence(self, header, leadership, *given)
        producers = self._log.producers
        try:
            seen = check_sequence(header, producers, self.retry_window, leadership, now_ms)
        except ProducerRefused as error:
            return Refuse(error)
        return seen or Append(leadership.epoch)

    patch(patches, PartitionMachine, "_in_sequence", trusting)


@_bug("late-markers-accepted")
def _takes_late_markers(patches: ExitStack) -> None:
    """A late marker of an earlier transaction ends the one that is open now."""
    patch(patches, ProducerStates, "check_marker", lambda self, *given, **named: None)


# -- groups


@_bug("offsets-visible-before-the-commit")
def _offsets_at_once(patches: ExitStack) -> None:
    """Offsets committed in a transaction count before it is decided."""
    replay = ShardImage.replay

    def at_once(self: ShardImage, key: bytes | None, value: bytes | None, *producer: int) -> None:
        replay(self, key, value)

    patch(patches, ShardImage, "replay", at_once)


@_bug("unstable-offsets-served")
def _serves_unstable(patches: ExitStack) -> None:
    """A request for stable offsets gets the old ones while a transaction that changes them
    is open."""
    patch(patches, offset_fetch, "_unstable", lambda shard, group_id: frozenset())
