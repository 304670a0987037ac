"""DescribeShareGroupOffsets, versions 0 and 1: where share groups are in their partitions.

The client needs DESCRIBE on the group and on the topics; null topics ask for all that it may
describe. A partition that the group has not read yet has the start offset -1. Version 1 added the
lag: how many records are not done. It is -1 if this broker does not lead the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.broker.context import RequestContext
from penstock.broker.handlers.group_requests import forbidden_topics
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.error_responses import refuse
from penstock.metadata.model import Topic
from penstock.security.acls import AclOperation
from penstock.shares.state_port import StateSummary
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)

__all__ = ["handle", "refuse"]
_Asked = DescribeShareGroupOffsetsRequest
_Found = DescribeShareGroupOffsetsResponse
_NO_ID = bytes(16)
_UNKNOWN = -1


def handle(
    request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> asyncio.Future[DescribeShareGroupOffsetsResponse]:
    return context.spawn(_described(request, context))


async def _described(
    request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    response = _Found()
    for asked in request.groups:
        try:
            context.require_group(AclOperation.DESCRIBE, asked.group_id)
            group = await _described_group(asked, context)
        except KafkaError as error:
            group = _Found.Group(
                group_id=asked.group_id, error_code=error.code, error_message=error.message
            )
        response.groups.append(group)
    return response


async def _described_group(
    asked: DescribeShareGroupOffsetsRequest.Group, context: RequestContext
) -> DescribeShareGroupOffsetsResponse.Group:
    shard = context.services.groups.require(asked.group_id).shard
    held = shard.share_partitions(asked.group_id)
    wanted: Iterable[tuple[str, Iterable[int]]]
    if asked.topics is None:
        image = context.services.image
        topics = ((image.topic_by_id(topic_id), indexes) for topic_id, indexes in held.items())
        named = {topic.name: sorted(indexes) for topic, indexes in topics if topic is not None}
        hidden = forbidden_topics(context, AclOperation.DESCRIBE, named)
        wanted = [(name, indexes) for name, indexes in named.items() if name not in hidden]
        forbidden: set[str] = set()
    else:
        wanted = [(topic.topic_name, topic.partitions) for topic in asked.topics]
        names = [topic.topic_name for topic in asked.topics]
        forbidden = set(forbidden_topics(context, AclOperation.DESCRIBE, names))
    group = _Found.Group(group_id=asked.group_id)
    for name, indexes in wanted:
        topic = context.services.image.topics.get(name)
        if topic is None or name in forbidden:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name in forbidden:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused = [_refused(index, code, code.message) for index in indexes]
            group.topics.append(_Found.Topic(name, _NO_ID, refused))
        else:
            found = await _partitions(context, asked.group_id, topic, list(indexes), held)
            group.topics.append(_Found.Topic(name, topic.topic_id, found))
    return group


async def _partitions(
    context: RequestContext,
    group_id: str,
    topic: Topic,
    indexes: list[int],
    held: dict[bytes, frozenset[int]],
) -> list[DescribeShareGroupOffsetsResponse.Partition]:
    known = held.get(topic.topic_id, frozenset())
    asked = [TopicIdPartition(topic.topic_id, each) for each in indexes if each in known]
    summaries = await context.services.groups.share_calls.summaries(group_id, asked)
    by_index = {about.partition: each for about, each in zip(asked, summaries, strict=True)}
    return [_described_one(context, topic.name, each, by_index.get(each)) for each in indexes]


def _described_one(
    context: RequestContext, topic: str, index: int, summary: StateSummary | KafkaError | None
) -> DescribeShareGroupOffsetsResponse.Partition:
    if isinstance(summary, KafkaError):
        return _refused(index, summary.code, summary.message)
    if summary is None:
        return _Found.Partition(index, _UNKNOWN, 0)
    lag = _UNKNOWN
    hosted = context.services.replicas.get(topic, index)
    if hosted is not None and hosted.leadership and summary.start_offset >= 0:
        lag = max(0, hosted.high_watermark - summary.start_offset - summary.done)
    return _Found.Partition(index, summary.start_offset, summary.leader_epoch, lag)


def _refused(
    index: int, code: ErrorCode, message: str | None
) -> DescribeShareGroupOffsetsResponse.Partition:
    return _Found.Partition(
        partition_index=index,
        start_offset=_UNKNOWN,
        error_code=code,
        error_message=message,
    )
