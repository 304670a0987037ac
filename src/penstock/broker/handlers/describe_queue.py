"""DescribeQueue, version 0: how much a share group has to do in partitions that this broker leads.

This is Penstock's own API. The client needs DESCRIBE on the group and on each topic. `Backlog` are
the records that are not done, `InFlight` those that members have, `Redelivered` those that are not
done and were delivered before. `Scheduled` are about the records with far due times that are not
due yet; they are not in the backlog. `OldestMs` is the timestamp of the oldest record that is not
done, without scheduled ones. -1 means unknown.

If no member of the group has a session here, its state is not in memory. Then nothing is in flight,
and the oldest record is the one at the start offset in the request, which the share coordinator
knows. Other numbers are unknown.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.shares.occupancy import delivered_before, timestamp_at
from penstock.security.acls import AclOperation
from penstock.shares.sessions import SharedPartition
from penstock.shares.spans import Span
from penstock.wire.messages import DescribeQueueRequest, DescribeQueueResponse

_Found = DescribeQueueResponse.Partition


def handle(
    request: DescribeQueueRequest, context: RequestContext
) -> asyncio.Future[DescribeQueueResponse]:
    context.require_group(AclOperation.DESCRIBE, request.group_id)
    asked = sum(len(topic.partitions) for topic in request.topics)
    context.is_large = context.is_large or asked > context.slicing.elements
    return context.spawn(_described(request, context))


async def _described(
    request: DescribeQueueRequest, context: RequestContext
) -> DescribeQueueResponse:
    slices = context.slices()
    response = DescribeQueueResponse()
    for topic in request.topics:
        found = []
        for asked in topic.partitions:
            try:
                found.append(_partition(request.group_id, topic.topic_name, asked, context))
            except EXPECTED_ERRORS as error:
                found.append(_Found(asked.partition_index, code_of(error)))
            await slices.give_way()
        response.topics.append(DescribeQueueResponse.Topic(topic.topic_name, found))
    return response


def _partition(
    group_id: str, topic: str, asked: DescribeQueueRequest.Partition, context: RequestContext
) -> DescribeQueueResponse.Partition:
    context.require_topic(AclOperation.DESCRIBE, topic)
    hosted = context.services.replicas.require(topic, asked.partition_index)
    hosted.require_leader()
    found = _Found(asked.partition_index)
    start, promoted = asked.start_offset, tuple[Span, ...]()
    led = context.services.shares.find(SharedPartition(hosted.topic_id, hosted.index))
    if led is not None and group_id in led.groups:
        partition = led.partition(group_id)
        taken = partition.occupancy()
        start, promoted = partition.start_offset, partition.promoted
        found.backlog = max(0, hosted.high_watermark - start - taken.done) + taken.promoted
        found.scheduled = led.schedules.scheduled(group_id)
        found.in_flight = taken.acquired
        found.redelivered = delivered_before(partition)
    is_left = promoted or max(0, start) < hosted.high_watermark
    if is_left and found.backlog:
        oldest = min((span.first for span in promoted), default=start)
        found.oldest_ms = timestamp_at(hosted, max(oldest, hosted.log.log_start_offset))
    return found
