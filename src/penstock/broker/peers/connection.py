"""A connection to another broker: one request at a time, each with a deadline.

All brokers of a cluster speak the same protocol, so the sender fixes the versions and nothing is
negotiated. A peer that is too old for a version says so in its answer. A caller that needs two
concurrent requests opens two connections. If an answer is late, or does not belong to the request,
the connection is closed, because later answers on it could not be matched to their requests.

With `PeerSecurity` the connection uses TLS, logs in with SASL, or both. A session that ends is
renewed before the next request, on the same connection (KIP-368).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar, cast

from penstock.net.client_login import LoginFailed, Session, log_in, new_exchange
from penstock.net.client_tls import BROKER_SETTINGS, ConnectionSecurity, tls_problem
from penstock.net.tls_refused import TlsRefused
from penstock.ports import Network, Transport
from penstock.wire.api import ApiKey
from penstock.wire.codec import decode_response, encode_request
from penstock.wire.errors import ProtocolError
from penstock.wire.framing import FrameReader
from penstock.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.wire.messages.base import Request, Response

R = TypeVar("R", bound=Response)

PeerSecurity = ConnectionSecurity
"""How a broker secures its connections to other brokers: TLS, SASL or both."""

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
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
    security: PeerSecurity | None = None,
) -> Peer:
    """Connects to another broker and logs in. Without `security` it uses plain text."""
    peer = Peer(f"{address[0]}:{address[1]}", client_id, response_bytes_max, security)
    try:
        async with asyncio.timeout(timeout_s):
            if security is None:
                await network.connect(*address, lambda: peer, timeout_s)
            else:
                await security.connect(network, address, lambda: peer, timeout_s)
                await peer.log_in(timeout_s)
    except TimeoutError:
        peer.close()
        raise PeerLost(f"{peer.name} did not accept a connection within {timeout_s:g} s") from None
    except (OSError, TlsRefused) as error:
        peer.close()
        has_tls = security is not None and security.tls is not None
        reason = _reason(error, address[0] if has_tls else None)
        raise PeerLost(f"{peer.name} cannot be reached: {reason}") from error
    except BaseException:
        peer.close()
        raise
    return peer


def _reason(error: OSError | TlsRefused, tls_host: str | None) -> str:
    problem = None if tls_host is None else tls_problem(error, tls_host, BROKER_SETTINGS)
    if problem is not None:
        return problem.reason
    return getattr(error, "strerror", None) or str(error)


class Peer(asyncio.BufferedProtocol):
    """One connection, created by `connect_peer`. It is the `Receiver` of its own transport."""

    def __init__(
        self,
        name: str,
        client_id: str,
        response_bytes_max: int,
        security: PeerSecurity | None = None,
    ) -> None:
        self.name = name
        self._security = security
        self._renew_at: float | None = None
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
        """Sends a request and waits for its answer. After `PeerLost` the connection is closed.

        If the session must be renewed first, the time limit holds for each request of the login.
        """
        if self._renew_at is not None and asyncio.get_running_loop().time() >= self._renew_at:
            await self.log_in(timeout_s)
        return await self.exchange(request, version, response_class, timeout_s)

    async def log_in(self, timeout_s: float) -> None:
        """Logs in, if the connection uses SASL. Raises `PeerLost`."""
        security = self._security
        if security is None or security.login is None:
            return
        self._renew_at = None
        try:
            exchange = await new_exchange(security.login, security.random)
            mechanism = security.login.mechanism
            session = await log_in(
                _Channel(self, timeout_s), mechanism, exchange, security.executor
            )
        except LoginFailed as error:
            self._end(f"{self.name} refused the login of this broker: {error}")
            raise PeerLost(self._lost) from None
        self._schedule_renewal(session, security)

    def _schedule_renewal(self, session: Session, security: PeerSecurity) -> None:
        delay_s = session.renewal_s(security.random)
        if delay_s is not None:
            self._renew_at = asyncio.get_running_loop().time() + delay_s

    async def exchange(
        self, request: Request, version: int, response_class: type[R], timeout_s: float
    ) -> R:
        """Sends one request as it is, without a renewal before it."""
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
            self._end(f"the connection to {self.name} was closed: the request was cancelled")
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


class _Channel:
    """Sends the requests of a login."""

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        self._peer = peer
        self._timeout_s = timeout_s

    async def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        return await self._peer.exchange(
            request, _HANDSHAKE_VERSION, SaslHandshakeResponse, self._timeout_s
        )

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        return await self._peer.exchange(
            SaslAuthenticateRequest(token),
            _AUTHENTICATE_VERSION,
            SaslAuthenticateResponse,
            self._timeout_s,
        )
