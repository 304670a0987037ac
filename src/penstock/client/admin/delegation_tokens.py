"""Delegation tokens of a cluster, through an admin client.

The functions whose first argument is `self` are methods of `Admin`.
"""

from __future__ import annotations

import base64
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import OptionError, check
from penstock.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

T = TypeVar("T")
_USER: Final = "User"
_SUBJECT: Final = "the delegation token"
_BY_SETTING: Final = -1
"""Instead of a time: what the setting of the brokers says."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token with which programs log in as its owner. Times are in ms since 1970."""

    token_id: str
    """The `sasl_username` of a client with `sasl_tokenauth`."""
    hmac: str = field(repr=False)
    """The `sasl_password` of such a client. Keep it secret."""
    owner: str
    requester: str
    """Who has created it. Empty if the broker does not tell."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    """Up to when it can be renewed."""


class _Client(Protocol):
    @property
    def _open(self) -> Cluster: ...

    async def _do(self, what: str, work: Coroutine[Any, Any, T]) -> T: ...


async def create_delegation_token(
    self: _Client,
    owner: str | None = None,
    *,
    renewers: Sequence[str] = (),
    max_lifetime_ms: int = _BY_SETTING,
) -> DelegationToken:
    """Creates a token with which programs log in as its owner, by default as this client's user.

    For another owner, this client's user needs CREATE_TOKENS on it.
    """
    work = _create(self._open, owner, renewers, max_lifetime_ms)
    return await self._do("create_delegation_token", work)


async def renew_delegation_token(self: _Client, hmac: str, period_ms: int = _BY_SETTING) -> int:
    """Lets a token last longer. Returns when it expires, in ms since 1970.

    The owner and the renewers of the token may do that.
    """
    return await self._do("renew_delegation_token", _renew(self._open, hmac, period_ms))


async def expire_delegation_token(self: _Client, hmac: str, period_ms: int = -1) -> int:
    """Lets a token expire after a period, or at once if that is below 0. Returns when it expires.

    Afterwards no broker accepts the token, and sessions that began with it end.
    """
    return await self._do("expire_delegation_token", _expire(self._open, hmac, period_ms))


async def describe_delegation_tokens(
    self: _Client, owners: Sequence[str] | None = None
) -> list[DelegationToken]:
    """Returns the tokens that this client's user may see: all, or those that concern some users."""
    return await self._do("describe_delegation_tokens", _describe(self._open, owners))


async def _create(
    cluster: Cluster, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int
) -> DelegationToken:
    request = CreateDelegationTokenRequest(
        owner_principal_type=None if owner is None else _USER,
        owner_principal_name=owner,
        renewers=[CreateDelegationTokenRequest.Renewer(_USER, name) for name in renewers],
        max_lifetime_ms=max_lifetime_ms,
    )
    answer = await cluster.ask_controller(
        request, CreateDelegationTokenResponse, lambda answer: [answer.error_code]
    )
    check(answer.error_code, None, _SUBJECT)
    return DelegationToken(
        answer.token_id,
        base64.b64encode(answer.hmac).decode(),
        answer.principal_name,
        answer.token_requester_principal_name,
        tuple(dict.fromkeys(renewers)),
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
    )


async def _renew(cluster: Cluster, hmac: str, period_ms: int) -> int:
    answer = await cluster.ask_controller(
        RenewDelegationTokenRequest(_bytes(hmac), period_ms),
        RenewDelegationTokenResponse,
        lambda answer: [answer.error_code],
        idempotent=True,
    )
    check(answer.error_code, None, _SUBJECT)
    return answer.expiry_timestamp_ms


async def _expire(cluster: Cluster, hmac: str, period_ms: int) -> int:
    # If it is repeated, a token that the first request has removed is not found.
    answer = await cluster.ask_controller(
        ExpireDelegationTokenRequest(_bytes(hmac), period_ms),
        ExpireDelegationTokenResponse,
        lambda answer: [answer.error_code],
    )
    check(answer.error_code, None, _SUBJECT)
    return answer.expiry_timestamp_ms


async def _describe(cluster: Cluster, owners: Sequence[str] | None) -> list[DelegationToken]:
    wanted = None
    if owners is not None:
        wanted = [DescribeDelegationTokenRequest.Owner(_USER, name) for name in owners]
    request = DescribeDelegationTokenRequest(wanted)
    answer = await cluster.ask_any(request, DescribeDelegationTokenResponse)
    check(answer.error_code, None, "the delegation tokens")
    return [
        DelegationToken(
            token.token_id,
            base64.b64encode(token.hmac).decode(),
            token.principal_name,
            token.token_requester_principal_name,
            tuple(each.principal_name for each in token.renewers),
            token.issue_timestamp,
            token.expiry_timestamp,
            token.max_timestamp,
        )
        for token in answer.tokens
    ]


def _bytes(hmac: str) -> bytes:
    try:
        return base64.b64decode(hmac, validate=True)
    except ValueError:
        raise OptionError("hmac is not base64: give it as the cluster has returned it") from None
