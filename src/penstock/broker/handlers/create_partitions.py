"""CreatePartitions, versions 0 to 3: adds partitions to topics, each topic with its own result.

`count` is the new total; a value that is not larger than the current one is INVALID_PARTITIONS. The
client may assign the replicas of the new partitions; otherwise placement continues after the
existing ones. Every topic is answered; one that is named twice is refused, and answered once. The
versions differ in their encoding only.

Internal topics are refused: the number of partitions of `__consumer_offsets` determines which one
holds a group, and groups would no longer find their offsets. Kafka leaves that check to its tools.

From version 3 on, a client over its `controller_mutation_rate` gets THROTTLING_QUOTA_EXCEEDED for
each topic. Older clients are only throttled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.admin_requests import (
    Make,
    charged,
    decide_each,
    error_of,
    repeated,
)
from penstock.broker.handlers.large_requests import one_by_one
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import INTERNAL_TOPICS, Topic
from penstock.metadata.topics import create_partitions
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

_REFUSED_SINCE: Final = 3
"""From this version on, clients know THROTTLING_QUOTA_EXCEEDED."""


def handle(
    request: CreatePartitionsRequest, context: RequestContext
) -> asyncio.Future[CreatePartitionsResponse]:
    return context.spawn(_run(request, context))


async def _run(
    request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    slices = context.slices()
    context.is_large = context.is_large or len(request.topics) > context.slicing.elements
    twice = repeated(topic.name for topic in request.topics)
    await slices.give_way()
    wanted = {topic.name: topic for topic in request.topics}
    makes = await one_by_one(
        lambda topic: _maker(topic, topic.name in twice, context), wanted.values(), slices
    )
    made = await decide_each(context, makes, validate_only=request.validate_only)
    outcomes = zip(wanted, made, strict=True)
    results = await one_by_one(lambda each: _answer(*each), outcomes, slices)
    return CreatePartitionsResponse(results=results)


def _answer(name: str, outcome: Topic | Exception) -> CreatePartitionsResponse.Topic:
    answer = CreatePartitionsResponse.Topic(name)
    if isinstance(outcome, Exception):
        answer.error_code, answer.error_message = error_of(outcome)
    return answer


def _maker(
    topic: CreatePartitionsRequest.Topic, twice: bool, context: RequestContext
) -> Make[Topic]:
    assigned = topic.assignments
    replicas = None if assigned is None else [each.broker_ids for each in assigned]

    def make(image: ClusterImage) -> Decision[Topic]:
        if twice:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The request names the topic '{topic.name}' more than once.",
            )
        context.require_topic(AclOperation.ALTER, topic.name)
        if topic.name in INTERNAL_TOPICS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{topic.name}' is internal: its number of partitions cannot change, "
                "because it determines the coordinators of groups and transactions.",
            )
        return create_partitions(image, topic.name, topic.count, replicas)

    return charged(context, make, _count_added, _REFUSED_SINCE)


def _count_added(topic: Topic, image: ClusterImage) -> int:
    return len(topic.partitions) - len(image.require_topic(topic.name).partitions)


def refuse(
    request: CreatePartitionsRequest, version: int, code: ErrorCode
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponse.Topic(name, code, code.message)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ]
    )
