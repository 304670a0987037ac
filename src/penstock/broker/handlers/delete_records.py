"""DeleteRecords, versions 0 to 2: move the start of partitions up to an offset.

-1 stands for the high watermark; beyond it nothing may be deleted, since it is not committed. An
offset below the start changes nothing. The answer's low watermark is the lowest start of any
replica: until there are followers, this one's. A topic that is compacted only keeps the last
record of every key for ever, so deleting by offset is against its policy. Internal topics are
refused.

The start is durable when the answer leaves. The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition
from penstock.broker.services import Services
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.storage.errors import StorageError
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1
_log = logging.getLogger(__name__)


def handle(
    request: DeleteRecordsRequest, context: RequestContext
) -> asyncio.Future[DeleteRecordsResponse]:
    return context.spawn(_run(request, context.services))


async def _run(request: DeleteRecordsRequest, services: Services) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        answers = DeleteRecordsResponse.Topic(topic.name)
        response.topics.append(answers)
        for asked in topic.partitions:
            answer = DeleteRecordsResponse.Partition(asked.partition_index, _NO_WATERMARK)
            answers.partitions.append(answer)
            try:
                answer.low_watermark = await _delete(services, topic.name, asked)
            except EXPECTED as error:
                answer.error_code = code_of(error)
    return response


async def _delete(services: Services, topic: str, asked: DeleteRecordsRequest.Partition) -> int:
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    hosted = services.replicas.require(topic, asked.partition_index)
    log = hosted.log
    async with services.replicas.flusher.exclusive(log):
        # Only now: while others had the log, its leader or its settings may have changed.
        offset = _checked_offset(hosted, asked.offset)
        segments_before = len(log.segments)
        start = log.delete_before(offset)
        has_waste = len(log.segments) < segments_before
    if has_waste:
        try:
            await services.env.executor.run(log.purge)
        except StorageError as error:
            # The records are gone all the same; the next deletion takes the files along.
            _log.warning("%s-%d: %s", topic, asked.partition_index, error)
    return start


def _checked_offset(hosted: HostedPartition, offset: int) -> int:
    high_watermark = hosted.require_leader().high_watermark
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
