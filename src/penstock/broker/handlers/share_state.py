"""ShareState, version 0: brokers ask the share coordinator, many share partitions at a time.

This is Penstock's own API, between brokers. It needs CLUSTER_ACTION. Kafka's APIs for the same
(keys 83 to 87) are not served. Each operation has a result of its own, in the same order; the
response is sent when all of them are durable or refused. NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS and COORDINATOR_NOT_AVAILABLE mean that a change was not stored.
REQUEST_TIMED_OUT means that it is unknown whether it was.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.context import RequestContext
from penstock.broker.coordinators.share_state_messages import request_of, result_of
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.security.acls import AclOperation
from penstock.shares.state_requests import StateAnswer
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ShareStateRequest, ShareStateResponse

_log = logging.getLogger(__name__)


def handle(
    request: ShareStateRequest, context: RequestContext
) -> asyncio.Future[ShareStateResponse]:
    context.require_cluster(AclOperation.CLUSTER_ACTION)
    context.is_large = len(request.operations) > context.slicing.elements
    return context.spawn(_run(request, context))


async def _run(request: ShareStateRequest, context: RequestContext) -> ShareStateResponse:
    slices = context.slices()
    answers: list[StateAnswer | asyncio.Future[StateAnswer]] = []
    for operation in request.operations:
        try:
            answers.append(context.services.share_coordinator.ask(request_of(operation)))
        except ProtocolError as error:
            _log.warning(
                "%s sent a damaged request for the state of a share group: %s",
                context.identity.host,
                error,
            )
            answers.append(StateAnswer(ErrorCode.INVALID_REQUEST))
        except EXPECTED_ERRORS as error:
            answers.append(StateAnswer(code_of(error)))
        await slices.give_way()
    response = ShareStateResponse()
    for answer in answers:
        try:
            settled = await answer if isinstance(answer, asyncio.Future) else answer
        except EXPECTED_ERRORS as error:
            settled = StateAnswer(code_of(error))
        response.results.append(result_of(settled))
        await slices.give_way()
    return response
