"""EndTxn, versions 0 to 5: commits or aborts a transaction.

It is answered when the decision is committed; the markers are written afterwards. Version 5 belongs
to transaction.version 2: the answer contains the epoch, or the new id, for the producer's next
transaction. A fenced producer gets INVALID_PRODUCER_EPOCH below version 2, and PRODUCER_FENCED from
version 2 on.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.transaction_requests import ask
from penstock.security.acls import AclOperation
from penstock.wire.messages import EndTxnRequest, EndTxnResponse


def handle(
    request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | asyncio.Future[EndTxnResponse]:
    context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
    answer: EndTxnResponse | asyncio.Future[EndTxnResponse] = ask(
        context, request.transactional_id, request, lambda shard: shard.end_txn
    )
    return answer
