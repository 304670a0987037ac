"""Writes markers: every partition of a decided transaction gets one.

This starts when the decision is committed, and goes on until every partition has written its
marker: across leader changes and, because the decision is in the log, across coordinator changes
too. Only then is the transaction complete and its transactional id free for the next one.

How the answer of a partition is handled:

    written                         done
    epoch out of date               done: it is past this transaction, there is nothing to end
    a format without transactions   done: it cannot contain the transaction
    anything else                   sent again after a while; the leader may have changed by then

So a marker may be written twice. The second one finds no open transaction and changes nothing.

The record that completes a transaction is in one batch with what is parked for the next one
(`adding`), so that both take effect together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.coordination.effects import Now
from penstock.topic_partition import TopicPartition
from penstock.txns import adding
from penstock.txns.effects import Marker, SendMarkers, TimerKey, TimerKind
from penstock.txns.formats import transaction_record
from penstock.txns.shard_state import Doing, Marking, ShardState
from penstock.txns.transaction import State, Transaction
from penstock.wire.errors import ErrorCode

_DONE: Final = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)


def begin(shard: ShardState, transaction: Transaction, now: Now) -> None:
    """Starts to write the markers: the decision is committed."""
    shard.clear_deadline(transaction.transactional_id)
    marker = Marker(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state is State.PREPARE_COMMIT,
        shard.coordinator_epoch,
        transaction.client_version,
    )
    shard.markings[transaction.transactional_id] = Marking(marker, transaction.partitions)
    _go_on(shard, transaction.transactional_id, now)


def on_answers(
    shard: ShardState,
    transactional_id: str,
    marker: Marker,
    answers: Mapping[TopicPartition, ErrorCode],
    now: Now,
) -> None:
    marking = shard.markings.get(transactional_id)
    if marking is None or marking.marker != marker:
        return
    for partition, code in answers.items():
        if partition in marking.asked:
            marking.asked.discard(partition)
            if code not in _DONE:
                marking.due.add(partition)
    if marking.due:
        _try_later(shard, transactional_id, marking, now)
    elif not marking.asked:
        _complete(shard, transactional_id, now)


def on_gone(shard: ShardState, partitions: Collection[TopicPartition], now: Now) -> None:
    """Drops deleted partitions, which need no marker."""
    for transactional_id, marking in list(shard.markings.items()):
        before = len(marking.asked) + len(marking.due)
        marking.asked.difference_update(partitions)
        marking.due.difference_update(partitions)
        left = len(marking.asked) + len(marking.due)
        if before and not left:
            _complete(shard, transactional_id, now)


def on_retry(shard: ShardState, transactional_id: str, now: Now) -> None:
    marking = shard.markings.get(transactional_id)
    if marking is not None:
        marking.retry_is_set = False
        _go_on(shard, transactional_id, now)


def _go_on(shard: ShardState, transactional_id: str, now: Now) -> None:
    marking = shard.markings[transactional_id]
    if marking.due:
        partitions = sorted(marking.due)
        marking.asked.update(partitions)
        marking.due.clear()
        shard.effects.add(SendMarkers(transactional_id, marking.marker, tuple(partitions)))
    elif not marking.asked:
        _complete(shard, transactional_id, now)


def _try_later(shard: ShardState, transactional_id: str, marking: Marking, now: Now) -> None:
    shard.send_away(transactional_id, ErrorCode.CONCURRENT_TRANSACTIONS)
    if not marking.retry_is_set:
        marking.retry_is_set = True
        key = TimerKey(TimerKind.MARKERS, transactional_id)
        shard.effects.set_timer(key, now.ticks_ms + shard.config.retry_ms)


def _complete(shard: ShardState, transactional_id: str, now: Now) -> None:
    if transactional_id in shard.busy:
        return  # The record that completes it is already being appended.
    transaction = shard.image.transactions[transactional_id]
    shard.begin(transactional_id, Doing.COMPLETING)
    done = transaction.completed(now.wall_ms)
    head, additions = adding.join_next(shard, done, shard.unpark(transactional_id), now)
    records = [transaction_record(done)]
    if additions:
        records.append(transaction_record(head))
    shard.appends.start(records, Completed(transactional_id, tuple(additions)), now)


@dataclass(frozen=True, slots=True)
class Completed:
    transactional_id: str
    additions: tuple[adding.Added, ...] = ()

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.transactional_id)
        marking = shard.markings.pop(self.transactional_id)
        if marking.retry_is_set:
            shard.effects.cancel_timer(TimerKey(TimerKind.MARKERS, self.transactional_id))
        for addition in self.additions:
            addition.done(shard)
        adding.take_up(shard, self.transactional_id, now)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.transactional_id)
        self.abandoned(shard, ErrorCode.CONCURRENT_TRANSACTIONS)
        _try_later(shard, self.transactional_id, shard.markings[self.transactional_id], now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        for addition in self.additions:
            addition.abandoned(shard, code)
