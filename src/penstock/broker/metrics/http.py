"""One HTTP connection with one request on it. h11 implements the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, cast

import h11

from penstock.broker.metrics.pages import REQUEST_S, Page, PageServer, text_page
from penstock.ports import Transport

_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Connection", "close"),
)


class HttpConnection(asyncio.Protocol):
    def __init__(self, endpoint: PageServer) -> None:
        self._endpoint = endpoint
        self._http = h11.Connection(h11.SERVER)
        self._transport: Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_asked = False

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        self._transport = cast(Transport, transport)
        if not self._endpoint.admit(self):
            self._transport.abort()
            return
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        if self._is_asked:
            # A body or a second request. Both are ignored.
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._is_asked = True
            status = HTTPStatus(error.error_status_hint)
            self._send(text_page(status, "this is not an HTTP request"), with_body=True)
            return
        if isinstance(event, h11.Request):
            self._is_asked = True
            self._stop_timer()
            authorization = [value for name, value in event.headers if name == b"authorization"]
            self._endpoint.begin(
                self._answer(event.method.decode(), event.target.decode(), authorization)
            )

    def eof_received(self) -> bool:
        """Keeps the connection open while a request is being answered."""
        return self._is_asked

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._endpoint.forget(self)
        self._stop_timer()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _set_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.drop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _answer(self, method: str, target: str, authorization: Sequence[bytes]) -> None:
        page = await self._endpoint.page(method, target, authorization)
        self._send(page, with_body=method != "HEAD")

    def _send(self, page: Page, *, with_body: bool) -> None:
        if self._transport is None:
            return
        # The client has `REQUEST_S` to receive the answer, too.
        self._set_timer()
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            *_HEADERS,
            *page.headers,
        ]
        response = h11.Response(
            status_code=page.status, headers=headers, reason=page.status.phrase.encode()
        )
        self._transport.write(self._http.send(response) or b"")
        if with_body:
            self._transport.write(page.body)
        self._transport.close()
