"""Metadata, versions 0 to 13: returns the brokers, and the leaders of some or all topics.

A null list means all topics; in version 0, which has no null, an empty list does. Missing topics
are created if the broker allows it and, from version 4 on, the client asks for it. The answer is
UNKNOWN_TOPIC_OR_PARTITION, as in Kafka 4, and the client asks again. Before a topic counts as
missing, the store is asked for changes (`fresh_topics`). From version 10 on topics have ids, and
from version 12 on a request can name them by id; in the versions between, a request by id is
refused as a whole. From version 8 on a client can ask for the operations it may perform.

A topic that the client may not describe is left out of a list of all topics. If the client names
it, the answer is the same whether or not it exists, and the store is not asked for changes either:
the time must not show the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from penstock.broker.access.authorization import fenced_code
from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.fresh_topics import with_fresh_topics
from penstock.broker.handlers.large_requests import answered
from penstock.broker.handlers.topic_creation import create_missing
from penstock.metadata.model import NO_LEADER, Topic
from penstock.metadata.topic_ids import ZERO_ID
from penstock.metadata.topics import validate_topic_name
from penstock.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from penstock.security.listeners import missing_endpoint_error
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import MetadataRequest, MetadataResponse

_IDS_SINCE = 12
_CODE_SINCE = 13
_PARTITIONS_PER_STEP = 100
_FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_OPERATIONS = (ErrorCode.UNKNOWN_TOPIC_ID, _FORBIDDEN)
"""Topics with these errors get no authorized operations, as in Kafka."""


def handle(
    request: MetadataRequest, context: RequestContext
) -> MetadataResponse | asyncio.Future[MetadataResponse]:
    asked = request.topics or []
    if context.services.authorization.is_fenced_for(context.identity):
        return _fenced(request, context)
    # The others are refused. The time that this takes must not tell whether they exist.
    names = [
        each.name
        for each in asked
        if each.name is not None
        and context.may_topic(AclOperation.DESCRIBE, each.name, audited=False)
    ]
    count = _count(request, names, context)
    context.is_large = count > context.slicing.elements
    return with_fresh_topics(
        context,
        names,
        lambda: answered(context, _answered(request, context), count),
        [each.topic_id for each in asked],
    )


def _count(request: MetadataRequest, names: list[str], context: RequestContext) -> int:
    """Returns how many topics and partitions are requested. `names` are the topics that the client
    may see."""
    topics = context.services.image.topics
    if request.topics is None:
        return sum(1 + len(topic.partitions) for topic in topics.values())
    known = map(topics.get, names)
    return len(request.topics) + sum(len(topic.partitions) for topic in known if topic is not None)


def _answered(request: MetadataRequest, context: RequestContext) -> Steps[MetadataResponse]:
    response = yield from _handled(request, context)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations(
            ResourceType.CLUSTER, CLUSTER_NAME
        )
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.error_code not in _NO_OPERATIONS and topic.name is not None:
                topic.topic_authorized_operations = context.operations(
                    ResourceType.TOPIC, topic.name
                )
    return response


def _fenced(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Answers for a broker that may not decide what the client may see (`access.authorization`).

    The brokers are listed, so that the client can ask another one. For a request of all topics
    there is no such answer: an empty list would say that there are no topics, and clients ignore
    the error code that version 13 has for the whole response. So the connection is closed, and the
    client asks another broker, or this one again.
    """
    if request.topics is None or (context.version == 0 and not request.topics):
        raise ProtocolError(
            "this broker cannot list the topics that the client may see, because it is not sure "
            "that it has the current ACLs; the client asks again"
        )
    response = refuse(request, context.version, fenced_code(context.api_key))
    response.brokers = _brokers(context.services, context.identity.listener)
    response.cluster_id = context.services.image.cluster_id
    response.controller_id = _controller_id(context.services, response.brokers)
    return response


