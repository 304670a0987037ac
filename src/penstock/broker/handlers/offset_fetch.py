"""OffsetFetch, versions 1 to 9: returns committed offsets of a group, from version 8 on of several.

From version 2 on a client can ask for all topics, and there is a top-level error code. From version
7 on it can require stable offsets: partitions with offsets in open transactions get an error.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.group_requests import forbidden_topics
from penstock.groups.error_responses import refuse, refused_offsets
from penstock.groups.offset_fetch import groups_of, response_steps
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.messages.base import Response

__all__ = ["handle", "refuse"]


def handle(
    request: OffsetFetchRequest, context: RequestContext
) -> Response | asyncio.Future[Response]:
    names = [
        group.group_id
        for group in groups_of(request, context.version)
        if context.may_group(AclOperation.DESCRIBE, group.group_id)
    ]
    if not names:
        return refuse(request, context.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    context.is_large = _count(request, context) > context.slicing.elements
    return context.services.groups.confirmed(names, lambda: _answer(request, context))


def _count(request: OffsetFetchRequest, context: RequestContext) -> int:
    """Returns roughly how many offsets are requested; a group that is not here counts as none."""
    count = 0
    for group in groups_of(request, context.version):
        if group.topics is not None:
            count += sum(len(topic.partition_indexes) for topic in group.topics)
            continue
        with suppress(KafkaError):
            image = context.services.groups.require(group.group_id).shard.state.image
            count += len(image.offsets_of(group.group_id))
    return count


def _answer(request: OffsetFetchRequest, context: RequestContext) -> Steps[OffsetFetchResponse]:
    answers = []
    for group in groups_of(request, context.version):
        try:
            context.require_group(AclOperation.DESCRIBE, group.group_id)
            shard = context.services.groups.require(group.group_id).shard
        except KafkaError as error:
            if context.version < 8:
                refused = refuse(request, context.version, error.code)
                if isinstance(refused, OffsetFetchResponse):
                    return refused
                raise
            answers.append(refused_offsets(group, error.code))
        else:
            fetched = shard.offset_fetch_steps(group, require_stable=request.require_stable)
            answer = yield from fetched
            _hide_topics(answer, context, is_all=group.topics is None)
            answers.append(answer)
    return (yield from response_steps(answers, context.version))


def _hide_topics(
    answer: OffsetFetchResponse.Group, context: RequestContext, *, is_all: bool
) -> None:
    """Removes the offsets of topics that the client may not describe.

    Topics that the client named are refused. If it asked for all, they are left out.
    """
    names = [topic.name for topic in answer.topics]
    forbidden = forbidden_topics(context, AclOperation.DESCRIBE, names)
    if not forbidden:
        return
    if is_all:
        answer.topics = [topic for topic in answer.topics if topic.name not in forbidden]
        return
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for topic in answer.topics:
        if topic.name in forbidden:
            topic.partitions = [
                OffsetFetchResponse.GroupPartition(each.partition_index, -1, -1, "", code)
                for each in topic.partitions
            ]
