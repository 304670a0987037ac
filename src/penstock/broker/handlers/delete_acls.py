"""DeleteAcls, versions 1 to 3: deletes the ACLs that the filters select, all together.

The answer names the ACLs that each filter selected. It is sent when every live broker decides
without them. If brokers do not confirm that in time, the filters get REQUEST_TIMED_OUT: the ACLs
are deleted, and repeating the request waits again. Without an authorizer the answer is
SECURITY_DISABLED. The versions differ in their encoding.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.handlers.acl_requests import NO_AUTHORIZER, change_acls, confirm
from penstock.broker.handlers.admin_requests import error_of
from penstock.metadata.acls import plan_deletion
from penstock.security.acl_filters import AclFilter, DeleteResult
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DeleteAclsRequest, DeleteAclsResponse


def handle(
    request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse | asyncio.Future[DeleteAclsResponse]:
    context.require_cluster(AclOperation.ALTER)
    if not context.has_authorizer:
        return _refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return context.spawn(_run(request, context))


async def _run(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    filters = [_filter(each) for each in request.filters]
    plan = partial(plan_deletion, filters=filters)
    results: tuple[DeleteResult, ...]
    try:
        results = await change_acls(context, plan, len(filters))
    except EXPECTED_ERRORS as error:
        results = (DeleteResult(*error_of(error)),) * len(filters)
    else:
        if any(not each.code for each in results) and (late := await confirm(context)) is not None:
            results = tuple(
                each if each.code else DeleteResult(*error_of(late)) for each in results
            )
    context.is_large = sum(len(each.matching) for each in results) > context.slicing.elements
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsResponse.FilterResult(
                each.code, each.message, [_matching(acl) for acl in each.matching]
            )
            for each in results
        ]
    )


def _filter(entry: DeleteAclsRequest.Filter) -> AclFilter:
    return AclFilter(
        ResourceType(entry.resource_type_filter),
        PatternType(entry.pattern_type_filter),
        entry.resource_name_filter,
        entry.principal_filter,
        entry.host_filter,
        AclOperation(entry.operation),
        PermissionType(entry.permission_type),
    )


def _matching(acl: AclBinding) -> DeleteAclsResponse.MatchingAcl:
    return DeleteAclsResponse.MatchingAcl(
        ErrorCode.NONE,
        None,
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )


def refuse(request: DeleteAclsRequest, version: int, code: ErrorCode) -> DeleteAclsResponse:
    return _refused(request, code, code.message)


def _refused(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[DeleteAclsResponse.FilterResult(code, message) for _ in request.filters]
    )
