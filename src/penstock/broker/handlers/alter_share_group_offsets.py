"""AlterShareGroupOffsets, version 0: sets where a share group without members begins to read.

The client needs READ on the group and on the topics. Topics that it may not read are refused one by
one. The group is created if there is none.

A large request is carried out in portions. If one fails, for example because a member has joined
meanwhile, no more are carried out: their partitions get the error, and those before them keep the
new offsets.
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
    is_begun = False

    async def ask_some(
        topics: list[AlterShareGroupOffsetsRequest.Topic],
    ) -> list[AlterShareGroupOffsetsResponse.TopicResponse] | None:
        nonlocal response, is_begun
        if not response.error_code:
            some = AlterShareGroupOffsetsRequest(request.group_id, topics)
            answer = ask(context, request.group_id, some, lambda shard: shard.alter_share_offsets)
            response = await answer if isinstance(answer, asyncio.Future) else answer
            if not response.error_code:
                is_begun = True
                told: list[AlterShareGroupOffsetsResponse.TopicResponse] = response.responses
                return told
        if not is_begun:
            return None
        code, message = ErrorCode(response.error_code), response.error_message
        return [_refused(topic, code, message) for topic in topics]

    if allowed:
        topics = await ask_in_portions(allowed, ask_some, context.slicing)
    else:
        topics = await ask_some(allowed)
    if topics is None:
        return response
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics += [
        _refused(topic, code, code.message)
        for topic in request.topics
        if topic.topic_name in forbidden
    ]
    return AlterShareGroupOffsetsResponse(responses=topics)


def _refused(
    topic: AlterShareGroupOffsetsRequest.Topic, code: ErrorCode, message: str | None
) -> AlterShareGroupOffsetsResponse.TopicResponse:
    return _Altered.TopicResponse(
        topic.topic_name,
        partitions=[
            _Altered.Partition(each.partition_index, code, message) for each in topic.partitions
        ],
    )
