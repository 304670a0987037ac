"""DescribeTransactions, version 0: returns the state of transactional ids (KIP-664).

A coordinator answers only for its own ids.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse


def handle(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(each, context) for each in request.transactional_ids]
    )


def _describe(
    transactional_id: str, context: RequestContext
) -> DescribeTransactionsResponse.Transaction:
    try:
        return context.services.transactions.require(transactional_id).shard.describe(
            transactional_id
        )
    except KafkaError as error:
        return DescribeTransactionsResponse.Transaction(
            error_code=error.code, transactional_id=transactional_id
        )


def refuse(
    request: DescribeTransactionsRequest, version: int, code: ErrorCode
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.Transaction(error_code=code, transactional_id=each)
            for each in request.transactional_ids
        ]
    )
