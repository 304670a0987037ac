"""Describes, lists and expires transactional ids.

DescribeTransactions 0 and ListTransactions 0-2, where version 1 filters by how long a transaction
has been open and version 2 by a pattern on the id. A transactional id that has no open transaction
and was not used for a long time is forgotten: if its producer returns, it gets a new producer id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.coordination.batches import split
from penstock.coordination.effects import Now
from penstock.txns.effects import TimerKey, TimerKind
from penstock.txns.formats import tombstone
from penstock.txns.patterns import IdPattern
from penstock.txns.shard_state import Doing, ShardState
from penstock.txns.transaction import NO_TIMESTAMP, STATES_BY_TITLE, State, Transaction
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

EXPIRY_TIMER: Final = TimerKey(TimerKind.EXPIRY)


def describe(shard: ShardState, transactional_id: str) -> DescribeTransactionsResponse.Transaction:
    if not transactional_id:
        return DescribeTransactionsResponse.Transaction(ErrorCode.INVALID_REQUEST, transactional_id)
    transaction = shard.image.get(transactional_id)
    if transaction is None:
        return DescribeTransactionsResponse.Transaction(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id
        )
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(transaction.partitions):
        by_topic[topic].append(partition)
    return DescribeTransactionsResponse.Transaction(
        ErrorCode.NONE,
        transactional_id,
        transaction.state.title,
        transaction.timeout_ms,
        transaction.start_ms,
        transaction.producer_id,
        transaction.producer_epoch,
        [DescribeTransactionsResponse.Topic(*item) for item in by_topic.items()],
    )


def list_all(
    shard: ShardState,
    request: ListTransactionsRequest,
    now: Now,
    among: Iterable[str] | None = None,
) -> list[ListTransactionsResponse.Transaction]:
    """Returns this shard's transactions that pass every filter, among the given ids if any.

    Raises `KafkaError` for an invalid pattern.
    """
    states = {STATES_BY_TITLE.get(title) for title in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    pattern = request.transactional_id_pattern
    id_pattern = IdPattern(pattern) if pattern else None

    def passes(transaction: Transaction) -> bool:
        if states and transaction.state not in states:
            return False
        if producer_ids and transaction.producer_id not in producer_ids:
            return False
        if request.duration_filter >= 0 and not _runs_longer(
            transaction, request.duration_filter, now
        ):
            return False
        return id_pattern is None or id_pattern.matches(transaction.transactional_id)

    return [
        ListTransactionsResponse.Transaction(
            transaction.transactional_id, transaction.producer_id, transaction.state.title
        )
        for transactional_id in (shard.image.transactions if among is None else among)
        if (transaction := shard.image.transactions.get(transactional_id)) is not None
        and passes(transaction)
    ]


def unknown_states(request: ListTransactionsRequest) -> list[str]:
    return [title for title in request.state_filters if title not in STATES_BY_TITLE]


def _runs_longer(transaction: Transaction, duration_ms: int, now: Now) -> bool:
    runs = transaction.state is State.ONGOING or transaction.state.is_preparing
    started = transaction.start_ms != NO_TIMESTAMP
    return runs and started and now.wall_ms - transaction.start_ms > duration_ms


# Expiry


def expire(shard: ShardState, now: Now) -> None:
    expired = [
        transaction.transactional_id
        for transaction in shard.image.transactions.values()
        if (transaction.state is State.EMPTY or transaction.state.is_complete)
        and transaction.transactional_id not in shard.busy
        and now.wall_ms - transaction.update_ms >= shard.config.id_expiration_ms
    ]
    left = iter(expired)
    for batch in split(map(tombstone, expired), shard.batch_bytes_max()):
        transactional_ids = tuple(islice(left, len(batch)))
        for transactional_id in transactional_ids:
            shard.begin(transactional_id, Doing.EXPIRING)
        shard.appends.start(batch, Forgotten(transactional_ids), now)
    shard.effects.set_timer(
        EXPIRY_TIMER, now.ticks_ms + shard.config.id_expiration_check_interval_ms
    )


@dataclass(frozen=True, slots=True)
class Forgotten:
    """No request waits for this; what failed is found again by the next expiry."""

    transactional_ids: tuple[str, ...]

    def committed(self, shard: ShardState, now: Now) -> None:
        for transactional_id in self.transactional_ids:
            shard.finish(transactional_id)

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        self.committed(shard, now)

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None: ...
