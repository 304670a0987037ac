"""TxnOffsetCommit, versions 0 to 5: commits a group's offsets as part of a transaction.

As in OffsetCommit, offsets for topics that do not exist are refused one by one. The first commit of
a transaction is verified with the transaction's coordinator. Up to version 4 the producer has added
the group's partition before (AddOffsetsToTxn); from version 5 on it is added here
(transaction.version 2). From version 3 on the producer names the group member that it commits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from copy import copy
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.coordinators.groups import GroupShell
from penstock.broker.coordinators.verification import VerificationKey
from penstock.broker.handlers.group_requests import absent_code, forbidden_topics
from penstock.broker.handlers.large_requests import ask_in_portions
from penstock.broker.handlers.transaction_requests import then
from penstock.broker.partitions.own_txn_appends import beginner
from penstock.coordination.effects import Now, Token
from penstock.groups.effects import Effect
from penstock.groups.error_responses import refuse, txn_commit_response
from penstock.groups.shard import GroupShard
from penstock.partition.decisions import Begin
from penstock.partition.guards import NO_GUARD
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from penstock.wire.messages.base import Response

__all__ = ["handle", "refuse"]

_ADDS_SINCE: Final = 5
_ABORTABLE_SINCE: Final = 4
_AGAIN: Final = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
"""Errors that the transaction's coordinator returns for a moment. The client is talking to the
group's coordinator, so it is told that this one is not ready, and retries here."""

_Answer = TxnOffsetCommitResponse | asyncio.Future[TxnOffsetCommitResponse]
_Asked = list[tuple[str, list[TxnOffsetCommitRequest.Partition]]]


def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> _Answer:
    context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
    context.require_group(AclOperation.READ, request.group_id)
    if sum(len(topic.partitions) for topic in request.topics) <= context.slicing.elements:
        return _handle(request, context)
    context.is_large = True
    return context.spawn(_commit_in_portions(request, context))


async def _commit_in_portions(
    request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Splits a large commit into several. If one fails, the client aborts the transaction."""

    async def ask_some(
        topics: list[TxnOffsetCommitRequest.Topic],
    ) -> list[TxnOffsetCommitResponse.Topic]:
        part = copy(request)
        part.topics = topics
        answer = _handle(part, context)
        return (await answer if isinstance(answer, asyncio.Future) else answer).topics

    topics = await ask_in_portions(request.topics, ask_some, context.slicing)
    return TxnOffsetCommitResponse(topics=topics or [])


def _handle(request: TxnOffsetCommitRequest, context: RequestContext) -> _Answer:
    if not request.group_id:
        return _refused(request, ErrorCode.INVALID_GROUP_ID)
    asked = [(topic.name, list(topic.partitions)) for topic in request.topics]
    forbidden = forbidden_topics(context, AclOperation.READ, [name for name, _ in asked])
    _take_unknown(request, context, forbidden)
    if not request.topics:
        return _merged(TxnOffsetCommitResponse(), asked, forbidden)
    try:
        shell = context.services.groups.require(request.group_id)
    except KafkaError as error:
        return _merged(_refused(request, error.code), asked, forbidden)
    begin = beginner(
        shell.hosted, request.producer_id, request.producer_epoch, context.services.wall_ms()
    )
    answer: _Answer
    if begin() is None:
        answer = _commit(shell, request, NO_GUARD)
    else:
        answer = context.spawn(_verify(request, context, shell, begin))
    return then(answer, lambda response: _merged(response, asked, forbidden))


async def _verify(
    request: TxnOffsetCommitRequest, context: RequestContext, shell: GroupShell, begin: Begin
) -> TxnOffsetCommitResponse:
    adds = context.version >= _ADDS_SINCE
    key = VerificationKey(
        request.transactional_id, request.producer_id, request.producer_epoch, adds
    )
    where = TopicPartition(shell.hosted.topic, shell.hosted.index)
    (answer,) = context.services.verification.ask(key, [(where, begin)])
    result = await answer
    if result.code != ErrorCode.NONE:
        return _refused(request, _told(result.code, context.version))
    # The right may have been revoked while the coordinator was asked.
    context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
    context.require_group(AclOperation.READ, request.group_id)
    if shell.is_over:
        return _refused(request, ErrorCode.NOT_COORDINATOR)
    committed = _commit(shell, request, result.guard)
    return await committed if isinstance(committed, asyncio.Future) else committed


def _told(code: ErrorCode, version: int) -> ErrorCode:
    if code in _AGAIN:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _commit(shell: GroupShell, request: TxnOffsetCommitRequest, guard: int) -> _Answer:
    def step(shard: GroupShard, token: Token, now: Now) -> list[Effect]:
        return shard.txn_offset_commit(request, guard, token, now)

    reply = shell.ask(step)
    return then(reply.result() if reply.done() else reply, _as_answered)


def _as_answered(response: Response) -> TxnOffsetCommitResponse:
    if not isinstance(response, TxnOffsetCommitResponse):
        raise TypeError(f"{type(response).__name__} does not answer a commit in a transaction")
    return response


def _refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return txn_commit_response(request, lambda partition: code)


def _merged(
    answer: TxnOffsetCommitResponse, asked: _Asked, forbidden: Set[str]
) -> TxnOffsetCommitResponse:
    """Adds the partitions that were left out because they do not exist or the client may not read
    them, in request order."""
    codes = {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }
    answer.topics = [
        TxnOffsetCommitResponse.Topic(
            name,
            [
                TxnOffsetCommitResponse.Partition(
                    each.partition_index,
                    codes.get((name, each.partition_index), absent_code(name, forbidden)),
                )
                for each in partitions
            ],
        )
        for name, partitions in asked
    ]
    return answer


def _take_unknown(
    request: TxnOffsetCommitRequest, context: RequestContext, forbidden: Set[str]
) -> None:
    """Removes partitions that do not exist or are forbidden from the request."""
    image = context.services.image
    for topic in request.topics:
        topic.partitions = [
            asked
            for asked in topic.partitions
            if topic.name not in forbidden
            and image.partition(topic.name, asked.partition_index) is not None
        ]
    request.topics = [topic for topic in request.topics if topic.partitions]
