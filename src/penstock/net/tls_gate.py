"""A network with TLS, which limits how many handshakes are under way.

A handshake takes up to a millisecond of a thread, or more with large keys, and a client that never
finishes one holds memory. So the number of handshakes is limited, in total and for each address,
and each has a deadline. Further connections wait. The addresses that wait take turns, and a
handshake that is older than `grace_s` ends as long as others wait for its place: an honest client
is done by then, and one that keeps handshakes open must not keep others out. If more connections
wait than there are places, the grace is shorter. So with the default limits, whatever the others
do, the first connection of an address waits for about 3 s if 800 other addresses wait, and for 7 s
if 2000 do. If more than `waiting` wait, connections are closed, perhaps also those of honest
clients.

The event loop receives and sends, and an executor computes (see `tls_handshake`). Few handshakes
are processed at a time, also if the messages of many arrive at once (`TURNS`): otherwise the event
loop would receive for all of them in one turn. So a burst of connections delays the requests of
clients that are connected as little as possible.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Final, cast

from penstock.net.acceptor import Acceptor
from penstock.net.client_tls import connect_tls
from penstock.net.sockets import tuned_sockets
from penstock.net.throttled_log import ThrottledLog
from penstock.net.tls_handshake import TlsHandshake
from penstock.net.tls_layer import TlsLayer
from penstock.ports import Clock, Executor, Listener, Pace, Receiver, Transport
from penstock.security.addresses import network_of

SWEEP_S: Final = 0.1
"""How often handshakes are checked while a connection waits."""
GRACE_MIN_S: Final = 0.3
"""The grace is not shorter than this, so that clients far away can complete their handshakes."""
TURNS: Final = 2
"""How many handshakes of a listener are processed at a time: one is computed, and the next is ready
for the thread. The others that have received something wait for their turn."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """The limits of one listener."""

    total: int = 128
    per_address: int = 64
    """For IPv6, an address is a network of 64 bits, because one client usually has all of it."""
    waiting: int = 2048
    """How many further connections may wait. Beyond it, those of the address with the most are
    closed."""
    waiting_per_address: int = 256
    """How many of them may be of one address. Others are closed."""
    timeout_s: float = 10.0
    """The deadline of each handshake."""
    grace_s: float = 2.0
    """The age from which a handshake makes room for a connection that waits, if not more wait than
    there are places."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}; it must be above 0")

    def grace(self, places: int, waiting: int) -> float:
        """Returns the age from which a handshake makes room if so many wait for so many places. It
        is such that all of them get a place within `grace_s`, or as short as it may be."""
        return max(min(self.grace_s, GRACE_MIN_S), self.grace_s * places / max(places, waiting))


DEFAULT_LIMITS: Final = HandshakeLimits()


@dataclass(slots=True)
class HandshakeCounters:
    """Plain numbers, for metrics."""

    pending: int = 0
    """Handshakes that are under way."""
    waiting: int = 0
    """Accepted connections whose handshake has not begun."""
    completed: int = 0
    failed: int = 0
    """Refused by one of the sides, or ended by the client."""
    timed_out: int = 0
    evicted: int = 0
    """Ended because a connection waited."""
    refused: int = 0
    """Closed without a handshake, because too many connections waited."""
    accept_errors: int = 0
    broken: int = 0
    """Connections that an error of TLS has ended after the handshake."""


@dataclass(slots=True, eq=False)
class _Handshake:
    address: str
    since: float
    sock: socket.socket
    task: asyncio.Task[None] | None = None
    evicted: bool = False
    taken: bool = False
    """Whether a transport owns the socket. Only the transport may close it then."""

    def end(self) -> None:
        """Ends the handshake soon. Once it is complete, the connection belongs to its receiver."""
        if not self.taken and self.task is not None:
            self.task.cancel()


