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
from penstock.topic_partition import TopicPartition
from penstock.txns import adding, admin, ending, initializing, markers, multi_commit
from penstock.txns.config import TransactionConfig
from penstock.txns.effects import Effect, EndTransactions, Marker, TimerKey, TimerKind
from penstock.txns.shard_state import Doing, ShardState
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
        self.state = ShardState(config, coordinator_epoch, batch_bytes_max)

    # Requests

    def init_producer_id(
        self, request: InitProducerIdRequest, version: int, token: Token, now: Now
    ) -> list[Effect]:
        """Handles a request with a transactional id; without one, any broker answers by itself."""
        initializing.init_producer_id(self.state, request, version, token, now)
        return self.state.effects.take()

    def add_partitions(
        self,
        request: AddPartitionsToTxnRequest.Transaction,
        version: int,
        token: Token,
        now: Now,
        *,
        may_wait: bool = False,
        only_beside: frozenset[TopicPartition] = frozenset(),
    ) -> list[Effect]:
        """Handles one transaction of a request; `adding.transaction_of` converts older versions.

        With `may_wait` the answer may be delayed until the previous transaction has ended, but by
        at most `ending_patience_ms`. The partitions are added only if the transaction holds all of
        `only_beside`; otherwise they get CONCURRENT_TRANSACTIONS.
        """
        adding.add_partitions(
            self.state, request, version, token, now, may_wait=may_wait, only_beside=only_beside
        )
        return self.state.effects.take()

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
            self.state, request, offsets_partition, version, token, now, may_wait=may_wait
        )
        return self.state.effects.take()

    def end_txn(self, request: EndTxnRequest, version: int, token: Token, now: Now) -> list[Effect]:
        ending.end_txn(self.state, request, version, token, now)
        return self.state.effects.take()

    def end_transactions(self, request: EndTransactions, token: Token, now: Now) -> list[Effect]:
        multi_commit.end_transactions(self.state, request, token, now)
        return self.state.effects.take()

    # Queries

    def describe(self, transactional_id: str) -> DescribeTransactionsResponse.Transaction:
        return admin.describe(self.state, transactional_id)

    def list_transactions(
        self, request: ListTransactionsRequest, now: Now, among: Iterable[str] | None = None
    ) -> list[ListTransactionsResponse.Transaction]:
        return admin.list_all(self.state, request, now, among)

    # Events

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        match key.kind:
            case TimerKind.TIMEOUT:
                ending.on_timeout(self.state, key.transactional_id, now)
            case TimerKind.MARKERS:
                markers.on_retry(self.state, key.transactional_id, now)
            case TimerKind.PATIENCE:
                self.state.send_away(key.transactional_id, ErrorCode.CONCURRENT_TRANSACTIONS)
            case TimerKind.EXPIRY:
                admin.expire(self.state, now)
        return self.state.effects.take()

    def on_committed(self, append_id: int, now: Now) -> list[Effect]:
        self.state.appends.on_committed(append_id, now)
        return self.state.effects.take()

    def on_append_failed(self, append_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.state.appends.on_failed(append_id, error, now)
        return self.state.effects.take()

    def on_append_late(self, append_id: int) -> list[Effect]:
        """Answers requests that wait for a slow append: they should ask again.

        The outcome of the append must still be reported, and its change stays in progress until
        then.
        """
        self.state.appends.on_late(append_id)
        return self.state.effects.take()

    def on_producer_ids(
        self, allocation_id: int, producer_ids: Sequence[int], now: Now
    ) -> list[Effect]:
        self.state.allocations.pop(allocation_id).granted(self.state, producer_ids, now)
        return self.state.effects.take()

    def on_no_producer_ids(self, allocation_id: int, error: ErrorCode, now: Now) -> list[Effect]:
        self.state.allocations.pop(allocation_id).refused(self.state, error, now)
        return self.state.effects.take()

    def on_markers(
        self,
        transactional_id: str,
        marker: Marker,
        answers: Mapping[TopicPartition, ErrorCode],
        now: Now,
    ) -> list[Effect]:
        markers.on_answers(self.state, transactional_id, marker, answers, now)
        return self.state.effects.take()

    def on_partitions_gone(self, partitions: Collection[TopicPartition], now: Now) -> list[Effect]:
        """Notes that these partitions are deleted.

        Call it only when that is certain: a marker must not be given up because metadata is late.
        """
        markers.on_gone(self.state, partitions, now)
        return self.state.effects.take()

    # Lifecycle

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        self.state.image.replay(key, value)

    def on_loaded(self, now: Now) -> list[Effect]:
        """Resumes from the replayed log: restarts timeouts, and sends markers that are due."""
        state = self.state
        for transaction in list(state.image.transactions.values()):
            if transaction.state is State.ONGOING:
                ran_ms = max(now.wall_ms - transaction.start_ms, 0)
                left_ms = max(transaction.timeout_ms - ran_ms, 0)
                state.set_deadline(transaction.transactional_id, now.ticks_ms + left_ms)
            elif transaction.state.is_preparing:
                markers.begin(state, transaction, now)
        state.effects.set_timer(
            admin.EXPIRY_TIMER, now.ticks_ms + state.config.id_expiration_check_interval_ms
        )
        return state.effects.take()

    def unload(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Answers all waiting requests: this broker no longer coordinates these ids.

        Results of appends, allocations and markers in progress must not be reported any more.
        """
        state = self.state
        state.appends.abandon(code)
        for allocation in state.allocations.values():
            allocation.abandoned(state, code)
        for transactional_id in list(state.parked):
            state.send_away(transactional_id, code)
        for transactional_id in list(state.deadlines_ms):
            state.clear_deadline(transactional_id)
        for transactional_id, marking in state.markings.items():
            if marking.retry_is_set:
                state.effects.cancel_timer(TimerKey(TimerKind.MARKERS, transactional_id))
        state.effects.cancel_timer(admin.EXPIRY_TIMER)
        for held in (state.allocations, state.markings, state.busy):
            held.clear()
        return state.effects.take()

    def take_effects(self) -> list[Effect]:
        """Returns the effects that a call had decided on before it raised."""
        return self.state.effects.take()

    def verify(self) -> None:
        """Checks the invariants of the shard; for tests and simulations."""
        state = self.state
        for transactional_id, transaction in state.image.transactions.items():
            transaction.verify()
            if (transaction.state is State.ONGOING) != (transactional_id in state.deadlines_ms):
                raise InvariantViolated(f"{transaction} and its deadline do not agree")
            if transaction.state.is_preparing != (transactional_id in state.markings):
                raise InvariantViolated(f"{transaction} and its markers do not agree")
        for transactional_id, marking in state.markings.items():
            done = not marking.asked and not marking.due
            busy = state.busy.get(transactional_id)
            completing = busy is not None and busy.doing is Doing.COMPLETING
            if done != completing and not marking.retry_is_set:
                raise InvariantViolated(
                    f"{transactional_id} and the append that completes it do not agree"
                )
            if marking.due and not marking.retry_is_set:
                raise InvariantViolated(f"{transactional_id} has markers that are never sent")
        for transactional_id, parked in state.parked.items():
            if transactional_id not in state.markings or not parked:
                raise InvariantViolated(
                    f"{transactional_id} has parked requests, but no transaction of it is ending"
                )
        if not state.appends and not state.allocations and state.busy:
            raise InvariantViolated(
                f"{list(state.busy)} are marked as busy, but nothing is in progress"
            )
