"""DescribeAcls, versions 1 to 3: there is no authorizer, so the answer is SECURITY_DISABLED.

Kafka answers the same without an authorizer, and tools such as MirrorMaker 2 then leave ACLs alone.
Version 1 added the pattern type; otherwise the versions differ in their encoding.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.context import RequestContext
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER: Final = "This cluster has no authorizer: every client may do everything."


def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
