"""A proxy between clients and brokers that injects faults.

There is a listener for every broker. The proxy rewrites answers that contain broker addresses, so
that clients connect to the listeners and never learn the brokers' own addresses. The requests of a
connection are answered in order: an answer that the proxy makes itself waits for the broker's
answers to earlier requests. A connection whose answer was withheld stays silent for good, since in
Kafka's protocol a later request cannot be answered first.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.net.sockets import close_server
from penstock.ports import Clock
from penstock.testing.refusals import refusal, session_lost, spoil
from penstock.testing.script import Verdict
from penstock.testing.slowness import patient
from penstock.wire.api import ApiKey
from penstock.wire.codec import (
    RequestHeader,
    decode_header,
    decode_request,
    decode_response,
    encode_response,
    request_class,
    response_class,
)
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import (
    ApiVersionsResponse,
    DescribeClusterResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorResponse,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from penstock.wire.messages.base import Request, Response
from penstock.wire.schema import message_schema

HOST: Final = "127.0.0.1"
_CONNECT_S: Final = 30.0
_CLOSE_S: Final = 1.0
_FRAMES_AHEAD: Final = 16
_PREFIX: Final = struct.Struct(">i")
_ADDRESSES_FROM: Final = {
    # API -> the first version whose answers may contain addresses.
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.PRODUCE: 10,
    ApiKey.FETCH: 16,
}


class BrokerAddress(NamedTuple):
    host: str
    port: int


class Judge(Protocol):
    """Decides what happens to each request."""

    def judge(self, header: RequestHeader) -> Verdict: ...

    def would_fail(self, api: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Expected:
    """An answer that a client waits for."""

    header: RequestHeader
    verdict: Verdict
    due: float
    ours: Response | None
    """The proxy's own answer; None for the broker's answer."""


class _Ended(Exception):
    """One side has closed the connection, or the proxy cut it."""


class Proxy:
    """Belongs to one event loop. Call all methods from the loop that executes `run`."""

    def __init__(self, judge: Judge, clock: Clock, new_port: Callable[[], int]) -> None:
        self.judge = judge
        self.clock = clock
        self._new_port = new_port
        self._servers: dict[BrokerAddress, asyncio.Server | None] = {}
        """None while connections are refused."""
        self._ports: dict[BrokerAddress, int] = {}
        self._connections: set[_Connection] = set()
        self._tasks = asyncio.TaskGroup()
        self._refusing = False

    async def run(self, stop: asyncio.Event, ready: Callable[[], Awaitable[None]]) -> None:
        async with self._tasks:
            try:
                await ready()
                await stop.wait()
            finally:
                await self._close_servers()
                self.drop()

    async def front(self, broker: BrokerAddress) -> BrokerAddress:
        """Returns the address at which clients reach this broker through the proxy."""
        if broker not in self._ports:
            self._ports[broker] = self._new_port()
            self._servers[broker] = None
            if not self._refusing:
                await self._listen(broker)
        return BrokerAddress(HOST, self._ports[broker])

    def drop(self, *, mute_only: bool = False) -> int:
        """Resets open connections, and returns their number."""
        dropped = [one for one in self._connections if one.silenced or not mute_only]
        for connection in dropped:
            connection.abort()
        return len(dropped)

    async def refuse(self, refusing: bool) -> None:
        if refusing == self._refusing:
            return
        self._refusing = refusing
        if refusing:
            await self._close_servers()
        else:
            for broker in self._ports:
                await self._listen(broker)

    async def _listen(self, broker: BrokerAddress) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = _Connection(self, reader, writer)
            self._connections.add(connection)
            task = self._tasks.create_task(connection.serve(broker))
            task.add_done_callback(lambda _: self._connections.discard(connection))

        self._servers[broker] = await asyncio.start_server(
            accepted, HOST, self._ports[broker], reuse_address=True
        )

    async def _close_servers(self) -> None:
        for broker, server in tuple(self._servers.items()):
            if server is not None:
                self._servers[broker] = None
                await close_server(server)


class _Connection:
    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.silenced = False
        """Whether an answer was or will be withheld."""
        self._mute = False
        self._proxy = proxy
        self._client = reader, writer
        self._broker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._expected: asyncio.Queue[_Expected] = asyncio.Queue()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue(_FRAMES_AHEAD)

    async def serve(self, broker: BrokerAddress) -> None:
        writers = [self._client[1]]
        try:
            async with asyncio.timeout(patient(_CONNECT_S)):
                self._broker = await asyncio.open_connection(broker.host, broker.port)
            writers.append(self._broker[1])
            async with asyncio.TaskGroup() as tasks:
                for pump in (self._requests, self._broker_frames, self._answers):
                    tasks.create_task(pump())
        except* (OSError, _Ended, ProtocolError):
            pass
        finally:
            for writer in writers:
                writer.close()
            for writer in writers:
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(_CLOSE_S):
                        await writer.wait_closed()

    def abort(self) -> None:
        for pair in (self._client, self._broker):
            if pair is not None:
                pair[1].transport.abort()

    async def _requests(self) -> None:
        while True:
            frame = await _read_frame(self._client[0])
            header = decode_header(memoryview(frame))
            request = _decoded(header, frame)
            if self._is_unanswerable(request):
                await self._expect(header, Verdict(), session_lost())
                continue
            verdict = self._proxy.judge.judge(header)
            self.silenced = self.silenced or verdict.silent
            ours = None
            if verdict.error is not None and request is not None:
                ours = refusal(request, verdict.error)
            if ours is None:
                await _write_frame(self._upstream(), frame)
            if not (isinstance(request, ProduceRequest) and request.acks == 0):
                await self._expect(header, verdict, ours)

    def _is_unanswerable(self, request: Request | None) -> bool:
        """Whether the request is an incremental fetch that should fail.

        It names only the partitions that changed, so an answer cannot refuse the others.
        """
        return (
            isinstance(request, FetchRequest)
            and request.session_epoch > 0
            and self._proxy.judge.would_fail(request.API_KEY)
        )

    async def _expect(self, header: RequestHeader, verdict: Verdict, ours: Response | None) -> None:
        due = self._proxy.clock.monotonic() + verdict.delay_s
        await self._expected.put(_Expected(header, verdict, due, ours))

    async def _broker_frames(self) -> None:
        assert self._broker is not None
        try:
            while True:
                await self._frames.put(await _read_frame(self._broker[0]))
        except (OSError, _Ended):
            await self._frames.put(None)
            # Answers that the broker sent before it closed the connection still reach the client.
            await self._expected.join()
            raise

    async def _answers(self) -> None:
        while True:
            expected = await self._expected.get()
            await self._answer(expected)
            self._expected.task_done()

    async def _answer(self, expected: _Expected) -> None:
        verdict = expected.verdict
        if expected.ours is not None:
            data = _encoded(expected.ours, expected.header)
        else:
            frame = await self._frames.get()
            if frame is None:
                raise _Ended
            data = await self._edited(expected, frame)
        self._mute = self._mute or verdict.silent
        if self._mute:
            return
        wait_s = expected.due - self._proxy.clock.monotonic()
        if wait_s > 0:
            await self._proxy.clock.sleep(wait_s)
        writer = self._client[1]
        if verdict.cut_bytes is not None:
            writer.write(data[: verdict.cut_bytes])
            raise _Ended
        writer.write(data)
        await writer.drain()

    async def _edited(self, expected: _Expected, frame: bytes) -> bytes:
        """Returns the broker's answer with the proxy's addresses, and with the error if any."""
        header, error = expected.header, expected.verdict.error
        api = header.api_key
        tells = api in _ADDRESSES_FROM and header.api_version >= _ADDRESSES_FROM[ApiKey(api)]
        if not (tells or error is not None or api == ApiKey.API_VERSIONS):
            return _PREFIX.pack(len(frame)) + frame
        try:
            _, answer = decode_response(
                response_class(ApiKey(api)), memoryview(frame), header.api_version
            )
        except (ProtocolError, ValueError):
            return _PREFIX.pack(len(frame)) + frame
        if isinstance(answer, ApiVersionsResponse):
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                return _PREFIX.pack(len(frame)) + frame
            _keep_to_known(answer)
        for told in _endpoints(answer):
            told.host, told.port = await self._proxy.front(BrokerAddress(told.host, told.port))
        if error is not None:
            spoil(answer, error)
        return _encoded(answer, header)

    def _upstream(self) -> asyncio.StreamWriter:
        assert self._broker is not None
        return self._broker[1]


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        (size,) = _PREFIX.unpack(await reader.readexactly(_PREFIX.size))
        if size < 0:
            raise _Ended
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise _Ended from None


async def _write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(_PREFIX.pack(len(frame)))
    writer.write(frame)
    await writer.drain()


def _decoded(header: RequestHeader, frame: bytes) -> Request | None:
    """Returns the request; None if it is newer than our schemas: it is passed on unchanged."""
    if request_class(header.api_key) is None:
        return None
    try:
        return decode_request(memoryview(frame))[1]
    except ProtocolError:
        return None


def _encoded(answer: Response, header: RequestHeader) -> bytes:
    return b"".join(encode_response(answer, header.api_version, header.correlation_id))


_Endpoint = (
    MetadataResponse.Broker
    | DescribeClusterResponse.Broker
    | FindCoordinatorResponse
    | FindCoordinatorResponse.Coordinator
    | ProduceResponse.NodeEndpoint
    | FetchResponse.NodeEndpoint
)


def _endpoints(answer: Response) -> list[_Endpoint]:
    match answer:
        case MetadataResponse() | DescribeClusterResponse():
            return list(answer.brokers)
        case FindCoordinatorResponse():
            found: list[FindCoordinatorResponse | FindCoordinatorResponse.Coordinator]
            found = [answer, *answer.coordinators]
            return [told for told in found if told.host and told.port > 0]
        case ProduceResponse() | FetchResponse():
            return list(answer.node_endpoints)
    return []


def _keep_to_known(answer: ApiVersionsResponse) -> None:
    """Limits the offered versions to those that we can decode, for a broker that is newer."""
    for offered in answer.api_keys:
        known = request_class(offered.api_key)
        if known is not None:
            last = message_schema(known.__name__).versions.last
            offered.max_version = max(offered.min_version, min(offered.max_version, last))
