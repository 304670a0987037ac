"""OffsetForLeaderEpoch, versions 2 to 4: returns where a leader epoch ended (KIP-101, KIP-320)."""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.large_requests import answered
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse


def handle(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse | asyncio.Future[OffsetForLeaderEpochResponse]:
    count = sum(len(topic.partitions) for topic in request.topics)
    return answered(context, _found(request, context), count)


def _found(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> Steps[OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    is_broker = context.may_cluster(AclOperation.CLUSTER_ACTION, audited=False)
    for topic in request.topics:
        answers = OffsetForLeaderEpochResponse.Topic(topic=topic.topic)
        response.topics.append(answers)
        for asked in topic.partitions:
            yield
            answer = OffsetForLeaderEpochResponse.Partition(partition=asked.partition)
            answers.partitions.append(answer)
            try:
                if not is_broker:
                    context.require_topic(AclOperation.DESCRIBE, topic.topic)
                hosted = context.services.replicas.require(topic.topic, asked.partition)
                term = hosted.require_leader(asked.current_leader_epoch)
                end_offset = hosted.log.end_offset
                if asked.leader_epoch == term.epoch:
                    # Known even before the first batch of this leader epoch is written.
                    answer.leader_epoch, answer.end_offset = term.epoch, end_offset
                else:
                    found = hosted.log.epochs.end_offset_for(asked.leader_epoch, end_offset)
                    answer.leader_epoch, answer.end_offset = found
            except EXPECTED_ERRORS as error:
                answer.error_code = code_of(error)
    return response


def refuse(
    request: OffsetForLeaderEpochRequest, version: int, code: ErrorCode
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.Topic(
                topic=topic.topic,
                partitions=[
                    OffsetForLeaderEpochResponse.Partition(
                        partition=asked.partition, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
