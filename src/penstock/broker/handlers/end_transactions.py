"""EndTransactions, version 0: commits many transactions atomically, or aborts those that are open.

This is Penstock's own API (multi-commit); Kafka has nothing like it. All members must belong to one
partition of `__transaction_state`; otherwise the answer is INVALID_REQUEST. A commit may name the
partition of `__consumer_offsets` that one of the members must have written to. After an error
nothing was decided, and the members' codes show which of them prevented it. Otherwise each member
gets the producer id and epoch for its next transaction. The request is safe to retry: it gets the
same answer.

Clients send it, such as the driver of a Spark job, so it needs WRITE on every transactional id, as
EndTxn does for one. CLUSTER_ACTION is enough, too.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.transaction_requests import then
from penstock.coordination.effects import Now, Token
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.txns.effects import Answer, Effect, EndedTogether, EndTransactions, Member
from penstock.txns.shard import TransactionShard
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import EndTransactionsRequest, EndTransactionsResponse


def handle(
    request: EndTransactionsRequest, context: RequestContext
) -> EndTransactionsResponse | asyncio.Future[EndTransactionsResponse]:
    if not context.may_cluster(AclOperation.CLUSTER_ACTION, audited=False):
        for member in request.members:
            context.require_transactional_id(AclOperation.WRITE, member.transactional_id)
    transactions = context.services.transactions
    indexes = {transactions.index_of(member.transactional_id) for member in request.members}
    if len(indexes) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    members = tuple(
        Member(member.transactional_id, member.producer_id, member.producer_epoch)
        for member in request.members
    )
    offsets = None
    if request.offsets_topic is not None:
        offsets = TopicPartition(request.offsets_topic, request.offsets_partition)
    asked = EndTransactions(members, request.committed, offsets)

    def step(shard: TransactionShard, token: Token, now: Now) -> list[Effect]:
        return shard.end_transactions(asked, token, now)

    return then(transactions.require_at(indexes.pop()).ask(step), _response)


def _response(answer: Answer) -> EndTransactionsResponse:
    if not isinstance(answer, EndedTogether):
        raise TypeError(f"{type(answer).__name__} has no result for each transaction")
    return EndTransactionsResponse(
        error_code=answer.code,
        members=[
            EndTransactionsResponse.Member(
                member.transactional_id, member.code, member.producer_id, member.producer_epoch
            )
            for member in answer.members
        ],
    )
