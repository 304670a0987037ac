"""ListPartitionReassignments, version 0: the partitions whose replicas are being moved.

`replicas` are the targets and then those that are to go, as the metadata has them. Null topics
stand for all. What is asked for and unknown is left out, as Kafka leaves it out: it is not being
moved either.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.metadata.reassignment import moves_under_way
from penstock.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    asked = None
    if request.topics is not None:
        asked = dict.fromkeys(
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
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
