"""The seam between connections, which know frames, and a broker, which knows what they mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.ports import Buffer


class FileRange(Protocol):
    """Bytes that lie in a file, to be sent from there: more than 64 KiB, or it does not pay."""

    @property
    def position(self) -> int: ...

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """The file's descriptor, open until the caller gives up control; OSError if the bytes are
        no longer there. Then the connection ends."""

    def read(self, skip: int = 0, bytes_max: int | None = None) -> Buffer:
        """The bytes after the first `skip`, at most `bytes_max`, if they cannot be sent so."""


Part = Buffer | FileRange
Answer = Sequence[Part] | asyncio.Future[Sequence[Part] | None] | None
"""The parts of one response frame, its length included; or those later; or no response at all.

Parts are sent without a copy where that is cheaper, so they must not change once returned. A range
of a file is read as the peer takes it, which may take long.
"""


class Session(Protocol):
    """One connection's conversation. Calls come one at a time, in the order of the requests."""

    def on_borrowed(self, frame: memoryview) -> Answer:
        """A request in memory that is used again as soon as this returns: read it, write into it,
        keep no part of it. None if it cannot be served so: then `on_frame` gets it, in memory of
        its own."""

    def on_frame(self, frame: memoryview) -> Answer:
        """A request, without its length; the memory is writable and the session's to keep.

        A `ProtocolError`, raised here or by the future, closes the connection once the answers to
        earlier requests have left. So does any other exception, which is also logged.
        """

    def may_overlap(self, frame: memoryview) -> bool:
        """Whether this request may begin now, although earlier requests of the connection are not
        answered yet. Asked only while there are such. If False, it begins when all of them are."""

    def on_closed(self) -> None:
        """The connection is gone. Futures still unanswered are left to whoever made them."""


class Peer(Protocol):
    """What a session may know of its connection and ask of it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def frame_bytes_max(self) -> int:
        """The largest request taken; settable, as when a connection has not authenticated yet."""

    @frame_bytes_max.setter
    def frame_bytes_max(self, value: int) -> None: ...

    is_replica: bool
    """Set by the session once the peer has shown to be a broker that copies a partition: it is
    not dropped when memory is short."""

    def close(self) -> None:
        """Take no more requests, send the answers to those taken, then close."""
