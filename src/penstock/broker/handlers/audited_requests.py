"""Records what admin requests have changed, when they are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from penstock.broker.audit.changes import change_events, changes_of
from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices, Steps, at_once, in_slices
from penstock.wire.errors import ProtocolError
from penstock.wire.messages.base import Request, Response

_log = logging.getLogger(__name__)

Refuse = Callable[[Request, int, Exception], Response]


def handle_audited(
    handle: Callable[[Any, RequestContext], Any],
    refuse: Refuse,
    request: Request,
    context: RequestContext,
) -> Any:
    """Handles a request, and records its changes once it is answered.

    `refuse` makes the response for a request that failed as a whole.
    """
    if not context.services.audit.is_enabled:
        return handle(request, context)
    try:
        response = handle(request, context)
    except ProtocolError:
        raise
    except Exception as error:
        steps = _record_failure(refuse, request, context, error)
        if context.is_large:
            return context.spawn(_fail(steps, error, context))
        at_once(steps)
        raise
    if isinstance(response, asyncio.Future):
        return context.spawn(_record_later(refuse, request, context, response))
    at_once(_record(request, context, lambda: response))
    return response


async def _record_later(
    refuse: Refuse, request: Request, context: RequestContext, answered: asyncio.Future[Response]
) -> Response:
    """Records before it answers: the messages of large requests are emptied after the answer."""
    slices = context.slices()
    try:
        response = await answered
    except ProtocolError:
        raise
    except Exception as error:
        await _recorded(_record_failure(refuse, request, context, error), slices)
        raise
    except asyncio.CancelledError:
        if answered.done() and not answered.cancelled() and answered.exception() is None:
            at_once(_record(request, context, answered.result))
        raise
    await _recorded(_record(request, context, lambda: response), slices)
    return response


async def _fail(steps: Steps[None], error: Exception, context: RequestContext) -> Response:
    await _recorded(steps, context.slices())
    raise error


async def _recorded(steps: Steps[None], slices: Slices) -> None:
    try:
        await in_slices(steps, slices)
    except asyncio.CancelledError:
        # The broker stops: the changes are made, so they are recorded.
        at_once(steps)
        raise


def _record_failure(
    refuse: Refuse, request: Request, context: RequestContext, error: Exception
) -> Steps[None]:
    return _record(request, context, lambda: refuse(request, context.version, error))


def _record(
    request: Request, context: RequestContext, response: Callable[[], Response]
) -> Steps[None]:
    """Never raises: the request is answered in any case."""
    audit = context.services.audit
    try:
        changes = changes_of(request, response())
        for event in change_events(context.origin(), audit.now_ms(), changes):
            if event is not None:
                audit.record(event)
            yield
    except Exception:  # noqa: BLE001 - logged
        _log.exception("cannot record the changes of %s", type(request).__name__)
