"""AddPartitionsToTxn 0-5 and AddOffsetsToTxn 0-4: adds partitions to a transaction.

A partition is added before it is written to, so that the coordinator that ends the transaction
knows where its markers must go. Up to version 3 the producer sends the request. Since KIP-890
(version 4 and above) the leader that is about to append sends it, to add the partition or only to
verify that the producer did (`verify_only`). Requests that only add may overlap (see
`shard_state`): with KIP-890 many leaders send them at once.

Offsets are added as the partition of `__consumer_offsets` that will hold them.

An addition that arrives while the previous transaction is being ended gets a retriable error or,
with `may_wait`, is parked until that transaction is complete (see `shard_state`): a producer starts
its next transaction right after the previous one, and asking again would cost it more time than the
markers take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from penstock.coordination.append_errors import append_error
from penstock.coordination.effects import LogRecord, Now, Token
from penstock.topic_partition import TopicPartition
from penstock.txns.effects import Answer
from penstock.txns.formats import transaction_record
from penstock.txns.shard_state import Addition, Doing, ShardState
from penstock.txns.transaction import EPOCH_LAST_USABLE, Producer, State, Transaction
from penstock.txns.versioned_errors import in_version
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

_END_ADDS_MAX: Final = 256
"""Bytes of the batch around a record, and of the fields that are set when a transaction ends."""


@dataclass(frozen=True, slots=True)
class _AskedPartitions:
    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    may_wait: bool
    version: int
    token: Token

    def answer(self, code: ErrorCode) -> tuple[Token, Answer]:
        return self.answer_each([code] * len(self.partitions))

    def answer_each(self, codes: Iterable[ErrorCode]) -> tuple[Token, Answer]:
        results = [
            (where, in_version(code, "add", self.version))
            for where, code in zip(self.partitions, codes, strict=True)
        ]
        topics = [
            AddPartitionsToTxnResponse.Topic(
                topic,
                [
                    AddPartitionsToTxnResponse.Partition(where.partition, code)
                    for where, code in parts
                ],
            )
            for topic, parts in groupby(results, key=lambda result: result[0].topic)
        ]
        return self.token, AddPartitionsToTxnResponse.Transaction(self.transactional_id, topics)


@dataclass(frozen=True, slots=True)
class _AskedOffsets:
    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    may_wait: bool
    version: int
    token: Token

    def answer(self, code: ErrorCode) -> tuple[Token, Answer]:
        said = in_version(code, "add offsets", self.version)
        return self.token, AddOffsetsToTxnResponse(error_code=said)


def transaction_of(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest.Transaction:
    """Returns the one transaction that a request of version 3 or below is about."""
    return AddPartitionsToTxnRequest.Transaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )


def add_partitions(
    shard: ShardState,
    request: AddPartitionsToTxnRequest.Transaction,
    version: int,
    token: Token,
    now: Now,
    *,
    may_wait: bool = False,
    only_beside: frozenset[TopicPartition] = frozenset(),
) -> None:
    wanted = tuple(
        sorted(
            {
                TopicPartition(topic.name, partition)
                for topic in request.topics
                for partition in topic.partitions
            }
        )
    )
    producer = Producer(request.producer_id, request.producer_epoch)
    asked = _AskedPartitions(request.transactional_id, producer, wanted, may_wait, version, token)
    if request.verify_only:
        shard.effects.reply(*_verify(shard, asked))
    else:
        _add(shard, asked, now, only_beside)


def add_offsets(
    shard: ShardState,
    request: AddOffsetsToTxnRequest,
    offsets_partition: TopicPartition,
    version: int,
    token: Token,
    now: Now,
    *,
    may_wait: bool = False,
) -> None:
    producer = Producer(request.producer_id, request.producer_epoch)
    where = (offsets_partition,)
    _add(
        shard,
        _AskedOffsets(request.transactional_id, producer, where, may_wait, version, token),
        now,
    )


def _add(
    shard: ShardState,
    asked: Addition,
    now: Now,
    only_beside: frozenset[TopicPartition] = frozenset(),
) -> None:
    transaction = shard.image.get(asked.transactional_id)
    busy = shard.busy.get(asked.transactional_id)
    if busy is not None and busy.doing is Doing.ADDING:
        transaction = busy.head
    code = why_not(transaction, asked.producer, asked.transactional_id)
    if code is ErrorCode.NONE and busy is not None and busy.doing is not Doing.ADDING:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is ErrorCode.NONE and only_beside and not _holds_all(transaction, only_beside):
        # The transaction that they belong to has ended, and nobody would end another one.
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and _may_park(shard, asked):
        shard.park(asked, now)
    elif code is not ErrorCode.NONE or transaction is None or not asked.partitions:
        shard.effects.reply(*asked.answer(code))
    elif busy is None and _holds_all(transaction, asked.partitions):
        shard.effects.reply(*asked.answer(ErrorCode.NONE))
    else:
        head = transaction.joined_by(asked.partitions, now.wall_ms)
        record = transaction_record(head)
        if not _fits(shard, record):
            shard.effects.reply(*asked.answer(append_error(ErrorCode.MESSAGE_TOO_LARGE)))
            return
        if busy is None:
            shard.begin(asked.transactional_id, Doing.ADDING, head)
        else:
            busy.head = head
            busy.count += 1
        shard.appends.start([record], Added(asked, now.ticks_ms), now)


def _fits(shard: ShardState, record: LogRecord) -> bool:
    """Returns whether a transaction's record fits into a batch, now and when it has ended."""
    size = len(record.key) + len(record.value or b"")
    return size + _END_ADDS_MAX <= shard.batch_bytes_max()


