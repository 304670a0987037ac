"""RenewDelegationToken, versions 1 and 2: lets a token last longer, up to its maximum lifetime.

The owner and the renewers of the token may do that. They name it by its HMAC. Version 2 is
flexible.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.handlers.token_requests import change, require_own_login, tokens_of
from penstock.security.audit import Action
from penstock.security.delegation_tokens import renewed
from penstock.wire.messages import RenewDelegationTokenRequest, RenewDelegationTokenResponse


def handle(
    request: RenewDelegationTokenRequest, context: RequestContext
) -> asyncio.Future[RenewDelegationTokenResponse]:
    return context.spawn(_renew(request, context, require_own_login(context)))


async def _renew(
    request: RenewDelegationTokenRequest, context: RequestContext, user: str
) -> RenewDelegationTokenResponse:
    lifetimes, period_ms = tokens_of(context).lifetimes, request.renew_period_ms
    after = await change(
        context,
        user,
        bytes(request.hmac),
        Action.TOKEN_RENEW,
        lambda token, who, now_ms: renewed(token, who, period_ms, lifetimes, now_ms),
    )
    assert after is not None
    return RenewDelegationTokenResponse(expiry_timestamp_ms=after.expires_ms)
