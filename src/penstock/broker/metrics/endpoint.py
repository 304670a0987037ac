"""A small HTTP server on the broker's event loop: GET and HEAD, for a few fixed paths.

Scrapes come every few seconds. So a connection serves one request and is closed, and no state or
timer is needed between two requests. At most `CONNECTIONS_MAX` connections are open; further ones
are refused. A connection whose request does not arrive within `REQUEST_S` is dropped. Each answer
has its own task, which `close` cancels and waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

from penstock.broker.metrics.pages import Droppable, Page, text_page
from penstock.ports import Network, Receiver

CONNECTIONS_MAX: Final = 64
_METHODS: Final = ("GET", "HEAD")
_log = logging.getLogger(__name__)


Handler = Callable[[], Awaitable[Page]]


class Endpoint:
    """Listens on one address. `pages` maps paths to their handlers."""

    def __init__(self, network: Network, pages: Mapping[str, Handler]) -> None:
        self._network = network
        self._pages = pages
        self._connections: dict[Droppable, None] = {}
        self._answers: dict[asyncio.Task[None], None] = {}
        self._stop: Callable[[], Awaitable[None]] | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Starts to listen, and returns the address. Raises OSError if it cannot."""
        listener = await self._network.listen(host, port, self._accept)
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

    async def page(self, method: str, target: str) -> Page:
        if method not in _METHODS:
            return text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported")
        path = target.partition("?")[0]
        handler = self._pages.get(path)
        if handler is None:
            known = ", ".join(self._pages)
            return text_page(HTTPStatus.NOT_FOUND, f"there is no such page; the pages are {known}")
        try:
            return await handler()
        except Exception:  # noqa: BLE001 - the client gets a 500, the log gets the cause
            _log.exception("cannot serve %s", path)
            return text_page(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: see the broker's log"
            )
