"""OffsetCommit, versions 2 to 9: a group notes how far it has read.

Offsets for topics that do not exist are refused one by one, the rest is committed. Version 5 did
away with a retention of its own, 6 brought the leader epoch, 7 static members. Offsets may be
committed to the group without a name: old consumers that assign partitions themselves do.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import ask
from penstock.groups.refusals import refuse
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetCommitRequest, OffsetCommitResponse

__all__ = ["handle", "refuse"]


_Places = list[tuple[str, list[OffsetCommitRequest.Partition]]]


def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    places = [(topic.name, list(topic.partitions)) for topic in request.topics]
    unknown = _take_unknown(request, context)
    answer = ask(
        context, request.group_id, request, lambda shard: shard.offset_commit, nameless=True
    )
    if not unknown:
        committed: OffsetCommitResponse | asyncio.Future[OffsetCommitResponse] = answer
        return committed
    if isinstance(answer, OffsetCommitResponse):
        return _merged(answer, places)
    return context.spawn(_with(answer, places))


async def _with(
    answer: asyncio.Future[OffsetCommitResponse], places: _Places
) -> OffsetCommitResponse:
    return _merged(await answer, places)


def _merged(answer: OffsetCommitResponse, places: _Places) -> OffsetCommitResponse:
    """One entry per topic in the order of the request; what is not answered has no partition."""
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
                    codes.get((name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                )
                for each in partitions
            ],
        )
        for name, partitions in places
    ]
    return answer


def _take_unknown(request: OffsetCommitRequest, context: RequestContext) -> bool:
    """Take out of the request what is for no partition there is; True if anything was."""
    image = context.services.image
    taken = False
    for topic in request.topics:
        known = [
            asked
            for asked in topic.partitions
            if image.partition(topic.name, asked.partition_index) is not None
        ]
        taken = taken or len(known) != len(topic.partitions)
        topic.partitions = known
    request.topics = [topic for topic in request.topics if topic.partitions]
    return taken
