"""ListGroups, versions 0 to 5: the groups that this broker looks after.

Version 4 filters by state, 5 by type.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    groups = context.services.groups
    response = ListGroupsResponse()
    if groups.is_loading():
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for runtime in groups.loaded():
        response.groups.extend(
            runtime.shard.list_groups(request.states_filter, request.types_filter)
        )
    return response