def _handled(request: MetadataRequest, context: RequestContext) -> Steps[MetadataResponse]:
    services = context.services
    image = services.image
    brokers = _brokers(services, context.identity.listener)
    response = MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=_controller_id(services, brokers),
    )
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        reach = _reach(context)
        for topic in list(image.topics.values()):
            if not context.may_topic(AclOperation.DESCRIBE, topic.name, audited=False):
                continue
            response.topics.append((yield from _topic(topic, reach)))
        return response
    if context.version < _IDS_SINCE and any(
        each.name is None or each.topic_id != ZERO_ID for each in asked
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    may_create = services.configs().bool_value("auto.create.topics.enable") and (
        context.version < 4 or request.allow_auto_topic_creation
    )
    seen: set[tuple[str | None, bytes]] = set()
    for wanted in asked:
        # A topic that is named twice is answered once: a small request must not cause a huge
        # response.
        if (wanted.name, wanted.topic_id) not in seen:
            seen.add((wanted.name, wanted.topic_id))
            response.topics.append((yield from _answer(wanted, context, may_create)))
    return response


def _brokers(services: Services, listener: str) -> list[MetadataResponse.Broker]:
    """Returns the registered brokers that have the listener, or only this one while none is
    registered.

    That is the case after an outage of the store during which all sessions ended. librdkafka drops
    brokers that are not listed, and after an empty list it never asks any broker again.
    """
    registered = services.image.brokers.values()
    if not registered and (own := services.endpoint) is not None:
        own_id = services.config.broker_id
        address = own.address(listener) or (own.host, own.port)
        return [MetadataResponse.Broker(own_id, *address, own.rack)]
    return [
        MetadataResponse.Broker(broker.broker_id, *endpoint, broker.rack)
        for broker in registered
        if (endpoint := broker.endpoint(listener)) is not None
    ]


class _Reach(NamedTuple):
    """The brokers that are alive, and those of them that the client can connect to."""

    alive: frozenset[int]
    reachable: frozenset[int]
    unreachable_code: ErrorCode
    """The error of a partition whose leader does not have the listener of the request."""


def _reach(context: RequestContext) -> _Reach:
    brokers, listener = context.services.image.brokers, context.identity.listener
    reachable = frozenset(
        broker.broker_id for broker in brokers.values() if broker.endpoint(listener) is not None
    )
    return _Reach(frozenset(brokers), reachable, missing_endpoint_error(context.version))


def _controller_id(services: Services, brokers: Collection[MetadataResponse.Broker]) -> int:
    """Returns the broker to send controller requests to: the controller, else this broker.

    Any broker accepts these requests. Without an id, librdkafka would wait until it next refreshes
    its metadata.
    """
    image, own_id = services.image, services.config.broker_id
    if image.controller is not None and image.controller.broker_id in image.brokers:
        return image.controller.broker_id
    return own_id if any(broker.node_id == own_id for broker in brokers) else -1


def _answer(
    wanted: MetadataRequest.Topic, context: RequestContext, may_create: bool
) -> Steps[MetadataResponse.Topic]:
    image = context.services.image
    if wanted.topic_id != ZERO_ID:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is None:
            return MetadataResponse.Topic(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
        if not context.may_topic(AclOperation.DESCRIBE, topic.name):
            return MetadataResponse.Topic(_FORBIDDEN, None, wanted.topic_id)
        return (yield from _topic(topic, _reach(context)))
    asked = wanted.name or ""
    if not context.may_topic(AclOperation.DESCRIBE, asked):
        return MetadataResponse.Topic(_FORBIDDEN, asked)
    topic = image.topics.get(asked)
    if topic is not None:
        return (yield from _topic(topic, _reach(context)))
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        validate_topic_name(asked)
        if may_create:
            if not context.may_cluster(AclOperation.CREATE, audited=False):
                context.require_topic(AclOperation.CREATE, asked)
            create_missing(context, asked)
    except KafkaError as error:
        code = error.code
    return MetadataResponse.Topic(code, asked)


def _topic(topic: Topic, reach: _Reach) -> Steps[MetadataResponse.Topic]:
    partitions = []
    alive = reach.alive
    yield
    for index, partition in enumerate(topic.partitions):
        gone = [replica for replica in partition.replicas if replica not in alive]
        code = ErrorCode.NONE
        if partition.leader == NO_LEADER or partition.leader not in alive:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        elif partition.leader not in reach.reachable:
            code = reach.unreachable_code
        partitions.append(
            MetadataResponse.Partition(
                code,
                index,
                NO_LEADER if code else partition.leader,
                partition.leader_epoch,
                list(partition.replicas),
                list(partition.isr),
                gone,
            )
        )
        if index % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
    return MetadataResponse.Topic(0, topic.name, topic.topic_id, topic.is_internal, partitions)


def refuse(request: MetadataRequest, version: int, code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponse.Topic(
                code,
                # Before version 12 the name cannot be null.
                each.name if each.name is not None or version >= _IDS_SINCE else "",
                each.topic_id,
            )
            for each in request.topics or []
        ],
        error_code=code if version >= _CODE_SINCE else ErrorCode.NONE,
    )
