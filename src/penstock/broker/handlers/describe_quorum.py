"""DescribeQuorum, versions 0 to 2: describes the metadata store in the terms of Kafka's quorum.

In Kafka, metadata is a log with voters and observers. Here it is a store. For tools, the store's
revision takes the place of that log's offset. The controller, which alone decides, is the only
voter. The other brokers, which follow by their watches, are observers. A broker knows only its own
revision, not how far the others are.

Version 2 also returns the voters' controller endpoints: here that is the broker's own address.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import Controller
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

METADATA_TOPIC: Final = "__cluster_metadata"
_LISTENER: Final = "PLAINTEXT"
_UNKNOWN: Final = -1


def handle(
    request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse | asyncio.Future[DescribeQuorumResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    count = sum(len(topic.partitions) for topic in request.topics)
    return answered(context, _described(request, context), count)


def _described(
    request: DescribeQuorumRequest, context: RequestContext
) -> Steps[DescribeQuorumResponse]:
    response = DescribeQuorumResponse()
    for topic in request.topics:
        described = DescribeQuorumResponse.Topic(topic.topic_name)
        response.topics.append(described)
        for each in topic.partitions:
            described.partitions.append(_answer(topic.topic_name, each.partition_index, context))
            yield
    image = context.services.image
    controller = image.controller
    if context.version >= 2 and controller is not None and controller.broker_id in image.brokers:
        broker = image.brokers[controller.broker_id]
        listener = DescribeQuorumResponse.Listener(_LISTENER, broker.host, broker.port)
        response.nodes = [DescribeQuorumResponse.Node(broker.broker_id, [listener])]
    return response


def _answer(topic: str, index: int, context: RequestContext) -> DescribeQuorumResponse.Partition:
    if (topic, index) != (METADATA_TOPIC, 0):
        return DescribeQuorumResponse.Partition(
            index,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Only {METADATA_TOPIC}-0 has a quorum: ask about that partition.",
        )
    image = context.services.image
    if image.controller is None or image.controller.broker_id not in image.brokers:
        return DescribeQuorumResponse.Partition(
            index,
            ErrorCode.LEADER_NOT_AVAILABLE,
            "There is no controller at the moment. Try again.",
        )
    return _describe(image, image.controller, context.services.config.broker_id)


def _describe(
    image: ClusterImage, controller: Controller, own_id: int
) -> DescribeQuorumResponse.Partition:
    known = (own_id, controller.broker_id)
    states = {
        broker_id: DescribeQuorumResponse.ReplicaState(
            broker_id, log_end_offset=image.revision if broker_id in known else _UNKNOWN
        )
        for broker_id in sorted(image.brokers)
    }
    voter = states.pop(controller.broker_id)
    return DescribeQuorumResponse.Partition(
        0,
        leader_id=controller.broker_id,
        leader_epoch=controller.epoch,
        high_watermark=image.revision,
        current_voters=[voter],
        observers=list(states.values()),
    )
