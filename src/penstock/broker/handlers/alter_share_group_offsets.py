"""AlterShareGroupOffsets, version 0: sets where a share group without members begins to read.

The client needs READ on the group and on the topics. Topics that it may not read are refused one by
one. The group is created if there is none. A large request is carried out in portions: if one
fails, those before it stay, and the client may send the request again.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask, forbidden_topics
from penstock.broker.handlers.large_requests import ask_in_portions
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse

__all__ = ["handle", "refuse"]
_Altered = AlterShareGroupOffsetsResponse


def handle(
    request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> asyncio.Future[AlterShareGroupOffsetsResponse]:
    context.require_group(AclOperation.READ, request.group_id)
    return context.spawn(_altered(request, context))


async def _altered(
    request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    names = [topic.topic_name for topic in request.topics]
    forbidden = forbidden_topics(context, AclOperation.READ, names)
    allowed = [each for each in request.topics if each.topic_name not in forbidden]
    response = AlterShareGroupOffsetsResponse()

    async def ask_some(
        topics: list[AlterShareGroupOffsetsRequest.Topic],
    ) -> list[AlterShareGroupOffsetsResponse.TopicResponse] | None:
        nonlocal response
        some = AlterShareGroupOffsetsRequest(request.group_id, topics)
        answer = ask(context, request.group_id, some, lambda shard: shard.alter_share_offsets)
        response = await answer if isinstance(answer, asyncio.Future) else answer
        return None if response.error_code else response.responses

    if allowed:
        topics = await ask_in_portions(allowed, ask_some, context.slicing)
    else:
        topics = await ask_some(allowed)
    if topics is not None:
        response.responses = topics
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not response.error_code:
        response.responses += [
            _Altered.TopicResponse(
                topic.topic_name,
                partitions=[
                    _Altered.Partition(each.partition_index, code, code.message)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.topic_name in forbidden
        ]
    return response
