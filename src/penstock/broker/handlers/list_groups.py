"""ListGroups, versions 0 to 5: lists the groups that this broker coordinates.

Version 4 can filter by state, version 5 by type. Groups that the client may not describe are left
out.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Steps
from penstock.broker.handlers.large_requests import answered, portions
from penstock.security.acls import AclOperation
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ListGroupsRequest, ListGroupsResponse


def handle(
    request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse | asyncio.Future[ListGroupsResponse]:
    count = sum(len(shell.shard.group_ids()) for shell in context.services.groups.loaded())
    return answered(context, _steps(request, context), count)


def _steps(request: ListGroupsRequest, context: RequestContext) -> Steps[ListGroupsResponse]:
    groups = context.services.groups
    response = ListGroupsResponse()
    may_all = context.may_cluster(AclOperation.DESCRIBE, audited=False)
    if groups.is_loading():
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for shell in groups.loaded():
        for portion in portions(shell.shard.group_ids()):
            if shell.is_over:
                # Another broker coordinates the rest: an incomplete list must not look complete.
                response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                break
            listed = shell.shard.list_groups(request.states_filter, request.types_filter, portion)
            response.groups += [
                group
                for group in listed
                if may_all
                or context.may_group(AclOperation.DESCRIBE, group.group_id, audited=False)
            ]
            yield
    return response
