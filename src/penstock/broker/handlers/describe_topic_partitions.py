"""DescribeTopicPartitions, version 0: returns topics with their partitions, in pages (KIP-966).

Without topics in the request, all are returned. They are sorted by name; when the page is full, the
cursor in the answer says where the next one begins. A page has at most 2000 partitions, or fewer if
the client asks for fewer. In addition to what Metadata returns there are the eligible leader
replicas, and always the authorized operations. Before a topic is reported as unknown, the store is
asked for changes (`fresh_topics`). Topics that the client may not describe are left out, or refused
if they are named.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.fresh_topics import with_fresh_topics
from penstock.broker.handlers.large_requests import answered
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import INTERNAL_TOPICS, NO_LEADER, Topic
from penstock.metadata.topics import validate_topic_name
from penstock.security.acls import OPERATIONS_NOT_REQUESTED, AclOperation, ResourceType
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

PARTITIONS_MAX: Final = 2000


def handle(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse | asyncio.Future[DescribeTopicPartitionsResponse]:
    count = len(request.topics) or min(PARTITIONS_MAX, len(context.services.image.topics))
    return with_fresh_topics(
        context,
        (
            topic.name
            for topic in request.topics
            if context.may_topic(AclOperation.DESCRIBE, topic.name, audited=False)
        ),
        lambda: answered(context, _answered(request, context), count),
    )


def _answered(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Steps[DescribeTopicPartitionsResponse]:
    image = context.services.image
    first_topic, first_partition = _start(request)
    names = {topic.name for topic in request.topics} or set(image.topics)
    yield
    response = DescribeTopicPartitionsResponse()
    room = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
    for name in sorted(name for name in names if name >= first_topic):
        yield
        if room == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(name, 0)
            break
        if not context.may_topic(AclOperation.DESCRIBE, name):
            if request.topics:
                response.topics.append(_forbidden(name))
            continue
        operations = context.operations(ResourceType.TOPIC, name)
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name, operations))
            continue
        start = first_partition if name == first_topic else 0
        page = range(len(topic.partitions))[start : start + room]
        response.topics.append(_described(image, topic, page, operations))
        room -= len(page)
        if page.stop < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(name, page.stop)
            break
    return response


def _start(request: DescribeTopicPartitionsRequest) -> tuple[str, int]:
    """Returns where the page begins: a partition of a topic, which may have been deleted since."""
    cursor = request.cursor
    if cursor is None:
        return "", 0
    if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return cursor.topic_name, cursor.partition_index


def _forbidden(name: str) -> DescribeTopicPartitionsResponse.Topic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeTopicPartitionsResponse.Topic(
        code, name, topic_authorized_operations=OPERATIONS_NOT_REQUESTED
    )


def _unknown(name: str, operations: int) -> DescribeTopicPartitionsResponse.Topic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        validate_topic_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponse.Topic(
        code,
        name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )


def _described(
    image: ClusterImage, topic: Topic, page: range, operations: int
) -> DescribeTopicPartitionsResponse.Topic:
    answer = DescribeTopicPartitionsResponse.Topic(
        0,
        topic.name,
        topic.topic_id,
        topic.is_internal,
        topic_authorized_operations=operations,
    )
    alive = image.brokers
    for index in page:
        partition = topic.partitions[index]
        answer.partitions.append(
            DescribeTopicPartitionsResponse.Partition(
                partition_index=index,
                leader_id=partition.leader if partition.leader in alive else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.eligible_leaders),
                last_known_elr=[],
                offline_replicas=[each for each in partition.replicas if each not in alive],
            )
        )
    return answer


def refuse(
    request: DescribeTopicPartitionsRequest, version: int, code: ErrorCode
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponse.Topic(code, topic.name) for topic in request.topics]
    )
