"""Sends the parts of answers on a connection, each in the cheapest way.

Small answers are joined, because a list of buffers costs the kernel more than copying. Large ones
are sent as they are. Bytes in a file are sent from there with `sendfile`, so the broker never
touches the data of a fetch. Reading it into memory and sending it from there would copy it twice.

`sendfile` bypasses the transport and writes directly to its socket. That preserves the order only
while the transport has nothing left to send. What the socket does not accept stays in the file: a
small piece is read and handed to the transport, which tells the connection to pause, and to resume
when the piece has been sent. Then the rest is tried again. So a peer that does not read costs the
memory of one piece, however long its response is.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

from penstock.net.counters import Counters
from penstock.net.session import Part
from penstock.ports import Buffer, Transport

JOIN_BYTES: Final = 64 << 10
"""Up to this size, copying parts together costs less than passing the kernel a list."""
PIECE_BYTES: Final = 16 << 10
"""How much of a file is held in memory for a peer that does not accept it at once."""
_SENDS_FILES: Final = sys.platform == "linux"
"""On other platforms `sendfile` reports a partial send differently."""

_MEMORY: Final = (bytes, bytearray, memoryview)

_log: Final = logging.getLogger(__name__)


class Outbox:
    """The unsent answers of one connection."""

    __slots__ = ("_backlog", "_counters", "_limit", "_sent", "_socket", "_transport")

    def __init__(self, transport: Transport, counters: Counters, limit: int) -> None:
        """`limit` is how many bytes the transport may hold before the connection is paused."""
        self._transport = transport
        self._counters = counters
        self._limit = limit
        self._socket: socket.socket | None = None
        self._backlog: deque[Part] = deque()
        """What is not sent yet and not handed to the transport."""
        self._sent = 0
        """How much of the first part of the backlog has been sent."""
        transport.set_write_buffer_limits(high=limit)

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    @property
    def unsent(self) -> int:
        """Bytes that have not been sent, in memory or in files."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._backlog)) - self._sent

    @property
    def held(self) -> int:
        """Bytes of memory held by unsent data."""
        size = self._transport.get_write_buffer_size()
        return size + sum(len(part) for part in self._backlog if isinstance(part, _MEMORY))

    def send(self, parts: Sequence[Part], size: int) -> None:
        """Sends the parts of whole answers, `size` bytes in total."""
        self._counters.bytes_out += size
        if self._backlog:
            self._backlog.extend(parts)
        elif size <= JOIN_BYTES:
            # File ranges are larger than that.
            small = cast(Sequence[Buffer], parts)
            self._transport.write(small[0] if len(small) == 1 else b"".join(small))
        elif all(isinstance(part, _MEMORY) for part in parts):
            self._transport.writelines(cast(Sequence[Buffer], parts))
        else:
            self._backlog.extend(parts)
            self.go_on()

    def go_on(self) -> None:
        """Sends more of the backlog. If some is left, the transport has told the connection to
        pause, and this must be called again when it may resume."""
        transport, backlog = self._transport, self._backlog
        try:
            while backlog:
                if transport.get_write_buffer_size() == 0 and self._open():
                    self._send_now()
                    if not backlog:
                        break
                # Pause the connection at the first byte that cannot be sent.
                transport.set_write_buffer_limits(high=0)
                transport.write(self._take_piece())
                if transport.get_write_buffer_size():
                    break
        except OSError as error:
            # Part of an answer may have been sent, so the connection cannot continue: the peer is
            # gone, or the file cannot be read.
            _log.info("cannot send a response from a log file; closing the connection: %s", error)
            backlog.clear()
            transport.abort()
            return
        if not backlog:
            self._sent = 0
            transport.set_write_buffer_limits(high=self._limit)

    def close(self) -> None:
        """Drops the backlog. The transport has closed its socket, or is about to."""
        self._backlog.clear()
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _open(self) -> bool:
        """Whether there is a socket to send to without encryption."""
        if self._socket is None and _SENDS_FILES:
            known = self._transport.get_extra_info("socket")
            if known is None or self._transport.get_extra_info("sslcontext") is not None:
                return False
            # Not a duplicate: that would keep the connection open after the transport closes it.
            self._socket = socket.socket(fileno=known.fileno())
        return self._socket is not None

    def _send_now(self) -> None:
        """Sends what the socket accepts without blocking."""
        assert self._socket is not None
        backlog = self._backlog
        while backlog:
            part, more = backlog[0], socket.MSG_MORE if len(backlog) > 1 else 0
            try:
                while self._sent < len(part):
                    self._sent += self._send_some(part, self._socket, more)
            except BlockingIOError:
                return
            backlog.popleft()
            self._sent = 0

    def _send_some(self, part: Part, to: socket.socket, more: int) -> int:
        sent = self._sent
        if isinstance(part, _MEMORY):
            return to.send(memoryview(part)[sent:] if sent else part, more)
        given = os.sendfile(to.fileno(), part.fileno(), part.position + sent, len(part) - sent)
        if not given:
            raise OSError(errno.EIO, "the file is shorter than it was")
        return given

    def _take_piece(self) -> Buffer:
        """Returns the next bytes of the backlog, in memory."""
        part, sent = self._backlog[0], self._sent
        if isinstance(part, _MEMORY):
            self._backlog.popleft()
            self._sent = 0
            return memoryview(part)[sent:] if sent else part
        piece = part.read(sent, PIECE_BYTES)
        self._sent += len(piece)
        if self._sent == len(part):
            self._backlog.popleft()
            self._sent = 0
        return piece


def in_memory(parts: Sequence[Part]) -> list[Buffer]:
    """Returns the parts, with those in files read into memory."""
    return [part if isinstance(part, _MEMORY) else part.read() for part in parts]