class TlsGate:
    """Implements `ports.Network` with TLS, for one listener and its settings.

    `server_context` and `client_context` are called for each connection, so that a reloaded
    certificate is used for new ones. `TlsContexts` has both.
    """

    def __init__(
        self,
        clock: Clock,
        server_context: Callable[[], ssl.SSLContext],
        client_context: Callable[[], ssl.SSLContext],
        executor: Executor,
        limits: HandshakeLimits = DEFAULT_LIMITS,
    ) -> None:
        """`executor` computes the handshakes. It should have few threads, because each of them
        takes processor time from the requests of the clients that are connected."""
        self.limits = limits
        self.counters = HandshakeCounters()
        self.clock = clock
        self.server_context = server_context
        self._client_context = client_context
        self.executor = executor
        self._log = ThrottledLog(_log)
        self.on_bad_certificate: Callable[[str], None] | None = None
        """Called with the address of a client whose certificate is missing or not accepted."""

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        """Starts listening. A receiver is called once its handshake is complete.

        An empty host listens on every address of the machine, IPv4 and IPv6.
        """
        return TlsListener(self, await tuned_sockets(host, port), receiver, pace)

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        """Connects. Raises OSError, which includes TimeoutError and a failed handshake."""
        context = self._client_context()
        return await connect_tls(context, (host, port), receiver, timeout_s, self.executor)

    def log_failure(self, address: str, reason: str) -> None:
        """Logs a failed handshake, unless one was logged a moment ago."""
        self._log.warn(f"a TLS handshake with {address} failed: {reason}", self.clock.monotonic())

    def log_broken(self, address: str, reason: str) -> None:
        """Logs an error of TLS that has ended a connection, unless one was logged a moment ago."""
        now = self.clock.monotonic()
        self._log.warn(f"a TLS connection with {address} was closed: {reason}", now)


