"""Records what admin requests have changed, when they are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.broker.audit.changes import change_events, changes_of
from penstock.broker.context import RequestContext
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
        _record_failure(refuse, request, context, error)
        raise
    if isinstance(response, asyncio.Future):
        response.add_done_callback(partial(_on_answered, refuse, request, context))
    else:
        _record(request, context, lambda: response)
    return response


def _on_answered(
    refuse: Refuse, request: Request, context: RequestContext, answered: asyncio.Future[Response]
) -> None:
    if answered.cancelled():
        return
    error = answered.exception()
    if error is None:
        _record(request, context, answered.result)
    elif isinstance(error, Exception) and not isinstance(error, ProtocolError):
        _record_failure(refuse, request, context, error)


def _record_failure(
    refuse: Refuse, request: Request, context: RequestContext, error: Exception
) -> None:
    _record(request, context, lambda: refuse(request, context.version, error))


def _record(request: Request, context: RequestContext, response: Callable[[], Response]) -> None:
    """Never raises: the request is answered in any case."""
    audit = context.services.audit
    try:
        changes = changes_of(request, response())
        for event in change_events(context.origin(), audit.now_ms(), changes):
            audit.record(event)
    except Exception:  # noqa: BLE001 - logged
        _log.exception("cannot record the changes of %s", type(request).__name__)
