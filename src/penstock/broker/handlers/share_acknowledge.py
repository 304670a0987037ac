"""ShareAcknowledge, versions 1 and 2: a member says what became of records that it acquired.

The request belongs to the member's share session, and counts its epoch up as ShareFetch does. Epoch
0 is INVALID_SHARE_SESSION_EPOCH, since only ShareFetch begins a session. Epoch -1 ends it, and
releases what the member still holds.

The acknowledgements of a partition succeed or fail together, and are answered when they are
durable. The client needs READ on the group and on each topic. Version 2 added renewals, and the
time for which records are locked. The API is served unless `group.share.enable` is false.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps, in_slices
from penstock.broker.handlers.share_requests import (
    MOVED,
    Outcome,
    acknowledge,
    acks_of,
    add_endpoints,
    current_leader,
    is_large,
    outcomes,
)
from penstock.security.acls import AclOperation
from penstock.shares.sessions import Acknowledgements, Effect, Refuse, SessionKey, SharedPartition
from penstock.wire.errors import KafkaError
from penstock.wire.messages import ShareAcknowledgeRequest, ShareAcknowledgeResponse


def handle(
    request: ShareAcknowledgeRequest, context: RequestContext
) -> asyncio.Future[ShareAcknowledgeResponse]:
    key = SessionKey(request.group_id or "", request.member_id or "")
    context.require_group(AclOperation.READ, key.group_id)
    verdict, later = context.services.shares.on_request(
        Acknowledgements(key, request.share_session_epoch)
    )
    if isinstance(verdict, Refuse):
        raise KafkaError(verdict.error)
    context.is_large = context.is_large or is_large(request, context)
    return context.spawn(_serve(request, context, key, later))


async def _serve(
    request: ShareAcknowledgeRequest,
    context: RequestContext,
    key: SessionKey,
    later: list[Effect],
) -> ShareAcknowledgeResponse:
    slices = context.slices()
    acks = await in_slices(acks_of(request), slices)
    begun = await acknowledge(context, key, acks, is_renew=request.is_renew_ack)
    shares = context.services.shares
    shares.carry_out(later)
    lock_ms = shares.settings_of(key.group_id).record_lock_ms
    return await in_slices(_response(context, await outcomes(begun, slices), lock_ms), slices)


def _response(
    context: RequestContext, found: dict[SharedPartition, Outcome], lock_ms: int
) -> Steps[ShareAcknowledgeResponse]:
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
    topics: dict[bytes, ShareAcknowledgeResponse.TopicResponse] = {}
    leaders: list[int] = []
    for partition, outcome in found.items():
        answer = ShareAcknowledgeResponse.PartitionData(
            partition.partition, outcome.code, outcome.message
        )
        if outcome.code in MOVED:
            leader = current_leader(context, partition)
            answer.current_leader = ShareAcknowledgeResponse.LeaderIdAndEpoch(*leader)
            leaders.append(leader[0])
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = ShareAcknowledgeResponse.TopicResponse(
                partition.topic_id
            )
        topic.partitions.append(answer)
        yield
    response.responses = list(topics.values())
    add_endpoints(response, context, leaders)
    return response
