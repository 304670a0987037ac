"""One TLS handshake on a connected socket, before a transport exists.

A handshake takes up to a millisecond of processor time, and far more with large keys. So OpenSSL
computes it on an executor, and the event loop only receives and sends. OpenSSL works without the
interpreter's lock, so the event loop goes on meanwhile.

The executor gets work only when a whole record has arrived: a client that sends its first message
byte by byte costs no more than another. The executor never uses the socket, so the owner may close
the socket at any time, also while OpenSSL is at work.

All computing stays on the executor, also where it would be short: a client chooses the key
exchange, and with the largest groups of FFDHE one message takes 0.1 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.ports import Executor

RECEIVED_BYTES: Final = 16 << 10
"""How much is received at a time."""
STEP_RECORDS: Final = 64
"""How many records are processed in one step."""

HEADER_BYTES: Final = 5
_RECORD_TYPES: Final = range(0x14, 0x18)


@dataclass(frozen=True, slots=True)
class Secured:
    """The result of a handshake."""

    context: ssl.SSLContext
    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    early: bytes
    """What the peer sent after its last message of the handshake. It begins with a record."""


class TlsHandshake:
    """The handshake of one connection. The socket does not block, and stays its owner's."""

    def __init__(
        self,
        sock: socket.socket,
        context: Callable[[], ssl.SSLContext],
        server_hostname: str | None = None,
    ) -> None:
        """`context` is called once, when the handshake begins. Without `server_hostname`, this is
        the side of the server, and it begins with the first record of the client."""
        self._sock = sock
        self._new_context = context
        self._server_hostname = server_hostname
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._received = bytearray()
        """What was not passed to OpenSSL."""
        self._is_foreign = False
        """Whether the peer has sent something that is no record."""

    async def run(self, executor: Executor, turns: asyncio.Semaphore | None = None) -> Secured:
        """Completes the handshake. Raises OSError, and what `context` raises.

        With `turns`, it receives and computes only while it has one of them. It has none while it
        waits for the peer.
        """
        send = asyncio.get_running_loop().sock_sendall
        turn = contextlib.nullcontext() if turns is None else turns
        is_awaited = self._server_hostname is None
        context: ssl.SSLContext | None = None
        while True:
            if is_awaited and not self._whole_records():
                await _readable(self._sock)
            async with turn:
                if is_awaited and not self._receive():
                    continue
                if context is None:
                    context = self._new_context()
                is_awaited = True
                tls, is_complete = await self._compute(executor, context)
                unsent = self._send()
            if unsent:
                await send(self._sock, unsent)
            if self._is_foreign and not is_complete:
                raise ConnectionAbortedError("the peer is not using TLS")
            if is_complete:
                early = self._incoming.read() + bytes(self._received)
                return Secured(context, tls, self._incoming, self._outgoing, early)

    async def _compute(
        self, executor: Executor, context: ssl.SSLContext
    ) -> tuple[ssl.SSLObject, bool]:
        try:
            return await executor.run(lambda: self._step(context))
        except OSError:
            # OpenSSL may have an alert for the peer, which says why.
            with contextlib.suppress(OSError):
                self._sock.send(self._outgoing.read())
            raise

    def _step(self, context: ssl.SSLContext) -> tuple[ssl.SSLObject, bool]:
        """Processes the records that have arrived. Returns whether the handshake is complete."""
        if self._tls is None:
            host = self._server_hostname
            self._tls = context.wrap_bio(self._incoming, self._outgoing, host is None, host)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._tls, False
        return self._tls, True

    def _receive(self) -> bool:
        """Passes whole records to OpenSSL. Returns False if none has arrived."""
        size = self._whole_records()
        if not size:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                data = self._sock.recv(RECEIVED_BYTES)
                if not data:
                    raise ConnectionResetError("the peer closed the connection")
                self._received += data
            size = self._whole_records()
        self._incoming.write(self._received[:size])
        del self._received[:size]
        return size > 0

    def _send(self) -> bytes:
        """Sends what OpenSSL has for the peer. Returns what the socket does not accept now."""
        data = self._outgoing.read()
        if data:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                return data[self._sock.send(data) :]
        return data

    def _whole_records(self) -> int:
        """Returns the size of the whole records that have arrived, as far as one step processes
        them. What is no record is passed on as it is: OpenSSL knows what else it may be."""
        received, end = self._received, 0
        for _ in range(STEP_RECORDS):
            if end < len(received) and received[end] not in _RECORD_TYPES:
                self._is_foreign = True
                return len(received)
            if end + HEADER_BYTES > len(received):
                break
            after = end + HEADER_BYTES + (received[end + 3] << 8 | received[end + 4])
            if after > len(received):
                break
            end = after
        return end


async def _readable(sock: socket.socket) -> None:
    """Waits until there is something to receive."""
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    number = sock.fileno()

    def on_arrived() -> None:
        loop.remove_reader(number)
        if not arrived.done():
            arrived.set_result(None)

    loop.add_reader(number, on_arrived)
    try:
        await arrived
    finally:
        loop.remove_reader(number)
