"""ListTransactions, versions 0 to 2: lists the transactional ids of this coordinator (KIP-664).

It filters by state and producer id; from version 1 on by how long a transaction has been running,
from version 2 on by a pattern. Unknown state names are returned. While a partition is still
loading, the request is refused: an incomplete list would look complete.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered, portions
from penstock.security.acls import AclOperation
from penstock.txns.admin import unknown_states
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import ListTransactionsRequest, ListTransactionsResponse


def handle(
    request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse | asyncio.Future[ListTransactionsResponse]:
    loaded = context.services.transactions.loaded()
    count = sum(len(shell.shard.state.image.transactions) for shell in loaded)
    return answered(context, _steps(request, context), count)


def _steps(
    request: ListTransactionsRequest, context: RequestContext
) -> Steps[ListTransactionsResponse]:
    transactions = context.services.transactions
    if transactions.is_loading():
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response = ListTransactionsResponse(unknown_state_filters=unknown_states(request))
    for shell in transactions.loaded():
        # At least once: an invalid pattern is refused even by a shard without transactions.
        for portion in portions(shell.shard.state.image.transactions) or [[]]:
            if shell.is_over:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            response.transaction_states += [
                each
                for each in shell.shard.list_transactions(request, shell.now(), portion)
                if context.may_transactional_id(
                    AclOperation.DESCRIBE, each.transactional_id, audited=False
                )
            ]
            yield
    return response
