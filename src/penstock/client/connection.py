"""One connection to one broker: many requests in flight, answers matched in order.

Kafka answers the requests of a connection in the order they came. So the requests in flight are a
queue, and an answer that does not carry the number of its head means that the two ends have lost
each other: the connection is given up.

Which version of an API to speak is settled once, when the connection opens: the newest that both
ends have. Every wait has an end. When an answer does not come in time the connection is closed,
since all later answers are stuck behind it; what else was in flight fails as lost, and may be
tried again on a new one.
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
    # From the next version on these name topics by id alone, which this client does not yet do.
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
    """A connection that has learned what the broker speaks, or a `ClientError`."""
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
        # Nothing was asked of it as yet, so nothing can have been done: another may be asked.
        match error:
            case ConnectionLost():
                raise ConnectFailed(str(address), "it closed the connection at once") from error
            case RequestTimedOut():
                silent = f"it said nothing within {config.request_timeout_s:g} s"
                raise ConnectFailed(str(address), silent) from error
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """Made by `open_connection`; it is the `Receiver` of its own transport."""

    def __init__(self, address: Address, config: ConnectionConfig) -> None:
        self.address = address
        self._config = config
        self._frames = FrameReader(config.response_bytes_max)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._waiting: deque[_Waiting] = deque()
        self._transport: Transport | None = None
        self._served: dict[int, Versions] = {}
        self.features: dict[str, int] = {}
        """What the cluster has agreed on, by name, and the level of each."""
        self._next_correlation_id = 0
        self._error: ClientError | None = None
        self._writable = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._error is None

    @property
    def is_writable(self) -> bool:
        """Whether what is submitted now leaves soon; else it piles up in the transport."""
        return self._writable.is_set()

    def version_of(self, request_class: type[Request], version_max: int | None = None) -> int:
        """The newest version of the request that the broker and this client have in common; not
        above `version_max`, for a later one that would mean something else."""
        key = request_class.API_KEY
        ours = message_schema(request_class.__name__).versions
        theirs = self._served.get(key)
        last = min(ours.last, VERSION_MAX.get(key, ours.last))
        if version_max is not None:
            last = min(last, version_max)
        if theirs is None or theirs.first > last or theirs.last < ours.first:
            offered = "not at all" if theirs is None else f"in versions {theirs[0]} to {theirs[1]}"
            raise ApiNotServed(
                f"the broker at {self.address} serves {ApiKey(key).api_name} {offered}; "
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
        """Send a request and wait for its answer."""
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
        """Write the request now, so that order is the caller's, and return its answer to come.

        Nothing bounds what waits to be sent: the caller keeps few requests in flight."""
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
                # First the one that waited too long, then all that is stuck behind it.
                error = self._late(request, limit_s)
                future.set_exception(error)
                self._give_up_late(error)

        timer = loop.call_later(limit_s, expire)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    async def tell(self, request: Request) -> None:
        """Send a request that has no answer: produce with acks=0."""
        version = self.version_of(type(request))
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await self._writable.wait()
        except TimeoutError:
            raise self._timed_out(request, self._config.request_timeout_s) from None
        self._write(request, version)

    async def negotiate(self) -> None:
        """Ask what the broker speaks; a broker too old for our question says which to ask."""
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
        """What was written still leaves; what waits for an answer fails."""
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
        """A large answer is read straight to where it will lie; small ones by way of scratch."""
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
            raise ProtocolError(f"an answer to request {correlation_id} came out of turn")
        waiting = self._waiting[0]
        _, message = decode_response(waiting.response_class, frame, waiting.version)
        self._waiting.popleft()
        if not waiting.future.done():
            waiting.future.set_result(message)

    def eof_received(self) -> bool:
        """asyncio asks; a broker that sends no more is of no use, so the connection closes."""
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
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    # Several addresses of one name fail as one error, which has no number of its own.
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "nothing listens there"
    return error.strerror or str(error)
