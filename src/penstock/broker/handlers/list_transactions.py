"""ListTransactions, versions 0 to 2: the transactional ids that this broker coordinates (KIP-664).

By state and producer id; from version 1 on by how long a transaction has been running, from 2 on by
a pattern. State names that mean nothing are handed back. While a partition is still loading nothing
is listed: half a list would pass for a whole one.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.large_requests import Steps, answered, portions
from penstock.txns.admin import unknown_states
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ListTransactionsRequest, ListTransactionsResponse


def handle(
    request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse | asyncio.Future[ListTransactionsResponse]:
    loaded = context.services.transactions.loaded()
    count = sum(len(runtime.shard.core.image.transactions) for runtime in loaded)
    return answered(context, _steps(request, context), count)


def _steps(
    request: ListTransactionsRequest, context: RequestContext
) -> Steps[ListTransactionsResponse]:
    transactions = context.services.transactions
    if transactions.is_loading():
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response = ListTransactionsResponse(unknown_state_filters=unknown_states(request))
    for runtime in transactions.loaded():
        # At least once: a pattern that does not read is refused by a shard without any, too.
        for portion in portions(runtime.shard.core.image.transactions) or [[]]:
            if runtime.is_over:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            response.transaction_states += runtime.shard.list_transactions(
                request, runtime.now(), portion
            )
            yield
    return response
