"""DescribeGroups, versions 0 to 6: returns the state and members of the given groups.

A group that does not exist is "Dead" up to version 5 and GROUP_ID_NOT_FOUND from version 6 on. From
version 3 on a client can ask which operations it may perform on the groups.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered
from penstock.groups.error_responses import refuse
from penstock.security.acls import AclOperation, ResourceType
from penstock.wire.errors import KafkaError
from penstock.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

__all__ = ["handle", "refuse"]


def handle(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse | asyncio.Future[DescribeGroupsResponse]:
    return answered(context, _described(request, context), len(request.groups))


def _described(
    request: DescribeGroupsRequest, context: RequestContext
) -> Steps[DescribeGroupsResponse]:
    response = DescribeGroupsResponse()
    for group_id in dict.fromkeys(request.groups):
        yield
        try:
            context.require_group(AclOperation.DESCRIBE, group_id)
            shard = context.services.groups.require(group_id).shard
        except KafkaError as error:
            response.groups.append(
                DescribeGroupsResponse.Group(error_code=error.code, group_id=group_id)
            )
        else:
            (group,) = shard.describe_groups([group_id], context.version)
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = context.operations(ResourceType.GROUP, group_id)
            response.groups.append(group)
    return response
