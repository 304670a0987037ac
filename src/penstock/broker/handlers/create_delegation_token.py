"""CreateDelegationToken, versions 1 to 3: creates a token with which programs log in as its owner.

The owner is the client's user. From version 3 on it can be another user, for which the client needs
CREATE_TOKENS on that user. The answer has the HMAC of the token, which is its password. It comes
when all brokers know the token, or have had time to: a token can be used at once. Version 2 is
flexible.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.broker.context import RequestContext
from penstock.broker.handlers.acl_requests import confirm
from penstock.broker.handlers.token_requests import (
    USER,
    record,
    record_failure,
    require_own_login,
)
from penstock.metadata.delegation_tokens import create_token
from penstock.security.acls import AclOperation, ResourceType, user_principal
from penstock.security.audit import Action
from penstock.security.delegation_tokens import DelegationToken, new_token
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse


def handle(
    request: CreateDelegationTokenRequest, context: RequestContext
) -> asyncio.Future[CreateDelegationTokenResponse]:
    requester = require_own_login(context)
    owner = request.owner_principal_name or requester
    resource = owner_type = USER
    if request.owner_principal_name:
        owner_type = request.owner_principal_type or ""
    if (owner_type, owner) != (USER, requester):
        resource = user_principal(owner) if owner_type == USER else f"{owner_type}:{owner}"
        if not context.may(AclOperation.CREATE_TOKENS, ResourceType.USER, resource):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    types = {owner_type, *(each.principal_type for each in request.renewers)}
    if types != {USER}:
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    return context.spawn(_create(request, context, owner, requester))


async def _create(
    request: CreateDelegationTokenRequest, context: RequestContext, owner: str, requester: str
) -> CreateDelegationTokenResponse:
    services = context.services
    tokens = services.tokens
    keys = tokens.require_enabled()
    try:
        token = new_token(
            tokens.new_id(),
            owner,
            requester,
            [each.principal_name for each in request.renewers],
            request.max_lifetime_ms,
            tokens.lifetimes,
            services.wall_ms(),
        )
        await services.controller.decide(partial(create_token, token=token))
    except Exception as error:
        record_failure(context, Action.TOKEN_CREATE, None, error)
        raise
    record(context, Action.TOKEN_CREATE, token, token.expires_ms)
    # A broker that is late refuses the token until it knows it. That is no reason to hold it back.
    await confirm(context)
    return _answer(token, keys.hmac(token.token_id), context.version)


def _answer(
    token: DelegationToken, token_hmac: bytes, version: int
) -> CreateDelegationTokenResponse:
    answer = CreateDelegationTokenResponse(
        principal_type=USER,
        principal_name=token.owner,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
    )
    if version >= 3:
        answer.token_requester_principal_type = USER
        answer.token_requester_principal_name = token.requester
    return answer
