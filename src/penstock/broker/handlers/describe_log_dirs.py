"""DescribeLogDirs, versions 1 to 4: returns the contents and sizes of this broker's log directory.

There is one directory, and replicas do not move between directories, so there are no future
replicas. No list of topics means all; partitions that are not on this broker are left out. Version
3 added a top-level error code, version 4 the size of the volume and its free space.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse


def handle(
    request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse | asyncio.Future[DescribeLogDirsResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    asked = sum(len(topic.partitions) for topic in request.topics or ())
    count = max(asked, len(context.services.replicas))
    return answered(context, _described(request, context), count)


def _described(
    request: DescribeLogDirsRequest, context: RequestContext
) -> Steps[DescribeLogDirsResponse]:
    services = context.services
    directory = DescribeLogDirsResponse.LogDir(log_dir=services.directory.root)
    try:
        directory.total_bytes = services.env.disk.total_bytes(services.directory.root)
        directory.usable_bytes = services.env.disk.free_bytes(services.directory.root)
    except OSError:
        directory.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        directory.topics = yield from _topics(services, (yield from _wanted(request)))
    return DescribeLogDirsResponse(results=[directory])


def _wanted(request: DescribeLogDirsRequest) -> Steps[set[TopicPartition] | None]:
    if request.topics is None:
        return None
    wanted = set()
    for topic in request.topics:
        for index in topic.partitions:
            wanted.add(TopicPartition(topic.topic, index))
            yield
    return wanted


def _topics(
    services: Services, wanted: set[TopicPartition] | None
) -> Steps[list[DescribeLogDirsResponse.Topic]]:
    topics: dict[str, DescribeLogDirsResponse.Topic] = {}
    for hosted in services.replicas:
        yield
        if wanted is not None and (hosted.topic, hosted.index) not in wanted:
            continue
        topic = topics.setdefault(hosted.topic, DescribeLogDirsResponse.Topic(hosted.topic))
        topic.partitions.append(
            DescribeLogDirsResponse.Partition(
                hosted.index,
                hosted.log.size,
                offset_lag=max(0, hosted.high_watermark - hosted.log.end_offset),
            )
        )
    return list(topics.values())
