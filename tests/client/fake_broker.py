"""An in-memory broker for tests, on its own thread, that answers as scripted.

It answers the APIs that the client uses, from a small model of topics and groups, through the real
wire codec. A test can script answers: `fake.next(ApiKey.PRODUCE, ...)` sets how the next request of
that API is answered, instead of by the model.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from client import fake_model, fake_refusals
from client.fake_sasl import VERSIONS as SASL_VERSIONS
from client.fake_sasl import FakeSasl
from penstock.broker.handled_apis import CONSUMER_GROUP_APIS, SHARE_GROUP_APIS
from penstock.net.sockets import close_server
from penstock.runtime import SystemRandom
from penstock.testing.ports import free_port
from penstock.wire.api import SUPPORTED, ApiKey
from penstock.wire.codec import (
    RequestHeader,
    UnsupportedRequest,
    decode_request,
    encode_response,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.framing import FrameReader, FrameTooLarge
from penstock.wire.messages import ApiVersionsResponse, ProduceRequest
from penstock.wire.messages.base import Request, Response
from penstock.wire.schema.notation import Versions

DROP = "drop"
"""Close the connection instead of answering."""
DROP_AFTER = "drop after"
"""Process the request, then close the connection instead of answering."""
SILENCE = "silence"
"""Never answer."""
GARBAGE = "garbage"
"""Answer with bytes that are not valid Kafka."""

Step = str | ErrorCode | Response | Callable[[Any], Response]


_LEFT_OUT = frozenset({*CONSUMER_GROUP_APIS, *SHARE_GROUP_APIS})
"""Brokers serve them only if their settings say so. The model of this broker has none of them."""


class FakeBroker:
    """A context manager; `address` is where it listens."""

    def __init__(
        self,
        *,
        versions: Mapping[ApiKey, tuple[int, int]] | None = None,
        port: int = 0,
        sasl: FakeSasl | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.versions = {
            key: Versions(known.serve_min, known.max_version)
            for key, known in SUPPORTED.items()
            if key not in _LEFT_OUT and key not in SASL_VERSIONS
        }
        self.sasl = sasl
        self._tls = tls
        self.connections = 0
        """How many connections were accepted."""
        self.versions.update({} if sasl is None else sasl.versions())
        for key, (first, last) in (versions or {}).items():
            self.versions[key] = Versions(first, last)
        self.requests: list[tuple[RequestHeader, Request]] = []
        self.model = fake_model.Model()
        self._script: dict[ApiKey, deque[Step]] = defaultdict(deque)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._transports: list[asyncio.WriteTransport] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def next(self, key: ApiKey, *steps: Step) -> None:
        self._script[key].extend(steps)

    def asked(self, key: ApiKey) -> list[Any]:
        """Returns the requests of an API so far, in order."""
        return [request for header, request in self.requests if header.api_key == key]

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_loop(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    def reset_connections(self) -> None:
        """Resets all connections, as when a broker is killed, instead of closing them."""

        async def drop() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._on_loop(drop())

    def _on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _listen(self) -> None:
        # A port that the system picks could be taken by a connection while a test has closed this
        # broker, and starts another one in its place.
        self._port = self._port or free_port(SystemRandom())
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, ssl=self._tls
        )
        self.model.port = self._port

    async def _close(self) -> None:
        assert self._server is not None
        await close_server(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A connection with TLS closes only when its client has closed it, too.
        for transport in self._transports:
            transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self._transports.append(writer.transport)
        self.connections += 1
        frames = FrameReader(100 << 20)
        gate = None if self.sasl is None else self.sasl.gate()
        try:
            while data := await reader.read(1 << 20):
                for frame in frames.feed(data):
                    goes_on = None if gate is None else await gate.on_frame(frame, writer)
                    if goes_on is None:
                        goes_on = await self._answer(frame, writer)
                    if not goes_on:
                        return
        except (ConnectionError, FrameTooLarge, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, frame: memoryview, writer: asyncio.StreamWriter) -> bool:
        try:
            header, request = decode_request(
                frame, {int(key): versions for key, versions in self.versions.items()}
            )
        except UnsupportedRequest as error:
            own = self.versions[ApiKey.API_VERSIONS]
            answer = ApiVersionsResponse(
                ErrorCode.UNSUPPORTED_VERSION, [ApiVersionsResponse.ApiVersion(18, *own)]
            )
            _send(writer, encode_response(answer, 0, error.header.correlation_id))
            return True
        key = ApiKey(header.api_key)
        self.requests.append((header, request))
        step = self._script[key].popleft() if self._script[key] else None
        if step == DROP:
            return False
        if step == GARBAGE:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return True
        if step == SILENCE:
            return True
        response = await self._respond(key, header, request, step)
        if step == DROP_AFTER:
            return False
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return True
        _send(writer, encode_response(response, header.api_version, header.correlation_id))
        await writer.drain()
        return True

    async def _respond(
        self, key: ApiKey, header: RequestHeader, request: Any, step: Step | None
    ) -> Response:
        if key == ApiKey.API_VERSIONS:
            entries = [
                ApiVersionsResponse.ApiVersion(int(known), *versions)
                for known, versions in self.versions.items()
            ]
            return ApiVersionsResponse(0, entries)
        if isinstance(step, ErrorCode):
            return fake_refusals.refuse(request, step)
        if isinstance(step, Response):
            return step
        if callable(step):
            return step(request)
        if key == ApiKey.FETCH:
            return await self.model.fetch(request)
        return self.model.answer(key, header.api_version, request)


def _send(writer: asyncio.StreamWriter, parts: Sequence[Any]) -> None:
    writer.write(b"".join(parts))
