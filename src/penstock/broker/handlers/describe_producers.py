"""DescribeProducers, version 0: returns the producers that a partition's log remembers (KIP-664).

These are the idempotent producers, each with the last sequence that it wrote and the start of its
open transaction, if there is one: this helps to find out why the last stable offset does not
advance. Any replica answers, from its own log; clients ask the leader unless they name a broker.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.handlers.admin_requests import error_of
from penstock.broker.handlers.large_requests import answered
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeProducersRequest, DescribeProducersResponse


def handle(
    request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse | asyncio.Future[DescribeProducersResponse]:
    count = sum(len(topic.partition_indexes) for topic in request.topics)
    return answered(context, _described(request, context), count)


def _described(
    request: DescribeProducersRequest, context: RequestContext
) -> Steps[DescribeProducersResponse]:
    response = DescribeProducersResponse()
    for topic in request.topics:
        answers = DescribeProducersResponse.Topic(topic.name)
        response.topics.append(answers)
        for index in topic.partition_indexes:
            yield
            answer = DescribeProducersResponse.Partition(index)
            answers.partitions.append(answer)
            try:
                context.require_topic(AclOperation.READ, topic.name)
                hosted = context.services.replicas.require(topic.name, index)
                hosted.require_log()
                answer.active_producers = _producers(hosted)
            except EXPECTED_ERRORS as error:
                answer.error_code, answer.error_message = error_of(error)
    return response


def _producers(hosted: HostedPartition) -> list[DescribeProducersResponse.Producer]:
    return [
        DescribeProducersResponse.Producer(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_transaction_first_offset,
        )
        for entry in hosted.log.producers.entries()
    ]


def refuse(
    request: DescribeProducersRequest, version: int, code: ErrorCode
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.Topic(
                topic.name,
                [
                    DescribeProducersResponse.Partition(index, code, code.message)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )
