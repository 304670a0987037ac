"""Decides whether a connection has taken too long. Pure.

There are no timers per connection. The connection notes its activity with the time of the server's
last tick, and at each tick the limits of `ServerConfig` are applied.
"""

from __future__ import annotations

from penstock.net.budget import Share
from penstock.net.config import ServerConfig


class Activity:
    """When a connection last sent or received something."""

    __slots__ = ("active_at", "frame_since", "stalled_bytes", "stalled_since")

    def __init__(self, now: float) -> None:
        self.active_at = now
        """The last time that bytes arrived, or answers were written."""
        self.frame_since = now
        """When the frame that is being received began, or reading was resumed."""
        self.stalled_since = now
        """Since when the peer has accepted no byte of what is unsent."""
        self.stalled_bytes = 0
        """What was unsent at that time."""

    def has_sent(self, unsent: int, now: float) -> bool:
        """Returns whether the amount of unsent data has changed since the last tick."""
        if unsent == self.stalled_bytes:
            return False
        self.stalled_bytes = unsent
        self.stalled_since = now
        return True

    def overdue(
        self,
        now: float,
        config: ServerConfig,
        *,
        unsent: int,
        at_eof: bool,
        receiving: Share | None,
        is_pending: bool,
    ) -> str | None:
        """Returns why the connection must be dropped; None if it may stay.

        `receiving` is the connection's share of the request budget while it receives a frame.
        """
        if unsent:
            if now - self.stalled_since >= config.write_stall_timeout_s:
                return f"accepted no byte of a response for {config.write_stall_timeout_s:g} s"
        elif at_eof:
            if now - self.active_at >= config.eof_timeout_s:
                return "closed its side of the connection before its responses were ready"
        elif receiving is not None:
            if now - self.frame_since >= config.frame_timeout_s:
                return f"did not complete a request within {config.frame_timeout_s:g} s"
            if receiving.rests(now) >= config.frame_stall_timeout_s:
                return (
                    "sent nothing more of an incomplete request for "
                    f"{config.frame_stall_timeout_s:g} s"
                )
            if receiving.stalls():
                return "stopped in the middle of a request, and other connections need the memory"
        elif now - self.active_at >= config.idle_timeout_s and not is_pending:
            return f"was idle for {config.idle_timeout_s:g} s"
        return None
