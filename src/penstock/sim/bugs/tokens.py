"""Planted bugs of delegation tokens: tokens that outlive their end, get lost, or give wrong rights.

See `replication`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.broker.access.delegation_tokens import DelegationTokens
from penstock.broker.context import RequestContext
from penstock.broker.handlers import token_requests
from penstock.ports import Env
from penstock.security.delegation_tokens import DelegationToken, TokenLogins
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.wire.errors import KafkaError

TOKEN_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, TOKEN_BUGS)


@_bug("expired-token-accepted")
def _ignores_the_clock(patches: ExitStack) -> None:
    """A login does not look when the token ends: it is accepted until the controller removes it."""

    def at_any_time(self: TokenLogins, token_id: str, now_ms: int) -> DelegationToken | None:
        found = self._find(token_id)
        return None if found is None else replace(found, expires_ms=now_ms + 60_000)

    patch(patches, TokenLogins, "valid", at_any_time)


@_bug("removed-token-remembered")
def _remembers(patches: ExitStack) -> None:
    """A broker never hears that a token was removed: it remembers all that it has ever found."""
    find = DelegationTokens._find
    known: dict[tuple[int, str], DelegationToken] = {}

    def remembered(self: DelegationTokens, token_id: str) -> DelegationToken | None:
        found = find(self, token_id)
        if found is not None:
            known[id(self), token_id] = found
        return known.get((id(self), token_id))

    patch(patches, DelegationTokens, "_find", remembered)


@_bug("token-removal-answered-at-once")
def _does_not_wait(patches: ExitStack) -> None:
    """A removal is answered when it is committed, and other brokers learn of it later."""

    async def at_once(context: RequestContext) -> KafkaError | None:
        return None

    patch(patches, token_requests, "confirm", at_once)


@_bug("token-acts-as-its-requester")
def _mixes_up_users(patches: ExitStack) -> None:
    """A login with a token has the rights of the user who created it, not of its owner."""
    valid = TokenLogins.valid

    def by_requester(self: TokenLogins, token_id: str, now_ms: int) -> DelegationToken | None:
        found = valid(self, token_id, now_ms)
        return None if found is None else replace(found, owner=found.requester)

    patch(patches, TokenLogins, "valid", by_requester)


@_bug("tokens-forgotten-by-a-restart")
def _forgets(patches: ExitStack) -> None:
    """A broker knows only the tokens that were created since it started."""
    begin, find = DelegationTokens.__init__, DelegationTokens._find
    begun_ms: dict[int, int] = {}

    def note(self: DelegationTokens, env: Env, *rest: Any) -> None:
        begin(self, env, *rest)
        begun_ms[id(self)] = env.clock.wall_ms()

    def recent(self: DelegationTokens, token_id: str) -> DelegationToken | None:
        found = find(self, token_id)
        return None if found is None or found.issued_ms < begun_ms[id(self)] else found

    patch(patches, DelegationTokens, "__init__", note)
    patch(patches, DelegationTokens, "_find", recent)
