"""OffsetDelete, version 0: deletes the offsets that a group committed for the given partitions.

Partitions that do not exist are refused one by one: their offsets were deleted with them. If the
group does not exist or cannot be reached, the error is at the top level, and no topic is listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import absent_code, ask, forbidden_topics
from penstock.broker.handlers.large_requests import ask_in_portions
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation
from penstock.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

__all__ = ["handle", "refuse"]


def handle(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    context.require_group(AclOperation.DELETE, request.group_id)
    if sum(len(topic.partitions) for topic in request.topics) <= context.slicing.elements:
        return _delete(request, context)
    context.is_large = True
    return context.spawn(_delete_in_portions(request, context))


async def _delete_in_portions(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    refused: OffsetDeleteResponse | None = None

    async def ask_some(
        topics: list[OffsetDeleteRequest.Topic],
    ) -> list[OffsetDeleteResponse.Topic] | None:
        nonlocal refused
        answer = _delete(OffsetDeleteRequest(request.group_id, topics), context)
        answer = await answer if isinstance(answer, asyncio.Future) else answer
        refused = answer if answer.error_code else None
        return None if refused else answer.topics

    topics = await ask_in_portions(request.topics, ask_some, context.slicing)
    return refused or OffsetDeleteResponse(topics=topics or [])


def _delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    names = [topic.name for topic in request.topics]
    forbidden = forbidden_topics(context, AclOperation.READ, names)
    answer: OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse] = ask(
        context,
        request.group_id,
        _known(request, context, forbidden),
        lambda shard: shard.offset_delete,
        needs=AclOperation.DELETE,
    )
    if isinstance(answer, OffsetDeleteResponse):
        return _complete(answer, request, forbidden)
    return context.spawn(_completed(answer, request, forbidden))


def _known(
    request: OffsetDeleteRequest, context: RequestContext, forbidden: Set[str]
) -> OffsetDeleteRequest:
    """Returns the request without partitions that do not exist or that the client may not read."""
    image = context.services.image
    return OffsetDeleteRequest(
        request.group_id,
        [
            OffsetDeleteRequest.Topic(
                topic.name,
                [
                    asked
                    for asked in topic.partitions
                    if topic.name not in forbidden
                    and image.partition(topic.name, asked.partition_index) is not None
                ],
            )
            for topic in request.topics
        ],
    )


async def _completed(
    answer: asyncio.Future[OffsetDeleteResponse], request: OffsetDeleteRequest, forbidden: Set[str]
) -> OffsetDeleteResponse:
    return _complete(await answer, request, forbidden)


def _complete(
    answer: OffsetDeleteResponse, request: OffsetDeleteRequest, forbidden: Set[str]
) -> OffsetDeleteResponse:
    """Lists every partition of the request, in order; one without an answer does not exist, or is
    forbidden."""
    if answer.error_code:
        return answer
    codes = {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }
    answer.topics = [
        OffsetDeleteResponse.Topic(
            topic.name,
            [
                OffsetDeleteResponse.Partition(
                    asked.partition_index,
                    codes.get(
                        (topic.name, asked.partition_index), absent_code(topic.name, forbidden)
                    ),
                )
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return answer
