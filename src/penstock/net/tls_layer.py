"""TLS between the transport of an event loop and a receiver, with bounded work in each turn.

Records are decrypted into the buffer of the receiver. All connections of an event loop share the
buffer that encrypted bytes are read into. The event loops' own TLS has one of 256 KiB for each.
The handshake comes before: see `tls_handshake`.

A peer can send records that contain no data: an update of its key has 27 bytes and takes 10 to 20
microseconds to process. A read of 256 KiB full of them would stop the event loop for a fifth of a
second. So a connection processes at most `TURN_RECORDS` in one turn, and encrypts at most
`TURN_BYTES`. The rest waits for the next turn, and nothing more is read meanwhile. A peer that
sends many records without data, and little else, is disconnected.

A receiver is told of everything as by a transport without TLS. A peer that has sent close_notify
may still read, if the receiver keeps the connection open. When the connection closes, it sends
close_notify and does not wait for that of the peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from penstock.net.tls_handshake import HEADER_BYTES, Secured
from penstock.ports import Buffer, BufferedReceiver, Receiver, StreamReceiver, Transport

READ_BYTES: Final = 256 << 10
TURN_RECORDS: Final = 64
TURN_BYTES: Final = 256 << 10
IDLE_RECORDS_MAX: Final = 256
"""How many records without data a peer may send. Each time that data arrives, it may send one more.
Clients send such a record after gigabytes of data, if at all."""
SEND_BYTES: Final = 64 << 10
"""How much is encrypted before it is passed to the transport."""
JOIN_BYTES: Final = 64 << 10
"""Up to this size, parts are joined, because each part would be a record of its own."""

_RECORD_BYTES: Final = 16 << 10
"""The most data that a record contains."""
_NOTHING: Final = memoryview(b"")


class _Shared(threading.local):
    """The buffers that all connections of one event loop share. Their content is used up before the
    next read, or copied."""

    def __init__(self) -> None:
        self.encrypted = memoryview(bytearray(READ_BYTES))
        self.decrypted = memoryview(bytearray(READ_BYTES // 4))


_shared: Final = _Shared()


class _Stream:
    """Lets a receiver of byte strings be used as one with a buffer."""

    def __init__(self, receiver: StreamReceiver) -> None:
        self.connection_made = receiver.connection_made
        self.connection_lost = receiver.connection_lost
        self.pause_writing = receiver.pause_writing
        self.resume_writing = receiver.resume_writing
        self._data_received = receiver.data_received
        self._buffer = _shared.decrypted

    def get_buffer(self, size_hint: int) -> Buffer:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._data_received(bytes(self._buffer[:size]))

    def eof_received(self) -> bool:
        return False


class TlsLayer(asyncio.BufferedProtocol):
    """The protocol of a transport without TLS, and a `ports.Transport` with TLS for a receiver."""

    def __init__(
        self,
        secured: Secured,
        receiver: Receiver,
        on_failed: Callable[[OSError], None] | None = None,
    ) -> None:
        """`on_failed` is called if an error of TLS ends the connection."""
        self._loop = asyncio.get_running_loop()
        self._context = secured.context
        self._receiver = (
            cast(BufferedReceiver, receiver)
            if hasattr(receiver, "get_buffer")
            else _Stream(cast(StreamReceiver, receiver))
        )
        self._incoming, self._outgoing = secured.incoming, secured.outgoing
        self._tls = secured.tls
        self._on_failed = on_failed
        self._read = cast(Callable[[int, memoryview], int], self._tls.read)
        self._transport: Transport | None = None
        self._eof = self._closing = self._lost = False
        self.refusal: Exception | None = None
        """What the receiver raised when it was told of the connection. It is then aborted."""
        self._error: OSError | None = None
        """Why TLS failed. The connection then closes by itself."""
        self._buffer = _shared.encrypted
        # What was read and not passed to OpenSSL
        self._data = _NOTHING
        self._position = 0
        self._head = secured.early
        """What comes before the next bytes: the part of a record's header that has arrived, or what
        arrived during the handshake."""
        self._missing = 0
        """How many bytes of the current record have not arrived."""
        self._ready = 0
        """How many whole records OpenSSL has, at most, that the receiver has not taken."""
        self._idle = 0
        """How many records without data have arrived, as counted for the limit."""
        self._reading = True
        self._is_paused = False
        """Whether the transport was told not to read."""
        self._work_is_due = False
        # What is not encrypted yet
        self._pieces: deque[memoryview] = deque()
        self._unsent = 0
        self._high = SEND_BYTES
        self._is_full = False
        """Whether the transport accepts nothing more."""
        self._write_paused = False
        self._send_is_due = False

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        try:
            self._receiver.connection_made(self)
        except Exception as error:  # noqa: BLE001 - its owner raises it
            self.refusal = error
            self._lost = True
            self.abort()
            return
        if self._head:
            self._loop.call_soon(self._take_early)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._pieces.clear()
        self._unsent = 0
        self._data = _NOTHING
        if self.refusal is None:
            self._receiver.connection_lost(self._error or error)

    def eof_received(self) -> bool:
        self._take_early()
        self._on_end()
        return bool(self._pieces) or not self._closing

    def _on_end(self) -> None:
        """The peer sends no more."""
        if self._eof or self._closing or self._lost:
            return
        self._eof = True
        if not self._receiver.eof_received():
            self.close()

    def _fail(self, error: OSError) -> None:
        """Ends the connection. OpenSSL may have an alert for the peer, which says why."""
        self._lost = True
        self._error = error
        transport = self._open_transport()
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            self._flush()
            transport.close()
        if self._on_failed is not None:
            self._on_failed(error)

    def _open_transport(self) -> Transport:
        assert self._transport is not None
        return self._transport

    # -- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._eof or self._closing or self._lost:
            return
        self._data = self._buffer[:size]
        if self._head:
            self._data = memoryview(self._head + self._data)
            self._head = b""
        self._position = 0
        self._work()

    def _work(self) -> None:
        """Processes what was read, as far as one turn of the event loop allows."""
        if self._reading:
            self._receive()
        if self._eof or self._closing or self._lost:
            self._data = _NOTHING
            return
        if self._position < len(self._data) or self._ready:
            if self._data.obj is self._buffer.obj:
                self._data, self._position = memoryview(bytes(self._data[self._position :])), 0
            self._pause()
            if self._reading:
                self._continue_soon()
        else:
            self._data, self._position = _NOTHING, 0
            if self._reading:
                self._resume()

    def _take_early(self) -> None:
        """Processes what arrived during the handshake, if nothing has arrived since."""
        if self._head:
            try:
                self.buffer_updated(0)
            except BaseException:
                self.abort()
                raise

    def _continue_soon(self) -> None:
        if not self._work_is_due:
            self._work_is_due = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._work_is_due = False
        if self._closing or self._lost or not self._reading:
            return
        try:
            self._work()
        except BaseException:
            self.abort()
            raise

    def _feed(self, records_max: int) -> int:
        """Passes whole records to OpenSSL, or the begin of one if there is no other. Returns how
        many records are complete."""
        if records_max <= 0:
            return 0
        data, begin = self._data, self._position
        end, size, count = begin + self._missing, len(data), 0
        if self._missing:
            if end > size:
                return self._feed_part(end - size)
            self._missing, count = 0, 1
        while count < records_max and end + HEADER_BYTES <= size:
            after = end + HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
            if after > size:
                if not count:
                    return self._feed_part(after - size)
                break
            end = after
            count += 1
        if count:
            self._position = end
            self._incoming.write(data[begin:end])
        else:
            self._head = bytes(data[begin:])
            self._position = size
        return count

    def _feed_part(self, missing: int) -> int:
        self._incoming.write(self._data[self._position :])
        self._position = len(self._data)
        self._missing = missing
        return 0

    def _receive(self) -> None:
        """Decrypts records into the buffers of the receiver."""
        receiver, read, left = self._receiver, self._read, TURN_RECORDS
        error: OSError | None = None
        is_end = False
        while self._reading:
            ready = self._ready
            if not ready:
                ready = self._feed(left)
                if not ready:
                    return
                left -= ready
            buffer = memoryview(receiver.get_buffer(-1))
            size, filled = len(buffer), 0
            try:
                while ready:
                    got = read(size - filled, buffer[filled:])
                    filled += got
                    if filled == size or not got:
                        is_end = not got
                        ready -= not self._tls.pending()
                        break
                    ready -= 1
            except ssl.SSLWantReadError:
                self._idle += ready  # the last records have no data, or some before them
                ready = 0
            except OSError as failure:
                error = failure
            self._ready = ready
            if filled:
                self._idle -= self._idle > 0
                receiver.buffer_updated(filled)
            if self._lost or self._closing:
                return
            if error is None and self._idle > IDLE_RECORDS_MAX:
                error = ConnectionAbortedError("the peer sent too many TLS records without data")
            if error is not None:
                self._fail(error)
                return
            if self._outgoing.pending:
                self._flush()
            if is_end:
                self._on_end()
                return

    def pause_reading(self) -> None:
        self._reading = False
        self._pause()

    def resume_reading(self) -> None:
        if self._reading or self._eof or self._closing or self._lost:
            return
        self._reading = True
        if self._position < len(self._data) or self._ready:
            self._continue_soon()
        else:
            self._resume()

    def _pause(self) -> None:
        if not self._is_paused and not self._lost:
            self._is_paused = True
            self._open_transport().pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self._lost:
            self._is_paused = False
            self._open_transport().resume_reading()

    # -- writing

    def write(self, data: Buffer) -> None:
        if self._closing or self._lost or not len(data):
            return
        if len(data) > _RECORD_BYTES or self._pieces or self._is_full:
            self._pieces.append(memoryview(data))
            self._unsent += len(data)
            self._send_now()
            return
        try:
            self._tls.write(data)
        except OSError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        if size <= JOIN_BYTES:
            self.write(b"".join(parts))
        elif not (self._closing or self._lost):
            self._pieces.extend(memoryview(part) for part in parts if len(part))
            self._unsent += size
            self._send_now()

    def _send_now(self) -> None:
        if not self._is_full and not self._send_is_due:
            self._send()
        self._pause_receiver()

    def _send(self) -> None:
        """Encrypts what the transport accepts, as far as one turn of the event loop allows."""
        pieces, encrypt, left = self._pieces, self._tls.write, TURN_BYTES
        try:
            while pieces and left > 0 and not self._is_full:
                piece = pieces.popleft()
                if len(piece) > SEND_BYTES:
                    pieces.appendleft(piece[SEND_BYTES:])
                    piece = piece[:SEND_BYTES]
                encrypt(piece)
                left -= len(piece)
                self._unsent -= len(piece)
                self._flush()
        except OSError as error:
            self._fail(error)
            return
        if pieces and not self._is_full:
            self._send_is_due = True
            self._loop.call_soon(self._send_more)
        elif self._closing and not pieces:
            self._finish()

    def _send_more(self) -> None:
        self._send_is_due = False
        if self._lost or self._is_full:
            return
        self._send()
        if self._write_paused and not (self._pieces or self._is_full or self._lost):
            self._write_paused = False
            self._receiver.resume_writing()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._open_transport().write(self._outgoing.read())

    def _pause_receiver(self) -> None:
        if self._write_paused or self._lost:
            return
        if self.get_write_buffer_size() > self._high:
            self._write_paused = True
            self._receiver.pause_writing()

    def pause_writing(self) -> None:
        """Called by the transport."""
        self._is_full = True
        self._pause_receiver()

    def resume_writing(self) -> None:
        """Called by the transport."""
        self._is_full = False
        if not self._send_is_due:
            self._send_more()

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high
        self._open_transport().set_write_buffer_limits(high=high)
        self._pause_receiver()

    def get_write_buffer_size(self) -> int:
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return size + self._unsent

    # -- closing

    def close(self) -> None:
        """Sends what is buffered, then closes."""
        if self._closing or self._lost:
            return
        self._pause()
        self._closing = True
        self._reading = False
        if not self._pieces:
            self._finish()

    def _finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()  # never complete: the peer has not sent its close_notify
        self._flush()
        self._open_transport().close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        match name:
            case "ssl_object":
                return self._tls
            case "sslcontext":
                return self._context
        return None if self._transport is None else self._transport.get_extra_info(name)
