"""DescribeGroups, versions 0 to 6: state and members of some groups.

A group that does not exist is "Dead" up to version 5 and GROUP_ID_NOT_FOUND from 6 on.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.groups.refusals import refuse
from penstock.wire.errors import KafkaError
from penstock.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

__all__ = ["handle", "refuse"]


def handle(request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse()
    for group_id in dict.fromkeys(request.groups):
        try:
            shard = context.services.groups.require(group_id).shard
        except KafkaError as error:
            response.groups.append(
                DescribeGroupsResponse.Group(error_code=error.code, group_id=group_id)
            )
        else:
            response.groups.extend(shard.describe_groups([group_id], context.version))
    return response
