"""AddPartitionsToTxn 0-5 and AddOffsetsToTxn 0-4: what a transaction is going to write to.

A partition is added before it is written to, so that whoever coordinates the transaction when it
ends knows where its markers must go. Up to version 3 the producer asks; since KIP-890 the leader
that is about to append asks for it, in version 4 and above, or only asks whether the producer did
(`verify_only`). Requests that only add may overlap (see `core`): with KIP-890 many leaders ask at
once.

Offsets are added as the partition of `__consumer_offsets` that will hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from penstock.txns.core import Core, Doing
from penstock.txns.effects import Answer, Now, Token, TopicPartition
from penstock.txns.formats import transaction_record
from penstock.txns.refusals import append_error, in_version
from penstock.txns.transaction import EPOCH_LAST_USABLE, Producer, State, Transaction
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)


class _Asked(Protocol):
    """Who waits for an addition."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def partitions(self) -> Sequence[TopicPartition]: ...

    def answer(self, code: ErrorCode) -> tuple[Token, Answer]: ...


@dataclass(frozen=True, slots=True)
class _AskedPartitions:
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
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
    partitions: tuple[TopicPartition, ...]
    version: int
    token: Token

    def answer(self, code: ErrorCode) -> tuple[Token, Answer]:
        said = in_version(code, "add offsets", self.version)
        return self.token, AddOffsetsToTxnResponse(error_code=said)


def transaction_of(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnRequest.Transaction:
    """A request of version 3 or below as the one transaction that it is about."""
    return AddPartitionsToTxnRequest.Transaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )


def add_partitions(
    core: Core,
    request: AddPartitionsToTxnRequest.Transaction,
    version: int,
    token: Token,
    now: Now,
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
    asked = _AskedPartitions(request.transactional_id, wanted, version, token)
    producer = Producer(request.producer_id, request.producer_epoch)
    if request.verify_only:
        core.reply(*_verify(core, asked, producer))
    else:
        _add(core, asked, producer, now)


def add_offsets(
    core: Core,
    request: AddOffsetsToTxnRequest,
    offsets_partition: TopicPartition,
    version: int,
    token: Token,
    now: Now,
) -> None:
    asked = _AskedOffsets(request.transactional_id, (offsets_partition,), version, token)
    _add(core, asked, Producer(request.producer_id, request.producer_epoch), now)


def _add(core: Core, asked: _Asked, producer: Producer, now: Now) -> None:
    transaction = core.image.get(asked.transactional_id)
    busy = core.busy.get(asked.transactional_id)
    if busy is not None and busy.doing is Doing.ADDING:
        transaction = busy.head
    code = why_not(transaction, producer, asked.transactional_id)
    if code is ErrorCode.NONE and busy is not None and busy.doing is not Doing.ADDING:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    if code is not ErrorCode.NONE or transaction is None or not asked.partitions:
        core.reply(*asked.answer(code))
    elif busy is None and _holds_all(transaction, asked.partitions):
        core.reply(*asked.answer(ErrorCode.NONE))
    else:
        head = transaction.joined_by(asked.partitions, now.wall_ms)
        if busy is None:
            core.begin(asked.transactional_id, Doing.ADDING, head)
        else:
            busy.head = head
            busy.count += 1
        core.append([transaction_record(head)], Added(asked, now.ticks_ms), now)


def why_not(
    transaction: Transaction | None, producer: Producer, transactional_id: str
) -> ErrorCode:
    """Why this producer may not write in the transactional id's transaction; NONE if it may."""
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
    """The coordinator or the producer aborted it, and the producer may go on from there."""
    return transaction.state in (State.PREPARE_ABORT, State.COMPLETE_ABORT)


def _holds_all(transaction: Transaction, partitions: Iterable[TopicPartition]) -> bool:
    return transaction.state is State.ONGOING and transaction.partitions.issuperset(partitions)


def _verify(core: Core, asked: _AskedPartitions, producer: Producer) -> tuple[Token, Answer]:
    """Whether the partitions are in the transaction; what is not committed yet is not."""
    transaction = core.image.get(asked.transactional_id)
    code = why_not(transaction, producer, asked.transactional_id)
    if code is not ErrorCode.NONE or transaction is None:
        return asked.answer(code)
    return asked.answer_each(
        ErrorCode.NONE if _holds_all(transaction, (partition,)) else ErrorCode.TRANSACTION_ABORTABLE
        for partition in asked.partitions
    )


@dataclass(frozen=True, slots=True)
class Added:
    asked: _Asked
    since_ms: int

    def committed(self, core: Core, now: Now) -> None:
        transactional_id = self.asked.transactional_id
        core.finish(transactional_id)
        transaction = core.image.transactions[transactional_id]
        if transactional_id not in core.deadlines_ms:
            core.set_deadline(transactional_id, self.since_ms + transaction.timeout_ms)
        core.reply(*self.asked.answer(ErrorCode.NONE))

    def failed(self, core: Core, error: ErrorCode, now: Now) -> None:
        core.finish(self.asked.transactional_id)
        core.reply(*self.asked.answer(append_error(error)))

    def abandoned(self, core: Core, code: ErrorCode) -> None:
        core.reply(*self.asked.answer(code))
