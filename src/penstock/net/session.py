"""The interface between connections, which handle frames, and a broker, which interprets them.

`broker.dispatch.BrokerSession` implements it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.net.fair_turns import Turn
from penstock.ports import Buffer


class FileRange(Protocol):
    """Bytes in a file, to be sent from there. Must be more than 64 KiB: less is not worthwhile, and
    `Outbox.send` relies on it."""

    @property
    def position(self) -> int: ...

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """Returns the file's descriptor, valid until the caller yields to the event loop. Raises
        OSError if the bytes are no longer there; the connection is then closed."""

    def read(self, skip: int = 0, bytes_max: int | None = None) -> Buffer:
        """Returns the bytes after the first `skip`, at most `bytes_max`, for when they cannot be
        sent from the file."""


Part = Buffer | FileRange
Answer = Sequence[Part] | asyncio.Future[Sequence[Part] | None] | None
"""The parts of one response frame, including its length; or a future of them; or None for no
response.

Parts are sent without a copy if that is cheaper, so they must not change once returned. A range of
a file is read as the peer accepts it, which may take long.
"""


class SessionRefused(Exception):
    """The client may not have a session. Its connection is closed, and the message is logged."""


class Session(Protocol):
    """The protocol logic of one connection. Calls come one at a time, in request order."""

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        """Serves a request, given without its length. The memory is writable.

        The session may keep the memory unless it is `borrowed`: then it is reused as soon as this
        returns, and a session that needs any part of it later must copy the frame first.

        A `ProtocolError`, raised here or by the future, closes the connection once the answers to
        earlier requests have been sent. So does any other exception, which is also logged.
        """

    def may_overlap(self, frame: memoryview) -> bool:
        """Whether this request may begin now, although earlier requests of the connection are not
        answered yet. Called only if there are such requests. If False, it begins when all of them
        are answered."""

    def on_closed(self) -> None:
        """Called when the connection is closed. Futures that are not answered yet are not
        cancelled."""


class Peer(Protocol):
    """What a session may know about its connection and request from it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def frame_bytes_max(self) -> int:
        """The largest request that is accepted. It can be set, for example while a connection is
        not authenticated."""

    @frame_bytes_max.setter
    def frame_bytes_max(self, value: int) -> None: ...

    is_replica: bool
    """Set by the session once the peer has identified itself as a broker that replicates a
    partition. Such a connection is not dropped when memory is short."""

    @property
    def turn(self) -> Turn:
        """Its share of the broker under overload. The session sets its tenant to the user."""

    def get_extra_info(self, name: str) -> Any:
        """Returns what the transport knows, such as "ssl_object"; None if it knows nothing."""

    def replace_session(self, session: Session) -> None:
        """Passes later requests to another session: this one has authenticated the client. The old
        session may still get requests that have already arrived."""

    def mute(self, seconds: float) -> None:
        """Begins no more requests and reads nothing for this long, because the client is over a
        quota. Answers are still sent. While the connection is muted, the longer time counts."""

    def close(self) -> None:
        """Accepts no more requests, sends the answers to those already accepted, then closes."""