def why_not(
    transaction: Transaction | None, producer: Producer, transactional_id: str
) -> ErrorCode:
    """Returns why this producer may not write in the id's transaction; NONE if it may."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    granted = transaction.granted
    if producer == granted and granted.epoch <= EPOCH_LAST_USABLE:
        preparing = transaction.state.is_preparing
        return ErrorCode.CONCURRENT_TRANSACTIONS if preparing else ErrorCode.NONE
    if producer == transaction.last and _was_aborted_for(transaction):
        return ErrorCode.TRANSACTION_ABORTABLE
    if producer.producer_id in (granted.producer_id, transaction.producer_id):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _was_aborted_for(transaction: Transaction) -> bool:
    """Returns whether it was aborted, by coordinator or producer, and the producer may continue."""
    return transaction.state in (State.PREPARE_ABORT, State.COMPLETE_ABORT)


def _holds_all(transaction: Transaction | None, partitions: Iterable[TopicPartition]) -> bool:
    if transaction is None or transaction.state is not State.ONGOING:
        return False
    return transaction.partitions.issuperset(partitions)


def _verify(shard: ShardState, asked: _AskedPartitions) -> tuple[Token, Answer]:
    """Answers whether the partitions are in the transaction; uncommitted additions do not count."""
    transaction = shard.image.get(asked.transactional_id)
    code = why_not(transaction, asked.producer, asked.transactional_id)
    if code is not ErrorCode.NONE or transaction is None:
        return asked.answer(code)
    return asked.answer_each(
        ErrorCode.NONE if _holds_all(transaction, (partition,)) else ErrorCode.TRANSACTION_ABORTABLE
        for partition in asked.partitions
    )


@dataclass(frozen=True, slots=True)
class Added:
    asked: Addition
    since_ms: int

    def committed(self, shard: ShardState, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        self.done(shard)

    def done(self, shard: ShardState) -> None:
        transactional_id = self.asked.transactional_id
        transaction = shard.image.transactions[transactional_id]
        if transactional_id not in shard.deadlines_ms:
            shard.set_deadline(transactional_id, self.since_ms + transaction.timeout_ms)
        shard.effects.reply(*self.asked.answer(ErrorCode.NONE))

    def failed(self, shard: ShardState, error: ErrorCode, now: Now) -> None:
        shard.finish(self.asked.transactional_id)
        shard.effects.reply(*self.asked.answer(append_error(error)))

    def abandoned(self, shard: ShardState, code: ErrorCode) -> None:
        shard.effects.reply(*self.asked.answer(code))


# Waiting for the previous transaction


def _may_park(shard: ShardState, asked: Addition) -> bool:
    """Returns whether to park: only during the first attempt at the markers, as retries
    are slow."""
    marking = shard.markings.get(asked.transactional_id)
    return asked.may_wait and marking is not None and not marking.retry_is_set


def join_next(
    shard: ShardState, ended: Transaction, parked: Iterable[Addition], now: Now
) -> tuple[Transaction, list[Added]]:
    """Returns the next transaction with the parked additions, after `ended` is complete."""
    head, additions = ended, []
    for asked in parked:
        code = why_not(ended, asked.producer, asked.transactional_id)
        joined = head.joined_by(asked.partitions, now.wall_ms)
        if code is ErrorCode.NONE and not _fits(shard, transaction_record(joined)):
            code = append_error(ErrorCode.MESSAGE_TOO_LARGE)
        if code is ErrorCode.NONE:
            head = joined
            additions.append(Added(asked, now.ticks_ms))
        else:
            shard.effects.reply(*asked.answer(code))
    return head, additions


def take_up(shard: ShardState, transactional_id: str, now: Now) -> None:
    """Processes the parked additions: the previous transaction is complete."""
    for asked in shard.unpark(transactional_id):
        _add(shard, asked, now)
