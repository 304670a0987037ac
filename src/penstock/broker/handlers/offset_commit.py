"""OffsetCommit, versions 2 to 9: stores how far a group has read.

Offsets for topics that do not exist are refused one by one; the rest are committed. Version 5
removed the retention time from the request, version 6 added the leader epoch, version 7 static
members. Offsets may be committed to the group with the empty name: old consumers that assign
partitions themselves do that.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set
from copy import copy

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import absent_code, ask, forbidden_topics
from penstock.broker.handlers.large_requests import ask_in_portions
from penstock.groups.error_responses import commit_response, refuse
from penstock.groups.limits import COMMIT_BATCHES_MAX, commit_bytes
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import OffsetCommitRequest, OffsetCommitResponse

__all__ = ["handle", "refuse"]


_Asked = list[tuple[str, list[OffsetCommitRequest.Partition]]]


def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    context.require_group(AclOperation.READ, request.group_id)
    if sum(len(topic.partitions) for topic in request.topics) <= context.slicing.elements:
        return _commit(request, context)
    context.is_large = True
    return context.spawn(_commit_in_portions(request, context))


async def _commit_in_portions(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Splits a large commit into several.

    Each offset takes effect by itself. If a commit fails midway, the client's next commit corrects
    it.
    """
    if commit_bytes(request.group_id, request.topics) > _bytes_max(request.group_id, context):
        return commit_response(request, lambda topic, part: ErrorCode.INVALID_COMMIT_OFFSET_SIZE)

    async def ask_some(
        topics: list[OffsetCommitRequest.Topic],
    ) -> list[OffsetCommitResponse.Topic]:
        part = copy(request)
        part.topics = topics
        answer = _commit(part, context)
        return (await answer if isinstance(answer, asyncio.Future) else answer).topics

    topics = await ask_in_portions(request.topics, ask_some, context.slicing)
    return OffsetCommitResponse(topics=topics or [])


def _bytes_max(group_id: str, context: RequestContext) -> int:
    """Returns how many bytes of records one commit may have; unlimited if this broker
    refuses it."""
    try:
        hosted = context.services.groups.require(group_id).hosted
    except KafkaError:
        return sys.maxsize
    return COMMIT_BATCHES_MAX * hosted.settings.max_message_bytes


def _commit(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    asked = [(topic.name, list(topic.partitions)) for topic in request.topics]
    forbidden = forbidden_topics(context, AclOperation.READ, [name for name, _ in asked])
    unknown = _take_unknown(request, context, forbidden)
    answer = ask(
        context, request.group_id, request, lambda shard: shard.offset_commit, nameless=True
    )
    if not unknown:
        committed: OffsetCommitResponse | asyncio.Future[OffsetCommitResponse] = answer
        return committed
    if isinstance(answer, OffsetCommitResponse):
        return _merged(answer, asked, forbidden)
    return context.spawn(_with(answer, asked, forbidden))


async def _with(
    answer: asyncio.Future[OffsetCommitResponse], asked: _Asked, forbidden: Set[str]
) -> OffsetCommitResponse:
    return _merged(await answer, asked, forbidden)


def _merged(
    answer: OffsetCommitResponse, asked: _Asked, forbidden: Set[str]
) -> OffsetCommitResponse:
    """Adds the partitions that were left out because they do not exist or the client may not read
    them, in request order."""
    codes = {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }
    answer.topics = [
        OffsetCommitResponse.Topic(
            name=name,
            partitions=[
                OffsetCommitResponse.Partition(
                    each.partition_index,
                    codes.get((name, each.partition_index), absent_code(name, forbidden)),
                )
                for each in partitions
            ],
        )
        for name, partitions in asked
    ]
    return answer


def _take_unknown(
    request: OffsetCommitRequest, context: RequestContext, forbidden: Set[str]
) -> bool:
    """Removes partitions that do not exist or are forbidden from the request. Returns True if there
    were any."""
    image = context.services.image
    taken = False
    for topic in request.topics:
        known = [
            asked
            for asked in topic.partitions
            if topic.name not in forbidden
            and image.partition(topic.name, asked.partition_index) is not None
        ]
        taken = taken or len(known) != len(topic.partitions)
        topic.partitions = known
    request.topics = [topic for topic in request.topics if topic.partitions]
    return taken
