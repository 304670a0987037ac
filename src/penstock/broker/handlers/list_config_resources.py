"""ListConfigResources, versions 0 and 1: lists everything that DescribeConfigs can describe.

Version 0, once named ListClientMetricsResources, lists client metrics only, and there are none. In
version 1 the client names the types of resources, or none for all (KIP-1142): topics, brokers and
their loggers, groups with configs of their own. A type that Kafka does not list is
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.broker.context import RequestContext
from penstock.metadata.config_changes import ResourceType
from penstock.metadata.image import ClusterImage
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

_TYPES_SINCE: Final = 1


def handle(
    request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    context.require_cluster(AclOperation.DESCRIBE_CONFIGS)
    if context.version < _TYPES_SINCE:
        return ListConfigResourcesResponse()
    wanted = dict.fromkeys(request.resource_types) or list(ResourceType)
    if any(each not in tuple(ResourceType) for each in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(name, kind)
            for kind in wanted
            for name in _names(ResourceType(kind), context.services.image)
        ]
    )


def _names(kind: ResourceType, image: ClusterImage) -> Iterable[str]:
    if kind is ResourceType.TOPIC:
        return image.topics
    if kind is ResourceType.GROUP:
        return image.group_configs
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, image.brokers)
    return ()
