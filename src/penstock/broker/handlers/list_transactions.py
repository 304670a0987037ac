"""ListTransactions, versions 0 to 2: the transactional ids that this broker coordinates (KIP-664).

By state and producer id; from version 1 on by how long a transaction has been running, from 2 on by
a pattern. State names that mean nothing are handed back. While a partition is still loading nothing
is listed: half a list would pass for a whole one.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.txns.admin import unknown_states
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ListTransactionsRequest, ListTransactionsResponse


def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    transactions = context.services.transactions
    if transactions.is_loading():
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request),
        transaction_states=[
            listed
            for runtime in transactions.loaded()
            for listed in runtime.shard.list_transactions(request, runtime.now())
        ],
    )
