"""The holder of delegation tokens: it creates, renews and expires them, at any broker.

Every other token is created by an administrator for the holder, who is its owner then too. A
request without a response may still take effect. `checkers.tokens` knows that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.sim.access_plan import ADMIN, HOLDER
from penstock.sim.actors.rights_admin import ADMIN_TIMEOUT_MS
from penstock.sim.actors.sends import with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import (
    CREATED,
    EXPIRED,
    FAIL,
    INFO,
    OK,
    REMOVED_MS,
    RENEWED,
    TokenChange,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

_PAUSE_MEAN_S: Final = 0.7
_KEPT_MAX: Final = 8
"""How many tokens are in use. The oldest is removed before another is created."""
_LIFETIMES_MS: Final = (3_000, 10_000, 0, 0)
"""0 is the longest one."""
_NO_EFFECT: Final = (
    ErrorCode.DELEGATION_TOKEN_EXPIRED,
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
)


async def run_token_holder(actor: Actor) -> None:
    cluster = await with_cluster(actor, ADMIN_TIMEOUT_MS)
    of_admin = await with_cluster(replace(actor, user=ADMIN), ADMIN_TIMEOUT_MS)
    try:
        if cluster is not None and of_admin is not None:
            await _hold(actor, cluster, of_admin)
    finally:
        for each in (cluster, of_admin):
            if each is not None:
                each.close()


async def _hold(actor: Actor, cluster: Cluster, of_admin: Cluster) -> None:
    shared, draws = actor.shared, actor.draws
    # This one is never changed: it must be accepted when the run ends.
    shared.lasting_token = await create_token(actor, cluster)
    while not shared.over.is_set():
        await shared.rest(min(draws.expovariate(1 / _PAUSE_MEAN_S), 4.0))
        kept = {shared.lasting_token, *shared.ended_tokens}
        live = [each for each in shared.tokens if each not in kept]
        if len(live) < _KEPT_MAX and draws.random() < 0.4:
            by = of_admin if draws.random() < 0.5 else cluster
            await create_token(actor, by, draws.choice(_LIFETIMES_MS))
        elif live:
            await _change(actor, cluster, draws.choice(live))


async def _change(actor: Actor, cluster: Cluster, token_id: str) -> None:
    draws = actor.draws
    if draws.random() < 0.4:
        await renew_token(actor, cluster, token_id, draws.choice((1_000, 5_000, 0)))
    else:
        await expire_token(actor, cluster, token_id, draws.choice((-1, -1, 0, 1_500)))


async def create_token(actor: Actor, cluster: Cluster, lifetime_ms: int = 0) -> str:
    """Creates a token that the holder owns. Returns its id; empty if that is not known."""
    shared, begun_ms = actor.shared, actor.shared.now_ms()
    request = CreateDelegationTokenRequest("User", HOLDER, max_lifetime_ms=lifetime_ms)
    try:
        connection = await cluster.connection(actor.draws.choice(sorted(cluster.brokers)))
        answer = await connection.call(request, CreateDelegationTokenResponse)
    except ClientError:
        return ""
    if answer.error_code:
        shared.count("tokens_not_created")
        return ""
    shared.tokens[answer.token_id] = bytes(answer.hmac)
    _note(
        actor,
        begun_ms,
        answer.token_id,
        CREATED,
        expires_ms=answer.expiry_timestamp_ms,
        max_ms=answer.max_timestamp_ms,
    )
    return answer.token_id


async def renew_token(actor: Actor, cluster: Cluster, token_id: str, period_ms: int) -> str:
    """Renews a token. Returns the status."""
    request = RenewDelegationTokenRequest(actor.shared.tokens[token_id], period_ms)
    begun_ms = actor.shared.now_ms()
    status, error, expires_ms = await _ask(actor, cluster, request, RenewDelegationTokenResponse)
    _note_end(actor, token_id, error)
    _note(actor, begun_ms, token_id, RENEWED, status, error, expires_ms=expires_ms)
    return status


async def expire_token(actor: Actor, cluster: Cluster, token_id: str, period_ms: int) -> str:
    """Lets a token end after this time; with -1 removes it. Returns the status."""
    shared = actor.shared
    request = ExpireDelegationTokenRequest(shared.tokens[token_id], period_ms)
    begun_ms = shared.now_ms()
    status, error, expires_ms = await _ask(actor, cluster, request, ExpireDelegationTokenResponse)
    _note_end(actor, token_id, error)
    if error == ErrorCode.DELEGATION_TOKEN_NOT_FOUND.name:
        # It was removed already: by a request whose answer got lost, or because it had expired.
        status, error, period_ms = OK, "", -1
    if period_ms < 0:
        expires_ms = REMOVED_MS
    _note(actor, begun_ms, token_id, EXPIRED, status, error, expires_ms=expires_ms)
    if status == OK:
        shared.ended_tokens[token_id] = None
        shared.on_revoked()
    return status


def _note_end(actor: Actor, token_id: str, error: str) -> None:
    """Notes that the broker answered that a token has ended."""
    if error in (
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND.name,
        ErrorCode.DELEGATION_TOKEN_EXPIRED.name,
    ):
        actor.shared.ended_tokens[token_id] = None


async def _ask(
    actor: Actor,
    cluster: Cluster,
    request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest,
    response: type[RenewDelegationTokenResponse] | type[ExpireDelegationTokenResponse],
) -> tuple[str, str, int]:
    """Returns the status, the error, and when the token ends now."""
    try:
        connection = await cluster.connection(actor.draws.choice(sorted(cluster.brokers)))
    except ClientError as failed:
        return FAIL, str(failed), 0
    try:
        answer = await connection.call(request, response)
    except ClientError as failed:
        return INFO, str(failed), 0
    code = ErrorCode(answer.error_code)
    if code:
        return FAIL if code in _NO_EFFECT else INFO, code.name, 0
    return OK, "", answer.expiry_timestamp_ms


def _note(
    actor: Actor,
    begun_ms: float,
    token_id: str,
    action: str,
    status: str = OK,
    error: str = "",
    *,
    expires_ms: int,
    max_ms: int = 0,
) -> None:
    shared = actor.shared
    shared.count(f"token_{action}_{status}")
    shared.history.add(
        TokenChange(
            process=actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            token_id=token_id,
            action=action,
            expires_ms=expires_ms,
            max_ms=max_ms,
        )
    )
