"""DescribeDelegationToken, versions 1 to 3: the tokens that the client may see, with their HMACs.

A client sees the tokens that it owns, has created or may renew. It sees others with DESCRIBE on the
token, or with DESCRIBE_TOKENS on their owner. A request can name users: then only tokens that
concern one of them are returned. Null means all, and an empty list none, as in Kafka. Tokens that
have expired are not returned. Version 2 is flexible, version 3 added the requester.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.token_requests import USER, require_own_login
from penstock.security.acls import AclOperation, ResourceType, user_principal
from penstock.security.delegation_tokens import DelegationToken, TokenKeys
from penstock.wire.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse

_Response = DescribeDelegationTokenResponse


def handle(
    request: DescribeDelegationTokenRequest, context: RequestContext
) -> asyncio.Future[DescribeDelegationTokenResponse]:
    user = require_own_login(context)
    keys = context.services.tokens.require_enabled()
    return context.spawn(_describe(request, context, user, keys))


async def _describe(
    request: DescribeDelegationTokenRequest, context: RequestContext, user: str, keys: TokenKeys
) -> DescribeDelegationTokenResponse:
    owners = None
    if request.owners is not None:
        owners = frozenset(
            each.principal_name for each in request.owners if each.principal_type == USER
        )
    services = context.services
    now_ms, found = services.wall_ms(), []
    slices = context.slices()
    for token in list(services.image.tokens.by_id.values()):
        if token.is_valid(now_ms) and _is_wanted(token, owners) and _may_see(context, token, user):
            found.append(token)
        await slices.give_way()
    found.sort(key=lambda token: (token.owner, token.issued_ms, token.token_id))
    context.is_large = context.is_large or len(found) > context.slicing.elements
    work = partial(_tokens, found, keys, context.version)
    if context.is_large:
        return _Response(tokens=await services.env.executor.run(work))
    return _Response(tokens=work())


def _is_wanted(token: DelegationToken, owners: frozenset[str] | None) -> bool:
    return owners is None or not owners.isdisjoint((token.owner, token.requester, *token.renewers))


def _may_see(context: RequestContext, token: DelegationToken, user: str) -> bool:
    if token.concerns(user):
        return True
    owner = user_principal(token.owner)
    return context.may(
        AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, audited=False
    ) or context.may(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, owner, audited=False)


def _tokens(
    found: Sequence[DelegationToken], keys: TokenKeys, version: int
) -> list[DescribeDelegationTokenResponse.Token]:
    made = []
    for token in found:
        told = _Response.Token(
            principal_type=USER,
            principal_name=token.owner,
            issue_timestamp=token.issued_ms,
            expiry_timestamp=token.expires_ms,
            max_timestamp=token.max_ms,
            token_id=token.token_id,
            hmac=keys.hmac(token.token_id),
            renewers=[_Response.Renewer(USER, each) for each in token.renewers],
        )
        if version >= 3:
            told.token_requester_principal_type = USER
            told.token_requester_principal_name = token.requester
        made.append(told)
    return made
