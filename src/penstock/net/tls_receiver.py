"""Lets a receiver use a connection with TLS as it uses one without."""

from __future__ import annotations

import asyncio
from typing import cast

from penstock.ports import Buffer, BufferedReceiver, Receiver, StreamReceiver, Transport


class _Writing:
    """Tells a receiver when to pause and to resume writing, as plain transports do.

    A transport with TLS calls `resume_writing` from within `write`. A receiver that writes more
    when it resumes would then call itself without end. So it resumes in the next turn of the loop.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._is_due = False

    def pause(self) -> None:
        self._paused = True
        self._receiver.pause_writing()

    def resume(self) -> None:
        self._paused = False
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_due = False
        if not self._paused:
            self._receiver.resume_writing()

    def end(self) -> None:
        """After the connection is lost, nothing resumes."""
        self._paused = True


def adapted(receiver: Receiver) -> asyncio.BaseProtocol:
    """Returns a protocol for the event loop that passes everything on to a receiver, with the
    semantics of a connection without TLS."""
    if hasattr(receiver, "get_buffer"):
        return _Buffered(cast(BufferedReceiver, receiver))
    return _Stream(cast(StreamReceiver, receiver))


class _Buffered(asyncio.BufferedProtocol):
    def __init__(self, receiver: BufferedReceiver) -> None:
        self._receiver = receiver
        self._writing = _Writing(receiver)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._receiver.connection_made(cast(Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._writing.end()
        self._receiver.connection_lost(error)

    def pause_writing(self) -> None:
        self._writing.pause()

    def resume_writing(self) -> None:
        self._writing.resume()

    def get_buffer(self, size_hint: int) -> Buffer:
        return self._receiver.get_buffer(size_hint)

    def buffer_updated(self, size: int) -> None:
        self._receiver.buffer_updated(size)

    def eof_received(self) -> bool:
        """Tells the receiver. TLS has no half-closed connections, so the connection closes."""
        self._receiver.eof_received()
        return False


class _Stream(asyncio.Protocol):
    def __init__(self, receiver: StreamReceiver) -> None:
        self._receiver = receiver
        self._writing = _Writing(receiver)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._receiver.connection_made(cast(Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._writing.end()
        self._receiver.connection_lost(error)

    def pause_writing(self) -> None:
        self._writing.pause()

    def resume_writing(self) -> None:
        self._writing.resume()

    def data_received(self, data: bytes) -> None:
        self._receiver.data_received(data)
