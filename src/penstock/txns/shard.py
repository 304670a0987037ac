"""The transactional ids of one partition of `__transaction_state`: the entry point of this package.

`coordination.shard` gives the rules for the shell that runs a shard. In addition:

- It answers each `AllocateProducerIds` once, by `on_producer_ids` or `on_no_producer_ids`.
- It answers each partition of a `SendMarkers` once, in any order and in any number of calls of
  `on_markers`. If a leader cannot be found or reached, it answers with any retriable code. A
  partition whose topic is known to be deleted goes to `on_partitions_gone`; then no answer is
  expected for it.

The coordinator epoch is the leader epoch of the partition. It is part of every marker, and
partitions refuse markers from a coordinator that has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.coordination.effects import Now, Token
from penstock.coordination.invariants import InvariantViolated
from penstock.txns import adding, admin, ending, initializing, markers, multi_commit
from penstock.txns.config import TransactionConfig
from penstock.txns.core import Core, Doing
from penstock.txns.effects import (
    Effect,
    EndTransactions,
    Marker,
    TimerKey,
    TimerKind,
    TopicPartition,
)
from penstock.txns.transaction import State
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


class TransactionShard:
    def __init__(
        self,
        config: TransactionConfig,
        coordinator_epoch: int,
        batch_bytes_max: Callable[[], int],
    ) -> None:
        """`batch_bytes_max` returns the current size limit of a batch in this partition: its
        topic's max.message.bytes. Transactions that are ended together must fit into one batch."""
        self.core = Core(config, coordinator_epoch, batch_bytes_max)

    # Requests

    def init_producer_id(
        self, request: InitProducerIdRequest, version: int, token: Token, now: Now
    ) -> list[Effect]:
        """Handles a request with a transactional id; without one, any broker answers by itself."""
        initializing.init_producer_id(self.core, request, version, token, now)
        return self.core.effects.take()

    def add_partitions(
        self,
        request: AddPartitionsToTxnRequest.Transaction,
        version: int,
        token: Token,
        now: Now,
        *,
        may_wait: bool = False,
    ) -> list[Effect]:
        """Handles one transaction of a request; `adding.transaction_of` converts older versions.

        With `may_wait` the answer may be delayed until the previous transaction has ended, but by
        at most `ending_patience_ms`.
        """
        adding.add_partitions(self.core, request, version, token, now, may_wait=may_wait)
        return self.core.effects.take()

    def add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        offsets_partition: TopicPartition,
        version: int,
        token: Token,
        now: Now,
        *,
        may_wait: bool = False,
    ) -> list[Effect]:
        adding.add_offsets(
            self.core, request, offsets_partition, version, token, now, may_wait=may_wait
        )
        return self.core.effects.take()

    def end_txn(self, request: EndTxnRequest, version: int, token: Token, now: Now) -> list[Effect]:
        ending.end_txn(self.core, request, version, token, now)
        return self.core.effects.take()

    def end_transactions(self, request: EndTransactions, token: Token, now: Now) -> list[Effect]:
        multi_commit.end_transactions(self.core, request, token, now)
        return self.core.effects.take()

    # Queries

    def describe(self, transactional_id: str) -> DescribeTransactionsResponse.Transaction:
        return admin.describe(self.core, transactional_id)

    def list_transactions(
        self, request: ListTransactionsRequest, now: Now, among: Iterable[str] | None = None
    ) -> list[ListTransactionsResponse.Transaction]:
        return admin.list_all(self.core, request, now, among)

    # Events

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        match key.kind:
            case TimerKind.TIMEOUT:
                ending.on_timeout(self.core, key.transactional_id, now)
            case TimerKind.MARKERS:
                markers.on_retry(self.core, key.transactional_id, now)
            case TimerKind.PATIENCE:
                self.core.send_away(key.transactional_id, ErrorCode.CONCURRENT_TRANSACTIONS)
            case TimerKind.EXPIRY:
                admin.expire(self.core, now)
        return self.core.effects.take()

    def on_committed(self, append_id: int, now: Now) -> list[Effect]:
        self.core.appends.on_committed(append_id, now)
        return self.core.effects.take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.core.appends.on_failed(append_id, error, now)
        return self.core.effects.take()

    def on_append_late(self, append_id: int) -> list[Effect]:
        """Answers requests that wait for a slow append: they should ask again.

        The outcome of the append must still be reported, and its change stays in progress until
        then.
        """
        self.core.appends.on_late(append_id)
        return self.core.effects.take()

    def on_producer_ids(
        self, allocation_id: int, producer_ids: Sequence[int], now: Now
    ) -> list[Effect]:
        self.core.allocations.pop(allocation_id).granted(self.core, producer_ids, now)
        return self.core.effects.take()

    def on_no_producer_ids(self, allocation_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.core.allocations.pop(allocation_id).refused(self.core, error, now)
        return self.core.effects.take()

    def on_markers(
        self,
        transactional_id: str,
        marker: Marker,
        answers: Mapping[TopicPartition, ErrorCode],
        now: Now,
    ) -> list[Effect]:
        markers.on_answers(self.core, transactional_id, marker, answers, now)
        return self.core.effects.take()

    def on_partitions_gone(self, partitions: Collection[TopicPartition], now: Now) -> list[Effect]:
        """Notes that these partitions are deleted.

        Call it only when that is certain: a marker must not be given up because metadata is late.
        """
        markers.on_gone(self.core, partitions, now)
        return self.core.effects.take()

    # Lifecycle

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        self.core.image.replay(key, value)

    def on_loaded(self, now: Now) -> list[Effect]:
        """Resumes from the replayed log: restarts timeouts, and sends markers that are due."""
        core = self.core
        for transaction in list(core.image.transactions.values()):
            if transaction.state is State.ONGOING:
                ran_ms = max(now.wall_ms - transaction.start_ms, 0)
                left_ms = max(transaction.timeout_ms - ran_ms, 0)
                core.set_deadline(transaction.transactional_id, now.ticks_ms + left_ms)
            elif transaction.state.is_preparing:
                markers.begin(core, transaction, now)
        core.effects.set_timer(
            admin.EXPIRY_TIMER, now.ticks_ms + core.config.id_expiration_check_interval_ms
        )
        return core.effects.take()

    def unload(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Answers all waiting requests: this broker no longer coordinates these ids.

        Results of appends, allocations and markers in progress must not be reported any more.
        """
        core = self.core
        core.appends.abandon(code)
        for allocation in core.allocations.values():
            allocation.abandoned(core, code)
        for transactional_id in list(core.parked):
            core.send_away(transactional_id, code)
        for transactional_id in list(core.deadlines_ms):
            core.clear_deadline(transactional_id)
        for transactional_id, marking in core.markings.items():
            if marking.retry_is_set:
                core.effects.cancel_timer(TimerKey(TimerKind.MARKERS, transactional_id))
        core.effects.cancel_timer(admin.EXPIRY_TIMER)
        for held in (core.allocations, core.markings, core.busy):
            held.clear()
        return core.effects.take()

    def take_effects(self) -> list[Effect]:
        """Returns the effects that a call had decided on before it raised."""
        return self.core.effects.take()

    def verify(self) -> None:
        """Checks the invariants of the shard; for tests and simulations."""
        core = self.core
        for transactional_id, transaction in core.image.transactions.items():
            transaction.verify()
            if (transaction.state is State.ONGOING) != (transactional_id in core.deadlines_ms):
                raise InvariantViolated(f"{transaction} and its deadline do not agree")
            if transaction.state.is_preparing != (transactional_id in core.markings):
                raise InvariantViolated(f"{transaction} and its markers do not agree")
        for transactional_id, marking in core.markings.items():
            done = not marking.asked and not marking.due
            busy = core.busy.get(transactional_id)
            completing = busy is not None and busy.doing is Doing.COMPLETING
            if done != completing and not marking.retry_is_set:
                raise InvariantViolated(
                    f"{transactional_id} and the append that completes it do not agree"
                )
            if marking.due and not marking.retry_is_set:
                raise InvariantViolated(f"{transactional_id} has markers that are never sent")
        for transactional_id, parked in core.parked.items():
            if transactional_id not in core.markings or not parked:
                raise InvariantViolated(
                    f"{transactional_id} has parked requests, but no transaction of it is ending"
                )
        if not core.appends and not core.allocations and core.busy:
            raise InvariantViolated(f"{list(core.busy)} are busy, but nothing is in progress")
