"""ListPartitionReassignments, version 0: lists the partitions whose replicas are being moved.

`replicas` are the target replicas followed by those to be removed, as in the metadata. Null topics
stand for all. A requested partition that is unknown is left out, as in Kafka: it is not being moved
either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.metadata.reassignment import move_under_way
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse | asyncio.Future[ListPartitionReassignmentsResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    image = context.services.image
    if request.topics is None:
        asked: list[tuple[str, Sequence[int]]] = [
            (topic.name, range(len(topic.partitions))) for topic in image.topics.values()
        ]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    return answered(context, _listed(asked, context), sum(len(indexes) for _, indexes in asked))


def _listed(
    asked: Sequence[tuple[str, Sequence[int]]], context: RequestContext
) -> Steps[ListPartitionReassignmentsResponse]:
    topics: dict[str, ListPartitionReassignmentsResponse.Topic] = {}
    seen: set[TopicPartition] = set()
    for name, indexes in asked:
        for index in indexes:
            yield
            identity = TopicPartition(name, index)
            moving = move_under_way(context.services.image, identity)
            if moving is None or identity in seen:
                continue
            seen.add(identity)
            topic = topics.setdefault(name, ListPartitionReassignmentsResponse.Topic(name))
            topic.partitions.append(
                ListPartitionReassignmentsResponse.Partition(
                    index, list(moving.replicas), list(moving.adding), list(moving.removing)
                )
            )
    return ListPartitionReassignmentsResponse(error_message=None, topics=[*topics.values()])
