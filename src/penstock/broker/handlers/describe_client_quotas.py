"""DescribeClientQuotas, versions 0 and 1: the quotas of the entities that match all filters.

Without filters, all quotas are described. The versions differ in their encoding only.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from penstock.broker.context import RequestContext
from penstock.broker.handlers.large_requests import one_by_one
from penstock.security.acls import AclOperation
from penstock.security.quotas import Limits, QuotaEntity, QuotaFilter, describe
from penstock.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse

_AT_ONCE_MAX: Final = 500
"""With more entities than this, they are searched on a thread."""


def handle(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> asyncio.Future[DescribeClientQuotasResponse]:
    context.require_cluster(AclOperation.DESCRIBE_CONFIGS)
    return context.spawn(_run(request, context))


async def _run(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    filters = [
        QuotaFilter(each.entity_type, each.match_type, each.match) for each in request.components
    ]
    # A copy: the image may change while the thread reads it.
    existing = dict(context.services.image.quotas.entities)
    search = partial(describe, existing, filters, request.strict)
    is_small = len(existing) <= _AT_ONCE_MAX
    found = search() if is_small else await context.services.env.executor.run(search)
    context.is_large = context.is_large or len(found) > context.slicing.elements
    return DescribeClientQuotasResponse(
        error_message=None, entries=await one_by_one(_entry, found, context.slices())
    )


def _entry(found: tuple[QuotaEntity, Limits]) -> DescribeClientQuotasResponse.Entry:
    entity, limits = found
    return DescribeClientQuotasResponse.Entry(
        [DescribeClientQuotasResponse.Entity(kind, name) for kind, name in entity.parts],
        [DescribeClientQuotasResponse.Value(key, limit) for key, limit in sorted(limits.items())],
    )
