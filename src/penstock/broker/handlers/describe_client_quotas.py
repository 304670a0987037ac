"""DescribeClientQuotas, versions 0 and 1: Penstock has no client quotas, so none match.

The versions differ in their encoding only.
"""

from __future__ import annotations

from penstock.broker.context import RequestContext
from penstock.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse


def handle(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_message=None, entries=[])
