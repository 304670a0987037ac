"""A connection to another broker: one request at a time, each with a deadline.

All brokers of a cluster speak the same protocol, so the sender fixes the versions and nothing is
negotiated. A peer that is too old for a version says so in its answer. A caller that needs two
concurrent requests opens two connections. If an answer is late, or does not belong to the request,
the connection is closed, because later answers on it could not be matched to their requests.
"""

from __future__ import annotations

import asyncio
import logging
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
_log = logging.getLogger(__name__)


class PeerLost(Exception):
    """The other broker cannot be reached or did not answer. The message says which, and why."""


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
        raise PeerLost(f"{peer.name} did not accept a connection within {timeout_s:g} s") from None
    except OSError as error:
        raise PeerLost(f"{peer.name} cannot be reached: {error.strerror or error}") from error
    return peer


class Peer(asyncio.BufferedProtocol):
    """One connection, created by `connect_peer`. It is the `Receiver` of its own transport."""

    def __init__(self, name: str, client_id: str, response_bytes_max: int) -> None:
        self.name = name
        self._client_id = client_id
        self._frames = FrameReader(response_bytes_max)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._transport: Transport | None = None
        self._answer: asyncio.Future[memoryview] | None = None
        self._correlation_id = 0
        self._lost: str | None = None
        self._is_refused = False

    def tell_refused(self) -> None:
        """Logs that the other broker does not let this one act as a broker, once per connection."""
        if not self._is_refused:
            self._is_refused = True
            _log.error(
                "%s refuses the requests of this broker, because the principal of this broker has "
                "no right to act as a broker: add it to super.users on every broker, or give it "
                "CLUSTER_ACTION on the cluster. On a PLAINTEXT listener it is User:ANONYMOUS",
                self.name,
            )

    @property
    def is_open(self) -> bool:
        return self._lost is None

    async def ask(
        self, request: Request, version: int, response_class: type[R], timeout_s: float
    ) -> R:
        """Sends a request and waits for its answer. After `PeerLost` the connection is closed."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        if self._answer is not None or self._transport is None:
            raise RuntimeError(
                f"{self.name} was sent a request before it had answered the last one"
            )
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
            self._end(f"{self.name} sent an invalid response to {name}: {error}")
            raise PeerLost(self._lost) from error
        except asyncio.CancelledError:
            self._end(f"the connection to {self.name} was closed: the request was canceled")
            raise
        finally:
            self._answer = None
        if answered != self._correlation_id:
            self._end(f"{self.name} answered request {answered}, not {self._correlation_id}")
            raise PeerLost(self._lost)
        return response

    def close(self, reason: str = "it is no longer needed") -> None:
        self._end(f"the connection to {self.name} was closed: {reason}")

    def _end(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        if self._transport is not None:
            self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(PeerLost(reason))

    # Called by the network

    def connection_made(self, transport: asyncio.BaseTransport | Transport) -> None:
        self._transport = cast(Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self._end(f"{self.name} closed the connection{why}")

    def get_buffer(self, size_hint: int) -> memoryview:
        """Reads a large answer directly into its own buffer, and small ones through the scratch
        buffer."""
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
            self._end(f"{self.name} does not speak the Kafka protocol: {error}")
            return
        for frame in frames:
            if self._answer is None or self._answer.done():
                self._end(f"{self.name} sent a response without a request")
                return
            self._answer.set_result(frame)

    def eof_received(self) -> bool:
        """Closes the connection: a broker that has closed its side will not answer any more."""
        return False

    def pause_writing(self) -> None:
        """Does nothing: a single request is small enough to stay in the transport's buffer."""

    def resume_writing(self) -> None:
        pass
