"""DescribeClientQuotas, versions 0 and 1: Penstock has no client quotas, so none match.

The versions differ in their encoding only.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.security.acls import AclOperation
from penstock.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse


def handle(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    context.require_cluster(AclOperation.DESCRIBE_CONFIGS)
    return DescribeClientQuotasResponse(error_message=None, entries=[])
