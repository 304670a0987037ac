"""ShareGroupHeartbeat, version 1: a member of a share group joins, stays or leaves.

`penstock.groups` implements the rules; the handler checks rights and passes the request to its
shard. The client needs READ on the group and DESCRIBE on every topic that it names: otherwise the
whole request is refused. The API is served unless `group.share.enable` is false.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask, forbidden_topics
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

__all__ = ["handle", "refuse"]


def handle(
    request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
    context.require_group(AclOperation.READ, request.group_id)
    names = request.subscribed_topic_names or []
    forbidden = sorted(forbidden_topics(context, AclOperation.DESCRIBE, names))
    if forbidden:
        return ShareGroupHeartbeatResponse(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=f"The client may not describe {', '.join(forbidden[:10])}.",
        )
    answer: ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse] = ask(
        context, request.group_id, request, lambda shard: shard.share_heartbeat
    )
    return answer
