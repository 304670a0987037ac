"""DeleteRecords, versions 0 to 2: raises the log start offset of partitions.

-1 stands for the high watermark. Offsets above it are refused, since those records are not
committed. An offset below the log start changes nothing. The low watermark in the answer is the
lowest log start of the leader, of all live followers, and of replicas that are down but may lead
next: in sync, or eligible leaders (KIP-966). The request waits for all of these, so that the
records stay deleted whichever replica leads next. Kafka waits for live followers only.
REQUEST_TIMED_OUT means that the records are deleted here, but not everywhere yet. A topic that is
only compacted keeps the last record of every key forever, so deleting by offset violates its
policy. Internal topics are refused.

The new log start is durable on this broker when the answer is sent. The versions differ in their
encoding only.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.log_trimming import trim_log
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.partition.leadership import Leadership
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1
_LOOK_AGAIN_S: Final = 0.02


def handle(
    request: DeleteRecordsRequest, context: RequestContext
) -> asyncio.Future[DeleteRecordsResponse]:
    context.is_large = (
        sum(len(topic.partitions) for topic in request.topics) > context.slicing.elements
    )
    return context.spawn(_run(request, context))


async def _run(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    services = context.services
    deadline = services.env.clock.monotonic() + max(0, request.timeout_ms) / 1000
    response = DeleteRecordsResponse()
    deleted: list[tuple[DeleteRecordsResponse.Partition, HostedPartition, Leadership]] = []
    slices = slices_of(services.env)
    for topic in request.topics:
        answers = DeleteRecordsResponse.Topic(topic.name)
        response.topics.append(answers)
        for asked in topic.partitions:
            answer = DeleteRecordsResponse.Partition(asked.partition_index, _NO_WATERMARK)
            answers.partitions.append(answer)
            await slices.give_way()
            try:
                deleted.append((answer, *await _delete(context, topic.name, asked)))
            except EXPECTED_ERRORS as error:
                answer.error_code = code_of(error)
    for answer, hosted, term in deleted:
        await slices.give_way()
        try:
            answer.low_watermark = await _low_watermark(services, hosted, term, deadline)
        except EXPECTED_ERRORS as error:
            answer.error_code = code_of(error)
    return response


async def _low_watermark(
    services: Services, hosted: HostedPartition, term: Leadership, deadline: float
) -> int:
    """Waits until the log of every replica that is live or may lead next starts where this one
    does. Returns that offset."""
    clock, start = services.env.clock, hosted.log.log_start_offset
    while (low := term.low_watermark(start)) < start:
        if hosted.leadership is not term:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if clock.monotonic() >= deadline:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        await clock.sleep(_LOOK_AGAIN_S)
    return low


async def _delete(
    context: RequestContext, topic: str, asked: DeleteRecordsRequest.Partition
) -> tuple[HostedPartition, Leadership]:
    services = context.services
    context.require_topic(AclOperation.DELETE, topic)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    hosted = services.replicas.require(topic, asked.partition_index)
    term = hosted.require_leader()

    def choose() -> int:
        nonlocal term
        context.require_topic(AclOperation.DELETE, topic)
        term = hosted.require_leader()
        return _checked_offset(hosted, term.high_watermark, asked.offset)

    await trim_log(services.env.executor, services.replicas, hosted, choose)
    return hosted, term


def _checked_offset(hosted: HostedPartition, high_watermark: int, offset: int) -> int:
    if not hosted.settings.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    if offset == _HIGH_WATERMARK:
        return high_watermark
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return offset


def refuse(request: DeleteRecordsRequest, version: int, code: ErrorCode) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.Topic(
                topic.name,
                [
                    DeleteRecordsResponse.Partition(asked.partition_index, _NO_WATERMARK, code)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
