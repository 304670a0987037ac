"""EndTxn, versions 0 to 5: commit a transaction, or abort it.

Answered when the decision is committed; the markers follow. Version 5 belongs to
transaction.version 2: the answer holds the epoch, or the new id, that the producer's next
transaction runs under. Below version 2 a fenced producer is told INVALID_PRODUCER_EPOCH, later
PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.transaction_requests import ask
from penstock.wire.messages import EndTxnRequest, EndTxnResponse


def handle(
    request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | asyncio.Future[EndTxnResponse]:
    answer: EndTxnResponse | asyncio.Future[EndTxnResponse] = ask(
        context, request.transactional_id, request, lambda shard: shard.end_txn
    )
    return answer
