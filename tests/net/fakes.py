"""Fakes for the server: a network in memory, a clock that the test advances, scripted sessions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, cast

from penstock.net.config import ServerConfig
from penstock.net.server import Server
from penstock.net.session import Answer, Part, Peer
from penstock.ports import Buffer, BufferedReceiver, Listener, Network, Pace, Receiver, Transport
from penstock.wire.errors import ProtocolError

P = ParamSpec("P")


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def unframed(stream: bytes) -> list[bytes]:
    """Returns the bodies of the frames in a stream. A partial frame at the end fails the test."""
    bodies = []
    while stream:
        size = 4 + struct.unpack_from(">i", stream)[0]
        assert len(stream) >= size, "the stream ends inside an answer"
        bodies.append(stream[4:size])
        stream = stream[size:]
    return bodies


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs an async test on a new event loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


async def settle() -> None:
    """Lets the callbacks of finished futures run."""
    for _ in range(3):
        await asyncio.sleep(0)


@dataclass
class FakeClock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the server sets one timer and never sleeps")


class MemoryTransport:
    """The server's transport and the client's end in one. Bytes wait on each side until they are
    read.
    """

    def __init__(self, receiver: BufferedReceiver, peer: tuple[str, int], window: int) -> None:
        self.receiver = receiver
        self.window = window
        """How many more bytes the peer reads. Responses beyond that stay in the write buffer."""
        self.inbox = bytearray()
        self.unsent = bytearray()
        self.received = bytearray()
        self.reading = True
        self.lost = False
        self.aborted = False
        self.unsent_most = 0
        self.writes = 0
        self._peer = peer
        self._high = 64 << 10
        self._paused = False
        self._closing = False
        self._eof = False
        receiver.connection_made(self)

    # -- what the peer does

    def deliver(self, data: bytes = b"") -> None:
        """Sends as the peer. The connection reads as much as it accepts."""
        self.inbox += data
        while self.inbox and self.reading and not self._closing:
            space = memoryview(self.receiver.get_buffer(-1))
            size = min(len(space), len(self.inbox))
            assert size
            space[:size] = self.inbox[:size]
            del self.inbox[:size]
            self.receiver.buffer_updated(size)
        if self._eof and not self.inbox and self.reading and not self._closing:
            self.reading = False
            if not self.receiver.eof_received():
                self.close()

    def end(self) -> None:
        """Ends the peer's sending half."""
        self._eof = True
        self.deliver()

    def take(self, size: int) -> None:
        """Lets the peer read that much more."""
        self.window += size
        self._drain()

    def is_reading(self) -> bool:
        return self.reading

    def is_lost(self) -> bool:
        return self.lost

    def answers(self) -> list[bytes]:
        return unframed(bytes(self.received))

    def lose(self, error: Exception | None = None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self.receiver.connection_lost(error)

    def _drain(self) -> None:
        size = min(self.window, len(self.unsent))
        self.received += self.unsent[:size]
        del self.unsent[:size]
        self.window -= size
        if self._paused and len(self.unsent) <= self._high // 4:
            self._paused = False
            self.receiver.resume_writing()
        if self._closing and not self.unsent:
            asyncio.get_running_loop().call_soon(self.lose)

    # -- Transport

    def write(self, data: Buffer) -> None:
        assert not self.lost, "written to a lost connection"
        self.writes += 1
        self.unsent += data
        self._drain()
        self.unsent_most = max(self.unsent_most, len(self.unsent))
        if len(self.unsent) > self._high and not self._paused:
            self._paused = True
            self.receiver.pause_writing()

    def writelines(self, parts: Sequence[Buffer]) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        asyncio.get_running_loop().call_soon(self.deliver)

    def close(self) -> None:
        self._closing = True
        if not self.unsent:
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self.aborted = self._closing = True
        self.unsent.clear()
        asyncio.get_running_loop().call_soon(self.lose)

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None


class MemoryListener:
    def __init__(self) -> None:
        self.open = True

    def address(self) -> tuple[str, int]:
        return "10.0.0.1", 9092

    async def close(self) -> None:
        self.open = False


class MemoryNetwork:
    def __init__(self) -> None:
        self.listener = MemoryListener()
        self._accept: Callable[[], Receiver] | None = None
        self._next_port = 40_000

    async def listen(
        self, host: str, port: int, receiver: Callable[[], Receiver], pace: Pace | None = None
    ) -> Listener:
        self._accept = receiver
        return self.listener

    async def connect(
        self, host: str, port: int, receiver: Callable[[], Receiver], timeout_s: float
    ) -> Transport:
        raise AssertionError("a server does not connect")

    def open(self, host: str = "10.1.1.1", window: int = 1 << 30) -> MemoryTransport:
        """Connects a peer that reads `window` bytes of responses and then stalls."""
        assert self._accept is not None
        self._next_port += 1
        receiver = cast(BufferedReceiver, self._accept())
        return MemoryTransport(receiver, (host, self._next_port), window)


@dataclass
class Script:
    """A session in which each request says how it is to be answered.

    b"e..." is echoed. b"d..." is echoed by a future that is already done. b"f..." waits for the
    test. b"s..." waits too, and overlaps with no other request. b"n..." has no response. b"p" and
    b"x" fail. b"c..." is echoed and closes the connection. b"b<size>" is answered with that many
    bytes.
    """

    peer: Peer
    frames: list[bytes] = field(default_factory=list)
    futures: dict[bytes, asyncio.Future[Sequence[Part] | None]] = field(default_factory=dict)
    closed: int = 0

    def may_overlap(self, frame: memoryview) -> bool:
        return b"s" not in (bytes(frame[:1]), self.frames[-1][:1])

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        body = bytes(frame)
        self.frames.append(body)
        match body[:1]:
            case b"f" | b"s":
                future = asyncio.get_running_loop().create_future()
                self.futures[body] = future
                return cast("asyncio.Future[Sequence[Part] | None]", future)
            case b"d":
                done = asyncio.get_running_loop().create_future()
                done.set_result([framed(body)])
                return cast("asyncio.Future[Sequence[Part] | None]", done)
            case b"n":
                return None
            case b"p":
                raise ProtocolError("not a request")
            case b"x":
                raise RuntimeError("a bug")
            case b"c":
                self.peer.close()
            case b"b":
                return [framed(bytes(int(body[1:])))]
        return [struct.pack(">i", len(body)), body]

    def on_closed(self) -> None:
        self.closed += 1

    def finish(self, *names: bytes) -> None:
        for name in names:
            self.futures.pop(name).set_result([framed(name)])


class Rig:
    """A started server on fakes."""

    def __init__(self, config: ServerConfig | None = None) -> None:
        self.clock = FakeClock()
        self.network = MemoryNetwork()
        self.sessions: list[Script] = []
        self.script: Callable[[Peer], Script] = Script
        network: Network = self.network
        self.server = Server(network, self.clock, config or ServerConfig(), self._session)

    def _session(self, peer: Peer) -> Script:
        self.sessions.append(self.script(peer))
        return self.sessions[-1]

    async def started(self) -> Rig:
        await self.server.start()
        return self

    def connect(
        self, host: str = "10.1.1.1", window: int = 1 << 30
    ) -> tuple[MemoryTransport, Script]:
        transport = self.network.open(host, window)
        return transport, self.sessions[-1]

    async def ticks(self, seconds: float) -> None:
        """Advances the clock, with one tick per second."""
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.server.tick()
        await settle()


async def rig(**limits: Any) -> Rig:
    return await Rig(ServerConfig(**limits)).started()
