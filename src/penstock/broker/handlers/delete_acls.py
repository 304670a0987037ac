"""DeleteAcls, versions 1 to 3: there is no authorizer, so there is nothing to delete.

Each filter is answered with SECURITY_DISABLED, as in Kafka without an authorizer. The versions
differ in their encoding.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.handlers.describe_acls import NO_AUTHORIZER
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DeleteAclsRequest, DeleteAclsResponse


def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    return _refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def refuse(request: DeleteAclsRequest, version: int, code: ErrorCode) -> DeleteAclsResponse:
    return _refused(request, code, code.message)


def _refused(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[DeleteAclsResponse.FilterResult(code, message) for _ in request.filters]
    )
