"""Planted bugs of client quotas: limits that do not hold, that hit others, or that never end.

See `replication`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from penstock.broker import dispatch
from penstock.broker.access.quotas import ClientQuotas, RequestMeter
from penstock.broker.context import RequestContext
from penstock.broker.handlers import create_topics
from penstock.net.connection import Connection
from penstock.net.mute import Mute
from penstock.security.quotas import Client, Limit, Quotas, Sharer
from penstock.security.rates import QuotaMeters
from penstock.sim.bugs.planting import Plant, bug, patch
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import CreateTopicsRequest, CreateTopicsResponse

QUOTA_BUGS: Final[dict[str, Plant]] = {}
_bug = partial(bug, QUOTA_BUGS)


@_bug("mute-never-lifted")
def _stays_muted(patches: ExitStack) -> None:
    """A connection that was muted stays muted."""

    def keep(self: Mute, on_end: Callable[[], None]) -> None:
        pass

    patch(patches, Mute, "_expire", keep)


@_bug("throttled-without-a-mute")
def _only_tells(patches: ExitStack) -> None:
    """A response has its throttle time, but the broker goes on reading from the connection."""

    def tell_only(self: Connection, seconds: float) -> None:
        pass

    patch(patches, Connection, "mute", tell_only)


@_bug("quota-charged-to-others")
def _shares_meters(patches: ExitStack) -> None:
    """All clients of a broker have the limit that one of them has."""
    find = Quotas.limit

    def any_limit(self: Quotas, user: str, client_id: str | None, key: str) -> Limit | None:
        found = find(self, user, client_id, key)
        levels = self._by_key.get(key)
        if found is not None or levels is None:
            return found
        held = [*levels.pairs.values(), *levels.users.values(), *levels.clients.values()]
        return Limit(held[0][0], Sharer(user, client_id), held[0][1])

    patch(patches, Quotas, "limit", any_limit)


@_bug("throttled-produce-appended-again")
def _appends_again(patches: ExitStack) -> None:
    """A produce request that is over the quota is appended again when its mute ends."""
    serve = dispatch.BrokerSession._serve_measured

    def twice(self: dispatch.BrokerSession, frame: memoryview, borrowed: bool) -> Any:
        held = bytearray(frame)
        answer = serve(self, frame, borrowed)
        muted = getattr(self._peer, "_mute", None)
        if muted is not None and muted.active and dispatch._key(frame)[0] == dispatch._PRODUCE:
            later = partial(self._serve_decoded, memoryview(held), None)
            asyncio.get_running_loop().call_later(0.01, later)
        return answer

    patch(patches, dispatch.BrokerSession, "_serve_measured", twice)


@_bug("removed-quota-stays")
def _keeps_quotas(patches: ExitStack) -> None:
    """A broker applies new and changed quotas, but not the removal of one."""
    apply = ClientQuotas._apply

    def add_only(self: ClientQuotas, quotas: Quotas) -> None:
        known = {} if self.current is None else dict(self.current._quotas.entities)
        apply(self, Quotas({**known, **quotas.entities}))

    patch(patches, ClientQuotas, "_apply", add_only)


@_bug("meters-dropped-every-second")
def _forgets_meters(patches: ExitStack) -> None:
    """The task that drops idle meters drops those in use too."""

    def drop_all(self: QuotaMeters, now_ms: int) -> int:
        self._meters.clear()
        self.update(self._quotas)
        return 0

    patch(patches, QuotaMeters, "drop_idle", drop_all)


@_bug("waiting-counted-as-request-time")
def _counts_waits(patches: ExitStack) -> None:
    """The time that a request waits counts for the quota of request time."""
    begin: Callable[..., None] = RequestMeter.__init__
    finish = RequestMeter.finish
    begun: dict[int, float] = {}

    def stamped(
        self: RequestMeter, quotas: ClientQuotas, meters: QuotaMeters, client: Client, peer: Any
    ) -> None:
        begin(self, quotas, meters, client, peer)
        begun[id(self)] = quotas.now_s()

    def with_waits(self: RequestMeter) -> int:
        if not self._is_finished:
            self.spend(self._quotas.now_s() - begun[id(self)])
        return finish(self)

    patch(patches, RequestMeter, "__init__", stamped)
    patch(patches, RequestMeter, "finish", with_waits)


@_bug("refused-topic-created")
def _creates_anyway(patches: ExitStack) -> None:
    """A topic over the quota of changes is refused, but created all the same."""
    run = create_topics._run

    async def lenient(
        request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse:
        response = await run(request, context)
        codes = [each.error_code for each in response.topics]
        if ErrorCode.THROTTLING_QUOTA_EXCEEDED in codes:
            meter, context.meter = context.meter, None
            await run(request, context)
            context.meter = meter
        return response

    patch(patches, create_topics, "_run", lenient)
