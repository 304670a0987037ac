"""How long a connection is muted because its client is over a quota (KIP-219).

A muted connection begins no request and reads nothing. The mute ends by itself, and when the
connection closes: nothing refers to the connection after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.net.counters import Counters


class Mute:
    """The mute of one connection. `on_end` is called when the time is over, but not by `end`."""

    __slots__ = ("_counters", "_on_end", "_timer", "active")

    def __init__(self, counters: Counters, on_end: Callable[[], None]) -> None:
        self.active = False
        self._counters = counters
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Mutes for this long. If the connection is muted for longer already, nothing changes."""
        loop, timer = asyncio.get_running_loop(), self._timer
        until = loop.time() + seconds
        if timer is not None:
            if timer.when() >= until:
                return
            timer.cancel()
        else:
            self._counters.connections_muted += 1
        self.active = True
        self._timer = loop.call_at(until, self._expire)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.active = False
            self._counters.connections_muted -= 1

    def _expire(self) -> None:
        self.end()
        self._on_end()
