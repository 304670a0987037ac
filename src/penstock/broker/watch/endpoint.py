"""A small HTTP server on the broker's own loop: GET, a few fixed paths, nothing to configure.

Whoever scrapes comes every few seconds, so a connection serves one request and is closed: nothing
has to be kept or timed between two. There are few of them at a time; more than `CONNECTIONS_MAX`
are turned away, and one whose request does not come within `REQUEST_S` is dropped. An answer is
made by a task of its own, which `close` waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from penstock.ports import Network, Receiver

CONNECTIONS_MAX: Final = 64
REQUEST_S: Final = 10.0
_METHODS: Final = ("GET", "HEAD")
_log = logging.getLogger(__name__)


class Page(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


Handler = Callable[[], Awaitable[Page]]


class Droppable(Protocol):
    def drop(self) -> None: ...


def text_page(status: HTTPStatus, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class Endpoint:
    """Listens at one address; `pages` are its paths."""

    def __init__(self, network: Network, pages: Mapping[str, Handler]) -> None:
        self._network = network
        self._pages = pages
        self._connections: dict[Droppable, None] = {}
        self._answers: dict[asyncio.Task[None], None] = {}
        self._stop: Callable[[], Awaitable[None]] | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, or raise OSError; the address."""
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
        # Only now: a broker that nobody looks at does without what knows HTTP.
        from penstock.broker.watch.http import HttpConnection  # noqa: PLC0415

        return HttpConnection(self)

    def admit(self, connection: Droppable) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections[connection] = None
        return True

    def forget(self, connection: Droppable) -> None:
        self._connections.pop(connection, None)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have an answer made; this endpoint owns the task."""
        answer = asyncio.get_running_loop().create_task(work)
        self._answers[answer] = None
        answer.add_done_callback(lambda done: self._answers.pop(done, None))

    async def page(self, method: str, target: str) -> Page:
        if method not in _METHODS:
            return text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is served here")
        path = target.partition("?")[0]
        handler = self._pages.get(path)
        if handler is None:
            known = ", ".join(self._pages)
            return text_page(HTTPStatus.NOT_FOUND, f"there is no such page; there are {known}")
        try:
            return await handler()
        except Exception:  # noqa: BLE001 - whoever asks is told that it failed, the log what did
            _log.exception("%s could not be answered", path)
            return text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "it failed: see the broker's log")
