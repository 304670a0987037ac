"""ExpireDelegationToken, versions 1 and 2: sets the end of a token, or removes it at once.

A period below 0 removes the token. The owner and the renewers of the token may do that. They name
it by its HMAC. The answer comes when all brokers know the change: no broker accepts a token that
was removed, and sessions that began with it end at their next request. Version 2 is flexible.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.token_requests import change, require_own_login
from penstock.security.audit import Action
from penstock.security.delegation_tokens import expired
from penstock.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


def handle(
    request: ExpireDelegationTokenRequest, context: RequestContext
) -> asyncio.Future[ExpireDelegationTokenResponse]:
    return context.spawn(_expire(request, context, require_own_login(context)))


async def _expire(
    request: ExpireDelegationTokenRequest, context: RequestContext, user: str
) -> ExpireDelegationTokenResponse:
    now_ms, period_ms = context.services.wall_ms(), request.expiry_time_period_ms
    after = await change(
        context,
        user,
        bytes(request.hmac),
        Action.TOKEN_EXPIRE,
        lambda token, who, at_ms: expired(token, who, period_ms, at_ms),
    )
    return ExpireDelegationTokenResponse(
        expiry_timestamp_ms=now_ms if after is None else after.expires_ms
    )
