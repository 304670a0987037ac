"""DescribeTransactions, version 0: returns the state of transactional ids (KIP-664).

A coordinator answers only for its own ids. Topics that the client may not describe are left out.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse


def handle(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse | asyncio.Future[DescribeTransactionsResponse]:
    return answered(context, _described(request, context), len(request.transactional_ids))


def _described(
    request: DescribeTransactionsRequest, context: RequestContext
) -> Steps[DescribeTransactionsResponse]:
    response = DescribeTransactionsResponse()
    for each in request.transactional_ids:
        response.transaction_states.append(_describe(each, context))
        yield
    return response


def _describe(
    transactional_id: str, context: RequestContext
) -> DescribeTransactionsResponse.Transaction:
    try:
        context.require_transactional_id(AclOperation.DESCRIBE, transactional_id)
        shard = context.services.transactions.require(transactional_id).shard
        described = shard.describe(transactional_id)
    except KafkaError as error:
        return DescribeTransactionsResponse.Transaction(
            error_code=error.code, transactional_id=transactional_id
        )
    described.topics = [
        topic
        for topic in described.topics
        if context.may_topic(AclOperation.DESCRIBE, topic.topic, audited=False)
    ]
    return described


def refuse(
    request: DescribeTransactionsRequest, version: int, code: ErrorCode
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.Transaction(error_code=code, transactional_id=each)
            for each in request.transactional_ids
        ]
    )
