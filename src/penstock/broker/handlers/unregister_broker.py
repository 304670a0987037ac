"""UnregisterBroker, version 0: removes what is left of a broker that will not return.

Kafka keeps the registration of a broker until this request removes it. Here the registration ends
with the broker's lease, and this request removes the rest (`metadata/departure.py`). It tells an
operator whether a machine can be discarded: it is refused while the broker runs or a partition
depends on it, and BROKER_ID_NOT_REGISTERED means that nothing is left of the broker.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.metadata.departure import forget_broker
from penstock.security.acls import AclOperation
from penstock.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


def handle(
    request: UnregisterBrokerRequest, context: RequestContext
) -> asyncio.Future[UnregisterBrokerResponse]:
    context.require_cluster(AclOperation.ALTER)
    return context.spawn(_run(request, context))


async def _run(
    request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    await context.services.controller.decide(lambda image: forget_broker(image, request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
