"""Metadata, versions 0 to 13: brokers, and the leaders of some or all topics.

No list means all topics; in version 0, which cannot say that, an empty one does. Topics that are
missing are created if the broker allows it and, from version 4 on, the client asks for it; the
answer then says so with a retriable code and the client comes again. From version 10 on topics
have ids, and from 12 on may be asked for by id.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.creation import create_missing
from penstock.metadata.model import NO_LEADER, Topic
from penstock.metadata.topic_ids import ZERO_ID
from penstock.metadata.topics import validate_topic_name
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import MetadataRequest, MetadataResponse


def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    services = context.services
    image = services.image
    response = MetadataResponse(
        brokers=[
            MetadataResponse.Broker(broker.broker_id, broker.host, broker.port, broker.rack)
            for broker in image.brokers.values()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker_id if image.controller is not None else -1,
    )
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        alive = frozenset(image.brokers)
        response.topics = [_topic(topic, alive) for topic in image.topics.values()]
        return response
    may_create = services.configs().bool_value("auto.create.topics.enable") and (
        context.version < 4 or request.allow_auto_topic_creation
    )
    seen: set[tuple[str | None, bytes]] = set()
    for wanted in asked:
        # Asked for twice is answered once: a small request must not make a huge answer.
        if (wanted.name, wanted.topic_id) not in seen:
            seen.add((wanted.name, wanted.topic_id))
            response.topics.append(_answer(wanted, context, may_create))
    return response


def _answer(
    wanted: MetadataRequest.Topic, context: RequestContext, may_create: bool
) -> MetadataResponse.Topic:
    image = context.services.image
    alive = frozenset(image.brokers)
    if wanted.topic_id != ZERO_ID:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is None:
            # Before version 12 a name cannot be missing.
            name = None if context.version >= 12 else ""
            return MetadataResponse.Topic(ErrorCode.UNKNOWN_TOPIC_ID, name, wanted.topic_id)
        return _topic(topic, alive)
    asked = wanted.name or ""
    topic = image.topics.get(asked)
    if topic is not None:
        return _topic(topic, alive)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        validate_topic_name(asked)
        if may_create:
            create_missing(context.services, asked)
            code = ErrorCode.LEADER_NOT_AVAILABLE
    except KafkaError as error:
        code = error.code
    return MetadataResponse.Topic(code, asked)


def _topic(topic: Topic, alive: frozenset[int]) -> MetadataResponse.Topic:
    partitions = []
    for index, partition in enumerate(topic.partitions):
        gone = [replica for replica in partition.replicas if replica not in alive]
        leaderless = partition.leader == NO_LEADER or partition.leader not in alive
        partitions.append(
            MetadataResponse.Partition(
                ErrorCode.LEADER_NOT_AVAILABLE if leaderless else 0,
                index,
                partition.leader,
                partition.leader_epoch,
                list(partition.replicas),
                list(partition.isr),
                gone,
            )
        )
    return MetadataResponse.Topic(0, topic.name, topic.topic_id, topic.is_internal, partitions)
