"""The pages of an HTTP endpoint, and what connections and the endpoint know of each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

REQUEST_S: Final = 10.0
"""How long a connection may take to send its request, and to receive the answer."""


class Page(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Resource(NamedTuple):
    """What is served at one path. `answer` is told whether the request may see everything."""

    answer: Callable[[bool], Awaitable[Page]]
    is_open: bool = False
    """Whether requests without a token get an answer, too."""


def text_page(status: HTTPStatus, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class Droppable(Protocol):
    def drop(self) -> None: ...


class PageServer(Protocol):
    """What a connection needs of the endpoint."""

    def admit(self, connection: Droppable) -> bool: ...

    def forget(self, connection: Droppable) -> None: ...

    def begin(self, work: Coroutine[Any, Any, None]) -> None: ...

    async def page(self, method: str, target: str, authorization: Sequence[bytes]) -> Page: ...
