"""ListPartitionReassignments, version 0: the partitions whose replicas are being moved.

Replicas stay where they are here, so there are none. A topic that is asked for and unknown is left
out, as Kafka leaves it out: it is not being moved either.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
