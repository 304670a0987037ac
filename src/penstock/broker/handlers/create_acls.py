"""CreateAcls, versions 1 to 3: creates ACLs, each with its own result.

An ACL that exists counts as created. The request is answered when every live broker decides by the
new ACLs. If brokers do not confirm that in time, the entries get REQUEST_TIMED_OUT: they are made,
and repeating the request waits again. Without an authorizer the answer is SECURITY_DISABLED. The
versions differ in their encoding.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.handlers.acl_requests import (
    NO_AUTHORIZER,
    change_acls,
    compute,
    confirm,
)
from penstock.broker.handlers.admin_requests import error_of
from penstock.metadata.acls import plan_creation, refused_entries, snapshot_of
from penstock.security.acl_filters import CreateResult
from penstock.security.acls import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateAclsRequest, CreateAclsResponse


def handle(
    request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse | asyncio.Future[CreateAclsResponse]:
    context.require_cluster(AclOperation.ALTER)
    if not context.has_authorizer:
        return _refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    return context.spawn(_run(request, context))


async def _run(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    entries = {number: _binding(each) for number, each in enumerate(request.creations)}
    context.is_large = context.is_large or len(entries) > context.slicing.elements
    snapshot = snapshot_of(context.services.image)
    check = partial(refused_entries, entries, snapshot)
    results = await compute(context, check, len(entries))
    made: set[int] = set()
    pending = {number: acl for number, acl in entries.items() if number not in results}
    while pending:
        try:
            done = await change_acls(context, partial(plan_creation, entries=pending), len(pending))
        except EXPECTED_ERRORS as error:
            results.update(dict.fromkeys(pending, CreateResult(*error_of(error))))
            break
        results.update(done)
        made.update(number for number, result in done.items() if not result.code)
        pending = {number: acl for number, acl in pending.items() if number not in done}
    if made and (late := await confirm(context)) is not None:
        results.update(dict.fromkeys(made, CreateResult(*error_of(late))))
    return CreateAclsResponse(
        results=[
            CreateAclsResponse.Result(results[number].code, results[number].message)
            for number in entries
        ]
    )


def _binding(entry: CreateAclsRequest.Creation) -> AclBinding:
    return AclBinding(
        ResourceType(entry.resource_type),
        PatternType(entry.resource_pattern_type),
        entry.resource_name,
        entry.principal,
        entry.host,
        AclOperation(entry.operation),
        PermissionType(entry.permission_type),
    )


def refuse(request: CreateAclsRequest, version: int, code: ErrorCode) -> CreateAclsResponse:
    return _refused(request, code, code.message)


def _refused(request: CreateAclsRequest, code: ErrorCode, message: str) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[CreateAclsResponse.Result(code, message) for _ in request.creations]
    )
