"""Shared by the four APIs of delegation tokens (KIP-48).

As in Kafka, a client must have authenticated itself: not with a token, and not as ANONYMOUS, which
includes everyone on a PLAINTEXT listener.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.access.delegation_tokens import DelegationTokens
from penstock.broker.context import RequestContext
from penstock.broker.error_codes import code_of
from penstock.broker.handlers.acl_requests import confirm
from penstock.broker.identity import ANONYMOUS
from penstock.metadata.decisions import Decision
from penstock.metadata.delegation_tokens import change_token
from penstock.metadata.image import ClusterImage
from penstock.security.audit import Action, Outcome, token_change, token_failure
from penstock.security.delegation_tokens import DelegationToken
from penstock.wire.errors import ErrorCode, KafkaError

USER: Final = "User"
"""The only type of principals."""
_UNKNOWN_ID: Final = "unknown"

Edit = Callable[[DelegationToken, str, int], DelegationToken | None]
"""Takes a token, the user who changes it and the time in milliseconds. Returns the changed token;
None if the token is to be removed."""


def require_own_login(context: RequestContext) -> str:
    """Returns the name of the user, or raises `KafkaError` if it may not ask for tokens."""
    identity = context.identity
    if identity.by_token or identity.principal == ANONYMOUS:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    return user_of(identity.principal)


def user_of(principal: str) -> str:
    return principal.removeprefix(f"{USER}:")


def tokens_of(context: RequestContext) -> DelegationTokens:
    return context.services.tokens


async def change(
    context: RequestContext, user: str, token_hmac: bytes, action: Action, edit: Edit
) -> DelegationToken | None:
    """Changes the token with this HMAC, and waits until all brokers know the change.

    Returns the token; None if it was removed. If brokers do not confirm the change in time, raises
    REQUEST_TIMED_OUT. The change is made then, and repeating the request waits again: that a token
    does not exist is also answered only when all brokers know it.
    """
    services = context.services
    services.tokens.require_enabled()
    # This broker may not know yet a token that another one has created or removed.
    await services.cluster.catch_up_shared()
    token_id = services.tokens.id_of(token_hmac)
    held = None if token_id is None else services.image.tokens.by_id.get(token_id)
    now_ms = services.wall_ms()
    decide = partial(
        change_token, token_id=token_id, change=lambda token: edit(token, user, now_ms)
    )
    try:
        after = await _committed(context, decide)
    except Exception as error:
        record_failure(context, action, held, error)
        raise
    if held is not None:
        record(context, action, after or held, None if after is None else after.expires_ms)
    return after


async def _committed(
    context: RequestContext, decide: Callable[[ClusterImage], Decision[DelegationToken | None]]
) -> DelegationToken | None:
    try:
        after = await context.services.controller.decide(decide)
    except KafkaError as error:
        if error.code != ErrorCode.DELEGATION_TOKEN_NOT_FOUND:
            raise
        raise await confirm(context) or error from None
    if (late := await confirm(context)) is not None:
        raise late
    return after


def record(
    context: RequestContext, action: Action, token: DelegationToken, expires_ms: int | None
) -> None:
    audit = context.services.audit
    if audit.is_enabled:
        event = token_change(
            context.origin(), audit.now_ms(), action, token.token_id, token.owner, expires_ms
        )
        audit.record(event)


def record_failure(
    context: RequestContext, action: Action, token: DelegationToken | None, error: Exception
) -> None:
    """Records a request that has failed. If the client is neither the owner nor a renewer of the
    token, the record says that the request was denied."""
    audit = context.services.audit
    if audit.is_enabled:
        code = code_of(error)
        denied = code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        outcome = Outcome.DENIED if denied else Outcome.FAILED
        token_id = _UNKNOWN_ID if token is None else token.token_id
        origin = context.origin()
        event = token_failure(origin, audit.now_ms(), action, token_id, code.name, outcome)
        audit.record(event)
