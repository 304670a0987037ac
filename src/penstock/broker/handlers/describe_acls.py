"""DescribeAcls, versions 1 to 3: returns the ACLs that a filter selects, by resource.

Without an authorizer the answer is SECURITY_DISABLED, as in Kafka; tools such as MirrorMaker 2 then
leave ACLs alone. Version 1 added the pattern type; otherwise the versions differ in their encoding.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.acl_requests import compute, require_authorizer
from penstock.metadata.acls import AclSnapshot, require_readable, snapshot_of
from penstock.security.acl_filters import AclFilter, describe_acls
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    AclRefused,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from penstock.wire.errors import KafkaError
from penstock.wire.messages import DescribeAclsRequest, DescribeAclsResponse


def handle(
    request: DescribeAclsRequest, context: RequestContext
) -> asyncio.Future[DescribeAclsResponse]:
    context.require_cluster(AclOperation.DESCRIBE)
    require_authorizer(context)
    return context.spawn(_run(request, context))


async def _run(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    snapshot = snapshot_of(context.services.image)
    require_readable(snapshot)
    wanted = AclFilter(
        ResourceType(request.resource_type_filter),
        PatternType(request.pattern_type_filter),
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        AclOperation(request.operation),
        PermissionType(request.permission_type),
    )
    context.is_large = context.is_large or snapshot.count() > context.slicing.elements
    found = await compute(context, partial(_found, snapshot, wanted), snapshot.count())
    return DescribeAclsResponse(error_message=None, resources=found)


def _found(snapshot: AclSnapshot, wanted: AclFilter) -> list[DescribeAclsResponse.Resource]:
    try:
        acls = describe_acls(snapshot.bindings(), wanted)
    except AclRefused as refused:
        raise KafkaError(refused.code, str(refused)) from refused
    resources: dict[ResourcePattern, DescribeAclsResponse.Resource] = {}
    for acl in acls:
        resource = resources.get(acl.pattern)
        if resource is None:
            resource = resources[acl.pattern] = _resource(acl)
        resource.acls.append(
            DescribeAclsResponse.Acl(acl.principal, acl.host, acl.operation, acl.permission)
        )
    return list(resources.values())


def _resource(acl: AclBinding) -> DescribeAclsResponse.Resource:
    return DescribeAclsResponse.Resource(acl.resource_type, acl.resource_name, acl.pattern_type)
