"""CreateAcls, versions 1 to 3: there is no authorizer, so nothing is created.

Each creation is answered with SECURITY_DISABLED, as in Kafka without an authorizer. The versions
differ in their encoding.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.broker.handlers.describe_acls import NO_AUTHORIZER
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateAclsRequest, CreateAclsResponse


def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    return _refused(request, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def refuse(request: CreateAclsRequest, version: int, code: ErrorCode) -> CreateAclsResponse:
    return _refused(request, code, code.message)


def _refused(request: CreateAclsRequest, code: ErrorCode, message: str) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[CreateAclsResponse.Result(code, message) for _ in request.creations]
    )
