"""A connection to another broker: one request at a time, each with a deadline.

Brokers of one cluster run the same protocol, so versions are fixed by who asks, and nothing is
negotiated: a peer too old for one says so in its answer. Whoever wants two requests under way
opens two connections. An answer that does not come in time, or is not to the request that was
sent, ends the connection: what comes later on it could not be told apart.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar, cast

from penstock.ports import Network, Transport
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ProtocolError
from penstock.wire.framing import FrameReader
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

_SCRATCH_BYTES: Final = 64 << 10
_CORRELATION_ID_MAX: Final = (1 << 31) - 1


class PeerLost(Exception):
    """The other broker cannot be reached, or did not answer; the message says which and why."""


async def connect_peer(
    network: Network,
    address: tuple[str, int],
    *,
    client_id: str,
    timeout_s: float,
    response_bytes_max: int,
) -> Peer:
    peer = Peer(f"{address[0]}:{address[1]}", client_id, response_bytes_max)
    try:
        async with asyncio.timeout(timeout_s):
            await network.connect(*address, lambda: peer, timeout_s)
    except TimeoutError:
        peer.close()
        raise PeerLost(f"{peer.name} took no connection within {timeout_s:g} s") from None
    except OSError as error:
        raise PeerLost(f"{peer.name} cannot be reached: {error.strerror or error}") from error
    return peer


class Peer(asyncio.BufferedProtocol):
    """Made by `connect_peer`; it is the `Receiver` of its own transport."""

    def __init__(self, name: str, client_id: str, response_bytes_max: int) -> None:
        self.name = name
        self._client_id = client_id
        self._frames = FrameReader(response_bytes_max)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._transport: Transport | None = None
        self._answer: asyncio.Future[memoryview] | None = None
        self._correlation_id = 0
        self._lost: str | None = None

    @property
    def is_open(self) -> bool:
        return self._lost is None

    async def ask(
        self, request: Request, version: int, response_class: type[R], timeout_s: float
    ) -> R:
        """Send the request and wait for its answer; `PeerLost` ends the connection."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        if self._answer is not None or self._transport is None:
            raise RuntimeError(f"{self.name} was asked twice at a time")
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MAX
        future = self._answer = asyncio.get_running_loop().create_future()
        name = ApiKey(request.API_KEY).api_name
        try:
            for part in encode_request(request, version, self._correlation_id, self._client_id):
                self._transport.write(part)
            async with asyncio.timeout(timeout_s):
                frame = await future
            answered, response = decode_response(response_class, frame, version)
        except TimeoutError:
            self._end(f"{self.name} did not answer {name} within {timeout_s:g} s")
            raise PeerLost(self._lost) from None
        except ProtocolError as error:
            self._end(f"{self.name} did not answer {name} in the Kafka protocol: {error}")
            raise PeerLost(self._lost) from error
        except asyncio.CancelledError:
            self._end(f"the connection to {self.name} was given up")
            raise
        finally:
            self._answer = None
        if answered != self._correlation_id:
            self._end(f"{self.name} answered request {answered}, not {self._correlation_id}")
            raise PeerLost(self._lost)
        return response

    def close(self, reason: str = "it is of no more use") -> None:
        self._end(f"the connection to {self.name} was closed: {reason}")

    def _end(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._transport is not None:
            self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(PeerLost(reason))

    # What the network tells

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        self._transport = cast(Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self._end(f"{self.name} closed the connection{why}")

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
        except ProtocolError as error:
            self._end(f"{self.name} does not answer in the Kafka protocol: {error}")
            return
        for frame in frames:
            if self._answer is None or self._answer.done():
                self._end(f"{self.name} sent an answer that nobody asked for")
                return
            self._answer.set_result(frame)

    def eof_received(self) -> bool:
        """A broker that sends no more is of no use, so the connection closes."""
        return False

    def pause_writing(self) -> None:
        """One request is small enough to wait where it is."""

    def resume_writing(self) -> None:
        pass
