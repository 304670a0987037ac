"""The sending end of a connection: the parts of answers, by the cheapest way there is.

Small answers are joined, for a list costs the kernel more than copying does. Large ones go as they
are. What lies in a file is sent from there (`sendfile`): the bytes of a fetch are then touched by
nobody on this side, where reading them into memory and sending them from there copies them twice.

`sendfile` goes past the transport, straight to its socket. That keeps the order only while the
transport has nothing left to send. What the socket does not take stays in the file: a small piece
is read and handed to the transport, which tells the connection to pause, and to resume when the
piece has left. Then the rest is tried again. So a peer that does not read costs one piece of
memory, however long its response is.
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
"""Up to here copying parts together costs less than handing the kernel a list of them."""
PIECE_BYTES: Final = 16 << 10
"""How much of a file is in memory for a peer that does not take it at once."""
_SENDS_FILES: Final = sys.platform == "linux"
"""Elsewhere `sendfile` differs in what it says of a peer that takes only a part."""

_MEMORY: Final = (bytes, bytearray, memoryview)

_log: Final = logging.getLogger(__name__)


class Outbox:
    __slots__ = ("_backlog", "_counters", "_limit", "_sent", "_socket", "_transport")

    def __init__(self, transport: Transport, counters: Counters, limit: int) -> None:
        """`limit` is how much the transport may hold before the connection is paused."""
        self._transport = transport
        self._counters = counters
        self._limit = limit
        self._socket: socket.socket | None = None
        self._backlog: deque[Part] = deque()
        """What was not sent yet and is not with the transport."""
        self._sent = 0
        """How much of the first part of the backlog has been sent."""
        transport.set_write_buffer_limits(high=limit)

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    @property
    def unsent(self) -> int:
        """Bytes that have not left, wherever they are."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._backlog)) - self._sent

    @property
    def held(self) -> int:
        """Bytes of memory taken by what has not left."""
        size = self._transport.get_write_buffer_size()
        return size + sum(len(part) for part in self._backlog if isinstance(part, _MEMORY))

    def send(self, parts: Sequence[Part], size: int) -> None:
        """Send the parts of whole answers, `size` bytes together."""
        self._counters.bytes_out += size
        if self._backlog:
            self._backlog.extend(parts)
        elif size <= JOIN_BYTES:
            # Ranges of files are larger than that.
            small = cast(Sequence[Buffer], parts)
            self._transport.write(small[0] if len(small) == 1 else b"".join(small))
        elif all(isinstance(part, _MEMORY) for part in parts):
            self._transport.writelines(cast(Sequence[Buffer], parts))
        else:
            self._backlog.extend(parts)
            self.go_on()

    def go_on(self) -> None:
        """Send more of the backlog. If some is left, the transport has told the connection to
        pause, and this is to be called when it may resume."""
        transport, backlog = self._transport, self._backlog
        try:
            while backlog:
                if transport.get_write_buffer_size() == 0 and self._open():
                    self._send_now()
                    if not backlog:
                        break
                # From the first byte on that does not leave the connection is paused.
                transport.set_write_buffer_limits(high=0)
                transport.write(self._take_piece())
                if transport.get_write_buffer_size():
                    break
        except OSError as error:
            # Half an answer is out, or none: the peer is gone, or the file does not read.
            _log.info("an answer could not be sent from its file: %s", error)
            backlog.clear()
            transport.abort()
            return
        if not backlog:
            self._sent = 0
            transport.set_write_buffer_limits(high=self._limit)

    def close(self) -> None:
        """The transport is gone and has closed its socket, or is about to."""
        self._backlog.clear()
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _open(self) -> bool:
        """Whether there is a socket to send to that nobody encrypts for."""
        if self._socket is None and _SENDS_FILES:
            known = self._transport.get_extra_info("socket")
            if known is None or self._transport.get_extra_info("sslcontext") is not None:
                return False
            # Not a duplicate: that would keep the connection open when the transport closes it.
            self._socket = socket.socket(fileno=known.fileno())
        return self._socket is not None

    def _send_now(self) -> None:
        """Send what the socket takes without waiting."""
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
        """The next bytes of the backlog, in memory."""
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
    """The parts, with those in files read."""
    return [part if isinstance(part, _MEMORY) else part.read() for part in parts]
