"""ListPartitionReassignments, version 0: lists the partitions whose replicas are being moved.

`replicas` are the target replicas followed by those to be removed, as in the metadata. Null topics
stand for all. A requested partition that is unknown is left out, as in Kafka: it is not being moved
either.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.metadata.reassignment import moves_under_way
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    context.require_cluster(AclOperation.DESCRIBE)
    asked = None
    if request.topics is not None:
        asked = dict.fromkeys(
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        )
    topics: dict[str, ListPartitionReassignmentsResponse.Topic] = {}
    for each in moves_under_way(context.services.image, asked):
        topic = topics.setdefault(each.topic, ListPartitionReassignmentsResponse.Topic(each.topic))
        topic.partitions.append(
            ListPartitionReassignmentsResponse.Partition(
                each.index, list(each.replicas), list(each.adding), list(each.removing)
            )
        )
    return ListPartitionReassignmentsResponse(error_message=None, topics=[*topics.values()])
