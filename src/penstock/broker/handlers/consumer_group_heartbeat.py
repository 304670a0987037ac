"""ConsumerGroupHeartbeat, versions 0 and 1: a member of a consumer group joins, stays or leaves.

`penstock.groups` implements the rules; the handler checks rights and passes the request to its
shard. The client needs READ on the group and DESCRIBE on every topic that it names. Topics that
only match its regular expression, and that it may not describe, are left out.

Version 1 added regular expressions, and clients choose their member ids. The API is served
unless `group.coordinator.rebalance.protocols` leaves out `consumer`.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask, forbidden_topics
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

__all__ = ["handle", "refuse"]


def handle(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
    context.require_group(AclOperation.READ, request.group_id)
    names = request.subscribed_topic_names or []
    forbidden = sorted(forbidden_topics(context, AclOperation.DESCRIBE, names))
    if forbidden:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=f"The client may not describe {', '.join(forbidden[:10])}.",
        )
    may_describe = partial(_may_describe, context)
    answer: ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse] = ask(
        context,
        request.group_id,
        request,
        lambda shard: (
            lambda request, info, token, now: shard.consumer_heartbeat(
                request, info, may_describe, token, now
            )
        ),
    )
    return answer


def _may_describe(context: RequestContext, name: str) -> bool:
    return context.may_topic(AclOperation.DESCRIBE, name, audited=False)
