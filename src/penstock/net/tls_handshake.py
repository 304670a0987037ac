"""One TLS handshake on a connected socket, before a transport exists.

A handshake takes up to a millisecond of processor time, and far more with large keys. So OpenSSL
computes it on an executor, and the event loop only receives and sends. OpenSSL works without the
interpreter's lock, so the event loop goes on meanwhile.

The executor gets work only when a whole record has arrived: a client that sends its first message
byte by byte costs no more than another. The executor never uses the socket, so the owner may close
the socket at any time, also while OpenSSL is at work.
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

    async def run(self, executor: Executor) -> Secured:
        """Completes the handshake. Raises OSError, and what `context` raises."""
        send = asyncio.get_running_loop().sock_sendall
        if self._server_hostname is None:
            await self._receive()
        context = self._new_context()
        while True:
            try:
                tls, is_complete = await executor.run(lambda: self._step(context))
            except OSError:
                # OpenSSL may have an alert for the peer, which says why.
                with contextlib.suppress(OSError):
                    self._sock.send(self._outgoing.read())
                raise
            if self._outgoing.pending:
                await send(self._sock, self._outgoing.read())
            if self._is_foreign and not is_complete:
                raise ConnectionAbortedError("the peer does not use TLS")
            if is_complete:
                early = self._incoming.read() + bytes(self._received)
                return Secured(context, tls, self._incoming, self._outgoing, early)
            await self._receive()

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

    async def _receive(self) -> None:
        """Passes whole records to OpenSSL, after waiting for at least one."""
        receive = asyncio.get_running_loop().sock_recv
        while not (size := self._whole_records()):
            data = await receive(self._sock, RECEIVED_BYTES)
            if not data:
                raise ConnectionResetError("the peer closed the connection")
            self._received += data
        self._incoming.write(self._received[:size])
        del self._received[:size]

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
