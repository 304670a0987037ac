"""How long a connection is muted because its client is over a quota (KIP-219).

A muted connection begins no request and reads nothing. The mute ends by itself, and when the
connection closes: nothing refers to the connection after that.

A connection that reads nothing does not learn that its client has disconnected, and a mute may last
for days. Clients that come back and are muted again would use up all connections. So the state of
the TCP connection is checked at each tick.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from penstock.net.counters import Counters
from penstock.ports import Transport

_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8
"""The client has closed its side."""


class Mute:
    """The mute of one connection. It refers to the connection only while it is muted."""

    __slots__ = ("_closed_since", "_counters", "_timer", "active")

    def __init__(self, counters: Counters) -> None:
        self.active = False
        self._counters = counters
        self._timer: asyncio.TimerHandle | None = None
        self._closed_since: float | None = None

    def begin(self, seconds: float, on_end: Callable[[], None]) -> None:
        """Mutes for this long, then calls `on_end`. If the connection is muted for longer already,
        nothing changes."""
        loop, timer = asyncio.get_running_loop(), self._timer
        until = loop.time() + seconds
        if timer is not None:
            if timer.when() >= until:
                return
            timer.cancel()
        else:
            self._counters.connections_muted += 1
        self.active = True
        self._timer = loop.call_at(until, self._expire, on_end)

    def end(self) -> None:
        """Ends the mute early, and calls nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.active = False
            self._counters.connections_muted -= 1

    def is_abandoned(self, transport: Transport, now: float, eof_timeout_s: float) -> bool:
        """Returns whether the client has disconnected while the connection was muted.

        A client that has closed its side may still read answers, for as long as without a mute."""
        state = _tcp_state(transport.get_extra_info("socket")) if self.active else None
        if state != _TCP_CLOSE_WAIT:
            self._closed_since = None
            return state == _TCP_CLOSE
        if self._closed_since is None:
            self._closed_since = now
        return now - self._closed_since >= eof_timeout_s

    def _expire(self, on_end: Callable[[], None]) -> None:
        self.end()
        on_end()


def _tcp_state(connected: Any) -> int | None:
    """Returns the state of a TCP connection as in Linux; None if it is not known."""
    if connected is None or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return None
    return info[0]
