"""One connection to one broker: many requests in flight, responses matched in order.

Kafka answers the requests of a connection in the order in which they were sent. So the requests in
flight are a queue. A response without the correlation id of the first one means that the two ends
are out of step, and the connection is closed.

The version of each API is determined once, when the connection opens: the newest that both ends
support. Every wait is bounded. If a response does not arrive in time the connection is closed,
because all later responses are stuck behind it. The other requests in flight fail as lost, and may
be retried on a new connection.

With SASL the connection logs in before it is handed out, and again before its session ends
(`connection_login`). Requests that are made during the second login are held back, in order.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Final, NamedTuple, TypeVar, cast

from penstock.client.address import Address
from penstock.client.errors import (
    ApiNotServed,
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
    check,
)
from penstock.client.security_settings import SecuritySettings, new_login
from penstock.net.client_tls import CLIENT_SETTINGS, ConnectionSecurity, tls_problem
from penstock.ports import Transport
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request, response_correlation_id
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.framing import FrameReader
from penstock.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.wire.messages.base import Buffer, Request, Response
from penstock.wire.schema import message_schema
from penstock.wire.schema.notation import Versions

R = TypeVar("R", bound=Response)

_CORRELATION_ID_MAX: Final = (1 << 31) - 1

_SCRATCH_BYTES: Final = 64 << 10

_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of a server's answer if it expected a handshake of TLS."""

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
    security: SecuritySettings = field(default_factory=SecuritySettings)


class _Waiting(NamedTuple):
    correlation_id: int
    response_class: type[Response]
    version: int
    future: asyncio.Future[Response]