class TlsListener:
    """The sockets of one listener and the handshakes of the connections they accepted."""

    def __init__(
        self,
        gate: TlsGate,
        sockets: list[socket.socket],
        receiver: Callable[[], Receiver],
        pace: Pace | None = None,
    ) -> None:
        self._gate = gate
        self._limits = gate.limits
        self._counters = gate.counters
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[_Handshake, None] = {}
        self._by_address: dict[str, dict[_Handshake, None]] = {}
        self._waiting: dict[str, deque[_Handshake]] = {}
        self._turns = asyncio.Semaphore(TURNS)
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._acceptor = Acceptor(
            sockets, self._on_accepted, self._on_accept_error, pace, accepts_max=1
        )

    def address(self) -> tuple[str, int]:
        return self._acceptor.address

    async def close(self) -> None:
        """Accepts no more connections and ends the handshakes. Open connections belong to their
        receivers and stay open."""
        self._closed = True
        self._acceptor.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for queue in self._waiting.values():
            for each in queue:
                each.sock.close()
            self._counters.waiting -= len(queue)
        self._waiting.clear()
        for each in self._handshakes:
            each.end()
        tasks = [each.task for each in self._handshakes if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_accept_error(self, error: OSError) -> None:
        self._counters.accept_errors += 1
        self._gate.log_failure("a client", f"accepting its connection failed ({error})")

    def _on_accepted(self, accepted: socket.socket, host: str) -> None:
        self._wait(_Handshake(network_of(host), self._gate.clock.monotonic(), accepted))
        self._start_next()

    def _wait(self, handshake: _Handshake) -> None:
        queue = self._waiting.setdefault(handshake.address, deque())
        queue.append(handshake)
        self._counters.waiting += 1
        if self._counters.waiting > self._limits.waiting:
            queue = max(self._waiting.values(), key=len)
        elif len(queue) <= self._limits.waiting_per_address:
            return
        refused = queue.pop()
        if not queue:
            del self._waiting[refused.address]
        self._counters.waiting -= 1
        self._counters.refused += 1
        refused.sock.close()
        self._gate.log_failure(
            refused.address, f"{len(queue)} of its connections already wait for a handshake"
        )

    def _start_next(self) -> None:
        """Starts handshakes as far as the limits allow. The addresses that wait take turns."""
        while len(self._handshakes) < self._limits.total:
            address = next(filter(self._may_start, self._waiting), None)
            if address is None:
                break
            queue = self._waiting.pop(address)
            if len(queue) > 1:
                self._waiting[address] = queue  # now at the end
            self._counters.waiting -= 1
            self._start(queue.popleft())
        if self._waiting and self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _may_start(self, address: str) -> bool:
        return len(self._by_address.get(address, ())) < self._limits.per_address

    def _start(self, handshake: _Handshake) -> None:
        handshake.since = self._gate.clock.monotonic()
        self._handshakes[handshake] = None
        self._by_address.setdefault(handshake.address, {})[handshake] = None
        self._counters.pending += 1
        handshake.task = self._loop.create_task(self._run(handshake))
        handshake.task.add_done_callback(lambda _: self._on_done(handshake))

    async def _run(self, handshake: _Handshake) -> None:
        counters = self._counters
        try:
            await self._shake_hands(handshake)
        except asyncio.CancelledError:
            counters.evicted += handshake.evicted
            raise
        except OSError as error:
            self._on_failed(handshake, error)
        except Exception:  # noqa: BLE001 - one connection must not end the listener
            counters.failed += 1
            _log.exception("cannot set up a TLS connection from %s", handshake.address)
        else:
            counters.completed += 1

    def _on_failed(self, handshake: _Handshake, error: OSError) -> None:
        if self._closed:
            return
        if handshake.evicted:
            self._counters.evicted += 1
        elif isinstance(error, TimeoutError):
            self._counters.timed_out += 1
            self._gate.log_failure(
                handshake.address, f"it was not complete after {self._limits.timeout_s:g} s"
            )
        else:
            self._counters.failed += 1
            self._gate.log_failure(handshake.address, _reason(error))
            if _is_about_certificate(error) and self._gate.on_bad_certificate is not None:
                self._gate.on_bad_certificate(handshake.address)

    def _on_broken(self, address: str, error: OSError) -> None:
        self._counters.broken += 1
        self._gate.log_broken(address, _reason(error))

    async def _shake_hands(self, handshake: _Handshake) -> None:
        shaking = TlsHandshake(handshake.sock, self._gate.server_context)
        async with asyncio.timeout(self._limits.timeout_s):
            secured = await shaking.run(self._gate.executor, self._turns)
        layer = TlsLayer(secured, self._receiver(), partial(self._on_broken, handshake.address))
        handshake.taken = True
        await self._loop.connect_accepted_socket(
            cast(Callable[[], asyncio.Protocol], lambda: layer), handshake.sock
        )
        if layer.refusal is not None:
            raise layer.refusal

    def _on_done(self, handshake: _Handshake) -> None:
        """Lets the next connection begin its handshake."""
        if not handshake.taken:
            handshake.sock.close()
        self._counters.pending -= 1
        del self._handshakes[handshake]
        of_address = self._by_address[handshake.address]
        del of_address[handshake]
        if not of_address:
            del self._by_address[handshake.address]
        if not self._closed:
            self._start_next()

    def _sweep(self) -> None:
        """Ends old handshakes while others wait for their places."""
        self._sweeper = None
        for address, queue in self._waiting.items():
            if not self._may_start(address):
                self._evict(self._by_address[address], self._limits.per_address, len(queue))
        if len(self._handshakes) >= self._limits.total:
            self._evict(self._handshakes, self._limits.total, self._counters.waiting)
        self._start_next()

    def _evict(self, oldest_first: Iterable[_Handshake], places: int, waiting: int) -> None:
        """Ends up to `waiting` handshakes that are older than the grace."""
        old = self._gate.clock.monotonic() - self._limits.grace(places, waiting)
        for each in itertools.islice(oldest_first, waiting):
            if each.since > old:
                return
            if not each.evicted:
                each.evicted = True
                each.end()


def _reason(error: OSError) -> str:
    """Says why a handshake failed, for the operator."""
    reason = getattr(error, "reason", None)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"):
        return "the client does not use TLS, but this listener does: check its security.protocol"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted ({error.verify_message})"
    return str(error) or "the client closed the connection"


def _is_about_certificate(error: OSError) -> bool:
    """Returns whether this side has refused the client's certificate, or the lack of one."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    )
