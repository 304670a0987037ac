"""AddPartitionsToTxn, versions 0 to 5: adds partitions to a transaction.

Up to version 3 a producer sends it, for one transaction, before it writes. From version 4 on
brokers send it, for several transactions at once. They either ask whether partitions are in the
transaction (`verify_only`) or add them, which is how transactions of version 2 begin.

If the previous transaction is still being ended, a producer's request waits for that, for a limited
time. Requests from brokers do not wait, since one transaction would hold up the others in the same
request.

If one of the partitions does not exist or the producer may not write to it, none is added: that one
gets UNKNOWN_TOPIC_OR_PARTITION or TOPIC_AUTHORIZATION_FAILED, and the others
OPERATION_NOT_ATTEMPTED.

The partitions of a large request are added in portions, all to the same transaction. If it ends in
between, or a portion fails for another reason, no more are added, and all partitions of the request
get the same error. Those that were added get a marker when the transaction ends, which does no
harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.large_requests import topic_portions
from penstock.broker.handlers.transaction_requests import then
from penstock.coordination.effects import Now, Token
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.txns.adding import transaction_of
from penstock.txns.effects import Answer, Effect
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_BATCHED_SINCE = 4
_Asked = AddPartitionsToTxnRequest.Transaction
_Answered = AddPartitionsToTxnResponse.Transaction
_AnsweredTopic = AddPartitionsToTxnResponse.Topic
_ADDED_TOGETHER: Final = 2_000
"""The coordinator writes a record of the whole transaction for each portion."""


def handle(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse | asyncio.Future[AddPartitionsToTxnResponse]:
    if context.version < _BATCHED_SINCE:
        asked = transaction_of(request)
        context.require_transactional_id(AclOperation.WRITE, asked.transactional_id)
        return then(
            _answer(asked, context),
            lambda answered: AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=answered.topic_results
            ),
        )
    context.require_cluster(AclOperation.CLUSTER_ACTION)
    answers = [_answer(asked, context) for asked in request.transactions]
    waiting = [answer for answer in answers if isinstance(answer, asyncio.Future)]
    if not waiting:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[answer for answer in answers if isinstance(answer, _Answered)]
        )
    return context.spawn(_all(answers))


async def _all(answers: list[_Answered | asyncio.Future[_Answered]]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            await answer if isinstance(answer, asyncio.Future) else answer for answer in answers
        ]
    )


def _answer(asked: _Asked, context: RequestContext) -> _Answered | asyncio.Future[_Answered]:
    if sum(len(topic.partitions) for topic in asked.topics) > context.slicing.elements:
        context.is_large = True
        return context.spawn(_answer_large(asked, context))
    flaw_of = _flaw_of(asked, context)
    if any(flaw_of(topic.name, index) for topic in asked.topics for index in topic.partitions):
        return _refused(
            asked, lambda topic, index: flaw_of(topic, index) or ErrorCode.OPERATION_NOT_ATTEMPTED
        )
    return _ask(asked, context)


async def _answer_large(asked: _Asked, context: RequestContext) -> _Answered:
    """Does the same in slices, and adds the partitions in portions."""
    slices = context.slices()
    flaw_of = _flaw_of(asked, context)
    codes = {}
    for topic in asked.topics:
        for index in topic.partitions:
            codes[topic.name, index] = flaw_of(topic.name, index)
            await slices.give_way()
    if any(codes.values()):
        not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
        return _refused(asked, lambda topic, index: codes[topic, index] or not_attempted)

    results: list[_AnsweredTopic] = []
    added: set[TopicPartition] = set()
    for continues, portion in topic_portions(asked.topics, _ADDED_TOGETHER):
        told = await _ask_some(asked, portion, context, frozenset(added))
        if not asked.verify_only:
            failure = _first_error(told)
            if failure:
                return _all_refused(asked, failure)
            added.update(
                TopicPartition(topic.name, index) for topic in portion for index in topic.partitions
            )
        if continues:
            results[-1].results_by_partition += told.pop(0).results_by_partition
        results += told
        await asyncio.sleep(0)
    return _Answered(asked.transactional_id, results)


def _first_error(topics: list[_AnsweredTopic]) -> ErrorCode:
    codes = (each.partition_error_code for topic in topics for each in topic.results_by_partition)
    return ErrorCode(next(filter(None, codes), ErrorCode.NONE))


async def _ask_some(
    asked: _Asked,
    topics: list[AddPartitionsToTxnRequest.Topic],
    context: RequestContext,
    only_beside: frozenset[TopicPartition],
) -> list[_AnsweredTopic]:
    """Returns the answers in the order of these topics, some of which may be named twice."""
    some = copy(asked)
    some.topics = topics
    answer = _ask(some, context, only_beside)
    answered = await answer if isinstance(answer, asyncio.Future) else answer
    codes = {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in answered.topic_results
        for each in topic.results_by_partition
    }
    return _refused(some, lambda topic, index: codes[topic, index]).topic_results


def _flaw_of(asked: _Asked, context: RequestContext) -> Callable[[str, int], ErrorCode]:
    """Returns a function that says why a partition cannot be added; NONE if it can."""
    image = context.services.image
    forbidden = _forbidden(asked, context)

    def flaw(topic: str, index: int) -> ErrorCode:
        if topic in forbidden:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if image.partition(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    return flaw


def _ask(
    asked: _Asked,
    context: RequestContext,
    only_beside: frozenset[TopicPartition] = frozenset(),
) -> _Answered | asyncio.Future[_Answered]:
    def step(shard: TransactionShard, token: Token, now: Now) -> list[Effect]:
        return shard.add_partitions(
            asked,
            context.version,
            token,
            now,
            may_wait=context.version < _BATCHED_SINCE and not only_beside,
            only_beside=only_beside,
        )

    try:
        reply = context.services.transactions.ask(asked.transactional_id, step)
    except KafkaError as error:
        return _all_refused(asked, error.code)
    return _as_answered(reply.result()) if reply.done() else then(reply, _as_answered)


def _forbidden(asked: _Asked, context: RequestContext) -> set[str]:
    """Returns the topics that the producer may not write to, nor to internal topics ever.

    Brokers ask for producers whose rights they have checked themselves."""
    if context.version >= _BATCHED_SINCE or not context.has_authorizer:
        return set()
    return {
        topic.name
        for topic in asked.topics
        if topic.name in INTERNAL_TOPICS or not context.may_topic(AclOperation.WRITE, topic.name)
    }


def _as_answered(answer: Answer) -> _Answered:
    if not isinstance(answer, _Answered):
        raise TypeError(f"{type(answer).__name__} has no result for each partition")
    return answer


def _all_refused(asked: _Asked, code: ErrorCode) -> _Answered:
    return _refused(asked, lambda topic, index: code)


def _refused(asked: _Asked, code_of: Callable[[str, int], ErrorCode]) -> _Answered:
    return _Answered(
        asked.transactional_id,
        [
            AddPartitionsToTxnResponse.Topic(
                topic.name,
                [
                    AddPartitionsToTxnResponse.Partition(index, code_of(topic.name, index))
                    for index in topic.partitions
                ],
            )
            for topic in asked.topics
        ],
    )


def refuse(
    request: AddPartitionsToTxnRequest, version: int, code: ErrorCode
) -> AddPartitionsToTxnResponse:
    if version >= _BATCHED_SINCE:
        return AddPartitionsToTxnResponse(error_code=code)
    refused = _all_refused(transaction_of(request), code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refused.topic_results)
