"""One connection to one broker: many requests in flight, responses matched in order.

Kafka answers the requests of a connection in the order in which they were sent. So the requests in
flight are a queue. A response without the correlation id of the first one means that the two ends
are out of step, and the connection is closed.

The version of each API is determined once, when the connection opens: the newest that both ends
support. Every wait is bounded. If a response does not arrive in time the connection is closed,
because all later responses are stuck behind it. The other requests in flight fail as lost, and may
be retried on a new connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Final, NamedTuple, TypeVar, cast

from penstock.client.address import Address
from penstock.client.errors import (
    ApiNotServed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    check,
)
from penstock.ports import Network, Transport
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request, response_correlation_id
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.framing import FrameReader
from penstock.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.base import Buffer, Request, Response
from penstock.wire.schema import message_schema
from penstock.wire.schema.notation import Versions

R = TypeVar("R", bound=Response)

_CORRELATION_ID_MAX: Final = (1 << 31) - 1

_SCRATCH_BYTES: Final = 64 << 10

VERSION_MAX: Final[Mapping[int, int]] = {
    # From the next version on, these identify topics by id only, which this client does not support
    # yet.
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    client_id: str = "penstock"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    response_bytes_max: int = 256 << 20


class _Waiting(NamedTuple):
    correlation_id: int
    response_class: type[Response]
    version: int
    future: asyncio.Future[Response]


async def open_connection(
    network: Network, address: Address, config: ConnectionConfig
) -> Connection:
    """Opens a connection and negotiates API versions, or raises a `ClientError`."""
    connection = Connection(address, config)
    try:
        await network.connect(
            address.host, address.port, lambda: connection, config.connect_timeout_s
        )
    except OSError as error:
        raise ConnectFailed(str(address), _reason(error, config.connect_timeout_s)) from error
    try:
        await connection.negotiate()
    except BaseException as error:
        connection.close()
        # Nothing was requested yet, so nothing can have taken effect: it is safe to try another
        # broker.
        match error:
            case ConnectionLost():
                raise ConnectFailed(
                    str(address), "it closed the connection before the first response"
                ) from error
            case RequestTimedOut():
                silent = f"it did not answer within {config.request_timeout_s:g} s"
                raise ConnectFailed(str(address), silent) from error
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """Created by `open_connection`. It is the `Receiver` of its own transport."""

    def __init__(self, address: Address, config: ConnectionConfig) -> None:
        self.address = address
        self._config = config
        self._frames = FrameReader(config.response_bytes_max)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._waiting: deque[_Waiting] = deque()
        self._transport: Transport | None = None
        self._served: dict[int, Versions] = {}
        self.features: dict[str, int] = {}
        """The finalized features of the cluster by name, with their levels."""
        self._next_correlation_id = 0
        self._error: ClientError | None = None
        self._writable = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._error is None

    @property
    def is_writable(self) -> bool:
        """Whether data that is submitted now is sent soon. If not, it accumulates in the
        transport."""
        return self._writable.is_set()

    def version_of(self, request_class: type[Request], version_max: int | None = None) -> int:
        """Returns the newest version of the request that the broker and this client support.

        It is not above `version_max`, for cases where a later version has another meaning.
        """
        key = request_class.API_KEY
        ours = message_schema(request_class.__name__).versions
        theirs = self._served.get(key)
        last = min(ours.last, VERSION_MAX.get(key, ours.last))
        if version_max is not None:
            last = min(last, version_max)
        if theirs is None or theirs.first > last or theirs.last < ours.first:
            offered = "no version" if theirs is None else f"versions {theirs[0]} to {theirs[1]}"
            raise ApiNotServed(
                f"the broker at {self.address} supports {offered} of {ApiKey(key).api_name}; "
                f"this client needs one of {ours.first} to {last}"
            )
        return min(last, theirs.last)

    async def call(
        self,
        request: Request,
        response_class: type[R],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> R:
        """Sends a request and waits for its response."""
        version = self.version_of(type(request), version_max)
        return await self._call(request, version, response_class, timeout_s)

    def submit(
        self,
        request: Request,
        response_class: type[R],
        *,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> asyncio.Future[R]:
        """Writes the request now, so that the caller controls the order. Returns a future.

        Nothing limits the data waiting to be sent: the caller must keep few requests in flight.
        """
        limit_s = self._config.request_timeout_s if timeout_s is None else timeout_s
        version = self.version_of(type(request), version_max)
        correlation_id = self._write(request, version)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append(
            _Waiting(
                correlation_id,
                response_class,
                version,
                cast("asyncio.Future[Response]", future),
            )
        )

        def expire() -> None:
            if not future.done():
                # First the request that timed out, then all that are stuck behind it.
                error = self._late(request, limit_s)
                future.set_exception(error)
                self._give_up_late(error)

        timer = loop.call_later(limit_s, expire)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    async def tell(self, request: Request) -> None:
        """Sends a request that has no response: produce with acks=0."""
        version = self.version_of(type(request))
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await self._writable.wait()
        except TimeoutError:
            raise self._timed_out(request, self._config.request_timeout_s) from None
        self._write(request, version)

    async def negotiate(self) -> None:
        """Requests the broker's API versions. A broker too old for the request says which version
        to use."""
        version = message_schema(ApiVersionsRequest.__name__).versions.last
        request = ApiVersionsRequest("penstock", _software_version())
        answer = await self._call(request, version, ApiVersionsResponse, None)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = [entry for entry in answer.api_keys if entry.api_key == request.API_KEY]
            version = min(version - 1, offered[0].max_version) if offered else 0
            answer = await self._call(request, version, ApiVersionsResponse, None)
        check(answer.error_code, subject=f"ApiVersions at {self.address}")
        self._served = {
            entry.api_key: Versions(entry.min_version, entry.max_version)
            for entry in answer.api_keys
        }
        self.features = {
            feature.name: feature.max_version_level for feature in answer.finalized_features
        }

    def close(self) -> None:
        """Closes the connection. Written data is still sent; requests waiting for a response
        fail."""
        if self._transport is not None and self._error is None:
            self._transport.close()
        self._fail(ConnectionLost(f"the connection to {self.address} was closed"))

    async def _call(
        self, request: Request, version: int, response_class: type[R], timeout_s: float | None
    ) -> R:
        limit_s = self._config.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._writable.wait()
                correlation_id = self._write(request, version)
                future = asyncio.get_running_loop().create_future()
                self._waiting.append(_Waiting(correlation_id, response_class, version, future))
                return cast(R, await future)
        except TimeoutError:
            raise self._timed_out(request, limit_s) from None

    def _timed_out(self, request: Request, limit_s: float) -> RequestTimedOut:
        error = self._late(request, limit_s)
        self._give_up_late(error)
        return error

    def _late(self, request: Request, limit_s: float) -> RequestTimedOut:
        name = ApiKey(request.API_KEY).api_name
        return RequestTimedOut(f"{self.address} did not answer {name} within {limit_s:g} s")

    def _give_up_late(self, error: RequestTimedOut) -> None:
        self._give_up(ConnectionLost(f"the connection to {self.address} was closed: {error}"))

    def _write(self, request: Request, version: int) -> int:
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_ID_MAX
        parts: list[Buffer] = encode_request(
            request, version, correlation_id, self._config.client_id
        )
        for part in parts:
            self._transport.write(part)
        return correlation_id

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        self._transport = cast(Transport, transport)
        self._writable.set()

    def get_buffer(self, size_hint: int) -> memoryview:
        """Returns where to read to: large responses directly into their buffer, small ones via
        scratch."""
        tail = self._frames.tail
        return self._scratch if tail is None else tail

    def buffer_updated(self, size: int) -> None:
        try:
            if self._frames.tail is None:
                frames = self._frames.feed(self._scratch[:size])
            else:
                frame = self._frames.filled(size)
                frames = [] if frame is None else [frame]
            for frame in frames:
                self._answer(frame)
        except ProtocolError as error:
            self._give_up(
                NotKafka(
                    f"{self.address} does not answer in the Kafka protocol ({error}): "
                    "check that this is the port of a broker, without TLS"
                )
            )

    def _answer(self, frame: memoryview) -> None:
        correlation_id = response_correlation_id(frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise ProtocolError(f"a response to request {correlation_id} arrived out of order")
        waiting = self._waiting[0]
        _, message = decode_response(waiting.response_class, frame, waiting.version)
        self._waiting.popleft()
        if not waiting.future.done():
            waiting.future.set_result(message)

    def eof_received(self) -> bool:
        """Closes the connection: a broker that sends no more is of no use."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self._give_up(ConnectionLost(f"the broker at {self.address} closed the connection{why}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _give_up(self, error: ClientError) -> None:
        if self._transport is not None and self._error is None:
            self._transport.abort()
        self._fail(error)

    def _fail(self, error: ClientError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._writable.set()
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._waiting.clear()


@cache
def _software_version() -> str:
    return metadata.version("penstock")


def _reason(error: OSError, timeout_s: float) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    # If several addresses of one name fail, the combined error has no errno.
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return error.strerror or str(error)