class Connection(asyncio.BufferedProtocol):
    """Created by `open_connection`. It is the `Receiver` of its own transport."""

    def __init__(
        self, address: Address, config: ConnectionConfig, security: ConnectionSecurity | None = None
    ) -> None:
        self.address = address
        self._config = config
        self._has_tls = security is not None and security.tls is not None
        self._login = new_login(self, str(address), security, config.request_timeout_s)
        self._held: list[tuple[list[Buffer], _Waiting | None]] | None = None
        """Requests that wait for the end of a login. None while requests are sent at once."""
        self._drained: asyncio.Future[None] | None = None
        self._raw: asyncio.Future[bytes] | None = None
        """Waits for a token without a header, from a broker without SaslAuthenticate."""
        self._responses = 0
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
        self._gone = asyncio.Event()

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
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._write(request, version, response_class, cast("asyncio.Future[Response]", future))

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
        self._write(request, version, None, None)

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

    def abort(self) -> None:
        """Closes the connection at once. With TLS, `close` still exchanges messages, for which the
        event loop must run on."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(ConnectionLost(f"the connection to {self.address} was closed"))

    async def closed(self, timeout_s: float) -> None:
        """Returns when the transport is closed. Aborts it if this takes too long."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()
            await asyncio.sleep(0)

    async def _call(
        self,
        request: Request,
        version: int,
        response_class: type[R],
        timeout_s: float | None,
        *,
        is_login: bool = False,
    ) -> R:
        limit_s = self._config.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._writable.wait()
                future = asyncio.get_running_loop().create_future()
                self._write(request, version, response_class, future, is_login=is_login)
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

    def _write(
        self,
        request: Request,
        version: int,
        response_class: type[Response] | None,
        future: asyncio.Future[Response] | None,
        *,
        is_login: bool = False,
    ) -> None:
        """Sends the request, or holds it back during a login. Without a future it has no
        response."""
        if self._error is not None:
            raise self._error
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_ID_MAX
        parts: list[Buffer] = encode_request(
            request, version, correlation_id, self._config.client_id
        )
        waiting = None
        if response_class is not None and future is not None:
            waiting = _Waiting(correlation_id, response_class, version, future)
        if self._held is not None and not is_login:
            self._held.append((parts, waiting))
        else:
            self._send(parts, waiting)

    def _send(self, parts: list[Buffer], waiting: _Waiting | None) -> None:
        assert self._transport is not None
        for part in parts:
            self._transport.write(part)
        if waiting is not None:
            self._waiting.append(waiting)

    # -- login ----------------------------------------------------------------------------------

    async def log_in(self) -> None:
        """Logs in, if the connection uses SASL. Raises a `ClientError`."""
        if self._login is None:
            return
        if SaslHandshakeRequest.API_KEY not in self._served:
            raise AuthenticationFailed(
                str(self.address),
                "this port of the broker does not use SASL: use another port, or set "
                "security_protocol to PLAINTEXT or SSL",
            )
        await self._login.begin()

    async def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Version 0 announces tokens without a header, for brokers without SaslAuthenticate."""
        version = self.version_of(SaslHandshakeRequest, 0 if self._has_raw_tokens else None)
        return await self._call(request, version, SaslHandshakeResponse, None, is_login=True)

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        if self._has_raw_tokens:
            return SaslAuthenticateResponse(auth_bytes=await self._exchange_raw(token))
        request = SaslAuthenticateRequest(token)
        version = self.version_of(SaslAuthenticateRequest)
        return await self._call(request, version, SaslAuthenticateResponse, None, is_login=True)

    @property
    def _has_raw_tokens(self) -> bool:
        return SaslAuthenticateRequest.API_KEY not in self._served

    async def _exchange_raw(self, token: bytes) -> bytes:
        if self._error is not None:
            raise self._error
        self._raw = asyncio.get_running_loop().create_future()
        limit_s = self._config.request_timeout_s
        self._send([struct.pack(">i", len(token)), token], None)
        try:
            async with asyncio.timeout(limit_s):
                return await self._raw
        except TimeoutError:
            raise self._timed_out(SaslAuthenticateRequest(), limit_s) from None
        finally:
            self._raw = None

    def hold(self) -> None:
        """Holds requests back from now on."""
        self._held = []

    async def drained(self) -> None:
        """Returns when no request waits for its response, or raises why the connection failed."""
        if self._error is None and self._waiting:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._error is not None:
            raise self._error

    def release(self) -> None:
        """Sends the requests that were held back, in order."""
        held, self._held = self._held or [], None
        if self._error is None:
            for parts, waiting in held:
                self._send(parts, waiting)

    def give_up(self, error: ClientError) -> None:
        """Closes the connection at once. All its requests fail with this error."""
        self._give_up(error)

    @property
    def closed_early(self) -> str:
        """Why a broker may have closed the connection before the first request."""
        if self._responses and self._login is not None:
            return (
                "it closed the connection during the login: check the user name, and the password "
                "or token"
            )
        closed = "it closed the connection before the first response"
        if not self._has_tls:
            return f"{closed}: if its port uses TLS, set security_protocol to SSL or SASL_SSL"
        return f"{closed}: it may require a certificate; set {CLIENT_SETTINGS.certificate}"

    # -- called by the network ------------------------------------------------------------------

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
            self._give_up(self._not_kafka(error))

    def _not_kafka(self, error: ProtocolError) -> NotKafka:
        if not self._responses and bytes(self._scratch[:2]) == _TLS_ALERT:
            return NotKafka(
                f"{self.address} answers with TLS: set security_protocol to SSL, or to SASL_SSL if "
                "it requires a login"
            )
        return NotKafka(
            f"{self.address} does not answer in the Kafka protocol ({error}): "
            f"check that this is the port of a broker{'' if self._has_tls else ', without TLS'}"
        )

    def _answer(self, frame: memoryview) -> None:
        if self._raw is not None:
            raw, self._raw = self._raw, None
            if not raw.done():
                raw.set_result(bytes(frame))
            return
        correlation_id = response_correlation_id(frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise ProtocolError(f"a response to request {correlation_id} arrived out of order")
        waiting = self._waiting[0]
        _, message = decode_response(waiting.response_class, frame, waiting.version)
        self._waiting.popleft()
        self._responses += 1
        if not waiting.future.done():
            waiting.future.set_result(message)
        if self._drained is not None and not self._waiting:
            self._end_drain()

    def _end_drain(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def eof_received(self) -> bool:
        """Closes the connection: a broker that sends no more is of no use."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        problem = None
        if isinstance(error, ssl.SSLError) and not self._responses:
            # A broker refuses a certificate in TLS 1.3 after the client's part of the handshake.
            problem = tls_problem(error, self.address.host, CLIENT_SETTINGS)
        if problem is not None and problem.is_lasting:
            self._give_up(TlsFailed(str(self.address), problem.reason))
            return
        why = f": {error}" if error else ""
        if not error and self._login is None and self._responses == 1:
            why = ": if it requires a login, set security_protocol and sasl_mechanism"
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
        held = [waiting for _, waiting in self._held or () if waiting is not None]
        for waiting in (*self._waiting, *held):
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._waiting.clear()
        self._held = None
        self._end_drain()
        if self._raw is not None and not self._raw.done():
            self._raw.set_exception(error)
        if self._login is not None:
            self._login.stop()


@cache
def _software_version() -> str:
    return metadata.version("penstock")
