"""The sending end of a connection: the parts of answers, by the cheapest way there is.

Small answers are joined, for a list costs the kernel more than copying does. Large ones go as they
are. What lies in a file is sent from there (`sendfile`): the bytes of a fetch are then touched by
nobody on this side, where reading them into memory and sending them from there copies them twice.

`sendfile` goes past the transport, straight to its socket. That keeps the order only while the
transport has nothing left to send, and a peer that takes no more must find the rest with the
transport, which tells the connection to pause. So whatever cannot leave at once is read into memory
and handed over.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final, cast

from penstock.net.counters import Counters
from penstock.net.session import Part
from penstock.ports import Buffer, Transport

JOIN_BYTES: Final = 64 << 10
"""Up to here copying parts together costs less than handing the kernel a list of them."""
_SENDS_FILES: Final = sys.platform == "linux"
"""Elsewhere `sendfile` differs in what it says of a peer that takes only a part."""

_MEMORY: Final = (bytes, bytearray, memoryview)

_log: Final = logging.getLogger(__name__)


class Outbox:
    __slots__ = ("_counters", "_socket", "_transport")

    def __init__(self, transport: Transport, counters: Counters) -> None:
        self._transport = transport
        self._counters = counters
        self._socket: socket.socket | None = None

    def send(self, parts: Sequence[Part], size: int) -> None:
        """Send the parts of whole answers, `size` bytes together."""
        self._counters.bytes_out += size
        if size <= JOIN_BYTES:
            # Ranges of files are larger than that.
            small = cast(Sequence[Buffer], parts)
            self._transport.write(small[0] if len(small) == 1 else b"".join(small))
        elif all(isinstance(part, _MEMORY) for part in parts):
            self._transport.writelines(cast(Sequence[Buffer], parts))
        else:
            self._send_files(parts)

    def close(self) -> None:
        """The transport is gone and has closed its socket, or is about to."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _send_files(self, parts: Sequence[Part]) -> None:
        transport = self._transport
        try:
            if transport.get_write_buffer_size() == 0 and self._open():
                parts = self._send_now(parts)
            if parts:
                transport.writelines(in_memory(parts))
        except OSError as error:
            # Half an answer is out, or none: the peer is gone, or the file does not read.
            _log.info("an answer could not be sent from its file: %s", error)
            transport.abort()

    def _open(self) -> bool:
        """Whether there is a socket to send to that nobody encrypts for."""
        if self._socket is None and _SENDS_FILES:
            known = self._transport.get_extra_info("socket")
            if known is None or self._transport.get_extra_info("sslcontext") is not None:
                return False
            # Not a duplicate: that would keep the connection open when the transport closes it.
            self._socket = socket.socket(fileno=known.fileno())
        return self._socket is not None

    def _send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send what the socket takes without waiting; returns what is left."""
        assert self._socket is not None
        for number, part in enumerate(parts):
            more = socket.MSG_MORE if number + 1 < len(parts) else 0
            sent = 0
            try:
                if isinstance(part, _MEMORY):
                    sent = self._socket.send(part, more) if len(part) else 0
                else:
                    while sent < len(part):
                        given = os.sendfile(
                            self._socket.fileno(),
                            part.fileno(),
                            part.position + sent,
                            len(part) - sent,
                        )
                        if not given:
                            raise OSError(errno.EIO, "the file is shorter than it was")
                        sent += given
            except BlockingIOError:
                pass
            if sent < len(part):
                rest = memoryview(part)[sent:] if isinstance(part, _MEMORY) else part.read(sent)
                return [rest, *parts[number + 1 :]]
        return ()


def in_memory(parts: Sequence[Part]) -> list[Buffer]:
    """The parts, those in files read: for whoever keeps them longer than a file is sure to stay."""
    return [part if isinstance(part, _MEMORY) else part.read() for part in parts]
