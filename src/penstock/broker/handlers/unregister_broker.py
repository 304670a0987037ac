"""UnregisterBroker, version 0: forget a broker that is gone for good.

Kafka keeps the registration of a broker until it is removed by this. Here it goes with the broker's
lease; what is forgotten is the rest (`metadata/departure.py`). So it answers the question of
whoever is about to throw a machine away: it is refused while the broker runs or a partition counts
on it, and BROKER_ID_NOT_REGISTERED means that nothing is left of it.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.metadata.departure import forget_broker
from penstock.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


def handle(
    request: UnregisterBrokerRequest, context: RequestContext
) -> asyncio.Future[UnregisterBrokerResponse]:
    return context.spawn(_run(request, context))


async def _run(
    request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    await context.services.controller.decide(lambda image: forget_broker(image, request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
