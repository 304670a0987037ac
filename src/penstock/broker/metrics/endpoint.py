"""A small HTTP server on an event loop: GET and HEAD, for a few fixed paths.

Scrapes come every few seconds. So a connection serves one request and is closed, and no state or
timer is needed between two requests. At most `CONNECTIONS_MAX` connections are open; further ones
are refused. A connection whose request does not arrive within `REQUEST_S` is dropped. Each answer
has its own task, which `close` cancels and waits for.

A request without the token gets only resources that are open. One with a wrong token gets none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from penstock.broker.metrics.pages import Droppable, Page, Resource, text_page
from penstock.broker.metrics.token_guard import Access, TokenGuard
from penstock.net.throttled_log import ThrottledLog
from penstock.ports import Network, Receiver

CONNECTIONS_MAX: Final = 64
_METHODS: Final = ("GET", "HEAD")
_CHALLENGE: Final = (("WWW-Authenticate", 'Bearer realm="penstock"'),)
_log = logging.getLogger(__name__)


class Endpoint:
    """Listens on one address. `resources` maps paths to what is served there."""

    def __init__(self, resources: Mapping[str, Resource], guard: TokenGuard) -> None:
        self.guard = guard
        """Replaced when there is a new token."""
        self.refused = 0
        """Requests without the right token, and connections above the limit."""
        self._log = ThrottledLog(_log)
        self._resources = resources
        self._connections: dict[Droppable, None] = {}
        self._answers: dict[asyncio.Task[None], None] = {}
        self._stop: Callable[[], Awaitable[None]] | None = None

    async def start(self, network: Network, host: str, port: int) -> tuple[str, int]:
        """Starts to listen, and returns the address. Raises OSError if it cannot."""
        listener = await network.listen(host, port, self._accept)
        self._stop = listener.close
        return listener.address()

    async def close(self) -> None:
        if self._stop is not None:
            await self._stop()
        for connection in list(self._connections):
            connection.drop()
        for answer in list(self._answers):
            answer.cancel()
        if self._answers:
            await asyncio.wait(list(self._answers))

    def _accept(self) -> Receiver:
        # Imported only now: a broker that is never scraped need not load the HTTP library.
        from penstock.broker.metrics.http import HttpConnection  # noqa: PLC0415

        return HttpConnection(self)

    def admit(self, connection: Droppable) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            self.refused += 1
            return False
        self._connections[connection] = None
        return True

    def forget(self, connection: Droppable) -> None:
        self._connections.pop(connection, None)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts the task of an answer. The endpoint owns the task."""
        answer = asyncio.get_running_loop().create_task(work)
        self._answers[answer] = None
        answer.add_done_callback(lambda done: self._answers.pop(done, None))

    async def page(self, method: str, target: str, authorization: Sequence[bytes]) -> Page:
        path = target.partition("?")[0]
        resource = self._resources.get(path)
        access = self.guard.access(authorization)
        is_open = resource is not None and resource.is_open and access is Access.ANONYMOUS
        if access is not Access.FULL and not is_open:
            return self._refuse(access)
        if method not in _METHODS:
            return text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
        if resource is None:
            known = ", ".join(self._resources)
            return text_page(HTTPStatus.NOT_FOUND, f"there is no such page; the pages are {known}")
        try:
            return await resource.answer(access is Access.FULL)
        except Exception:  # noqa: BLE001 - the client gets a 500, the log gets the cause
            _log.exception("cannot serve %s", path)
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: see the log")

    def _refuse(self, access: Access) -> Page:
        self.refused += 1
        self._log.warn(
            f"refused a request to the metrics endpoint: {access.value}",
            asyncio.get_running_loop().time(),
        )
        page = text_page(
            HTTPStatus.UNAUTHORIZED,
            f"{access.value}: send the header Authorization: Bearer TOKEN, with the token in the "
            "file of metrics_token_file",
        )
        return page._replace(headers=_CHALLENGE)
