"""OffsetCommit, versions 2 to 9: a group notes how far it has read.

Offsets for topics that do not exist are refused one by one, the rest is committed. Version 5 did
away with a retention of its own, 6 brought the leader epoch, 7 static members.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetCommitRequest, OffsetCommitResponse

__all__ = ["handle", "refuse"]


def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    unknown = _take_unknown(request, context)
    answer = ask(context, request.group_id, request, lambda shard: shard.offset_commit)
    if not unknown:
        committed: OffsetCommitResponse | asyncio.Future[OffsetCommitResponse] = answer
        return committed
    if isinstance(answer, OffsetCommitResponse):
        answer.topics.extend(unknown)
        return answer
    return context.spawn(_with(answer, unknown))


async def _with(
    answer: asyncio.Future[OffsetCommitResponse], unknown: list[OffsetCommitResponse.Topic]
) -> OffsetCommitResponse:
    response = await answer
    response.topics.extend(unknown)
    return response


def _take_unknown(
    request: OffsetCommitRequest, context: RequestContext
) -> list[OffsetCommitResponse.Topic]:
    """Take out of the request what is for no partition there is, as its part of the answer."""
    image = context.services.image
    refused: list[OffsetCommitResponse.Topic] = []
    for topic in request.topics:
        missing = [
            asked
            for asked in topic.partitions
            if image.partition(topic.name, asked.partition_index) is None
        ]
        if not missing:
            continue
        topic.partitions = [asked for asked in topic.partitions if asked not in missing]
        refused.append(
            OffsetCommitResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.Partition(
                        asked.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    for asked in missing
                ],
            )
        )
    request.topics = [topic for topic in request.topics if topic.partitions]
    return refused
