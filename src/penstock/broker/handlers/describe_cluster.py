"""DescribeCluster, versions 0 to 2: returns the cluster's id, its brokers and its controller.

Version 1 can ask for controllers instead of brokers; here every broker may be the controller, and
there is no separate endpoint. Version 2 can ask for fenced brokers too; here a broker is either
registered or gone, so there are none.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.context import RequestContext
from penstock.security.acls import CLUSTER_NAME, OPERATIONS_NOT_REQUESTED, ResourceType
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import DescribeClusterRequest, DescribeClusterResponse

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    _require_brokers(request.endpoint_type)
    image = context.services.image
    controller = image.controller
    known = controller is not None and controller.broker_id in image.brokers
    return DescribeClusterResponse(
        error_message=None,
        cluster_id=image.cluster_id or "",
        controller_id=controller.broker_id if controller is not None and known else -1,
        brokers=[
            DescribeClusterResponse.Broker(broker.broker_id, *endpoint, broker.rack)
            for broker in image.brokers.values()
            if (endpoint := broker.endpoint(context.identity.listener)) is not None
        ],
        cluster_authorized_operations=(
            context.operations(ResourceType.CLUSTER, CLUSTER_NAME)
            if request.include_cluster_authorized_operations
            else OPERATIONS_NOT_REQUESTED
        ),
    )


def _require_brokers(endpoint_type: int) -> None:
    if endpoint_type == _CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request asks for controllers, and this is a broker: connect with "
            "bootstrap.servers instead; any broker may be the controller.",
        )
    if endpoint_type != _BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Endpoint type {endpoint_type} is unknown: use 1 (brokers).",
        )
