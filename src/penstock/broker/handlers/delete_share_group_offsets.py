"""DeleteShareGroupOffsets, version 0: forgets where a share group without members is in topics.

The client needs DELETE on the group and READ on the topics. Topics that it may not read are refused
one by one.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask, forbidden_topics
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse

__all__ = ["handle", "refuse"]
_Deleted = DeleteShareGroupOffsetsResponse


def handle(
    request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> asyncio.Future[DeleteShareGroupOffsetsResponse]:
    context.require_group(AclOperation.DELETE, request.group_id)
    return context.spawn(_deleted(request, context))


async def _deleted(
    request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    names = [topic.topic_name for topic in request.topics]
    forbidden = forbidden_topics(context, AclOperation.READ, names)
    allowed = DeleteShareGroupOffsetsRequest(
        request.group_id, [each for each in request.topics if each.topic_name not in forbidden]
    )
    answer = ask(
        context,
        request.group_id,
        allowed,
        lambda shard: shard.delete_share_offsets,
        needs=AclOperation.DELETE,
    )
    response: DeleteShareGroupOffsetsResponse
    response = await answer if isinstance(answer, asyncio.Future) else answer
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not response.error_code:
        response.responses += [
            _Deleted.TopicResponse(name, error_code=code, error_message=code.message)
            for name in sorted(forbidden)
        ]
    return response
