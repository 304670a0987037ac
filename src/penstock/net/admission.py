"""Limits the number of connections: in total, and from one address.

The listener of the brokers may exceed the total, if clients have another one. The server then
closes a connection of a client.

Lowering a limit closes no connection; it applies to new ones. Refusals are logged, but at most one
line per interval (`throttled_log`), so that a peer that connects in a loop cannot fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from penstock.net.config import ServerConfig
from penstock.net.throttled_log import ThrottledLog

_log: Final = logging.getLogger(__name__)


class Admission:
    """Counts the open connections, and refuses new ones beyond the limits."""

    def __init__(self, config: ServerConfig) -> None:
        self.connections_max = config.connections_max
        self.per_address_max = config.connections_per_address_max
        self.of_address: Mapping[str, int] = {}
        """The limits of single addresses, instead of `per_address_max`."""
        self._per_address: dict[str, int] = {}
        self._count = 0
        self._log = ThrottledLog(_log)
        self.on_refused: Callable[[str, str, str], None] | None = None
        """Called with address, listener and limit for each connection that was refused."""

    @property
    def addresses(self) -> int:
        """The number of different addresses that have an open connection."""
        return len(self._per_address)

    @property
    def is_exceeded(self) -> bool:
        return self._count > self.connections_max

    def admit(self, host: str, now: float, listener: str = "", *, may_exceed: bool = False) -> bool:
        """Whether another connection from this address may be accepted. If so, it counts until
        `leave`. `may_exceed`: also if there are `connections_max` already."""
        here = self._per_address.get(host, 0)
        if self._count >= self.connections_max and not may_exceed:
            reason = f"{self._count} connections are open, and max.connections allows no more"
            self.refuse(host, reason, now, "max.connections", listener)
            return False
        if here >= self.of_address.get(host, self.per_address_max):
            limit = "max.connections.per.ip" + (".overrides" if host in self.of_address else "")
            reason = f"{here} connections from this address are open, and {limit} allows no more"
            self.refuse(host, reason, now, limit, listener)
            return False
        self._count += 1
        self._per_address[host] = here + 1
        return True

    def leave(self, host: str) -> None:
        self._count -= 1
        here = self._per_address[host] - 1
        if here:
            self._per_address[host] = here
        else:
            del self._per_address[host]

    def refuse(
        self, host: str, reason: str, now: float, limit: str = "", listener: str = ""
    ) -> None:
        """Logs that a connection was refused, unless one was logged a moment ago.

        `limit` is the setting that refused it, if one did.
        """
        self._log.warn(f"refused a connection from {host}: {reason}", now)
        if limit and self.on_refused is not None:
            self.on_refused(host, listener, limit)
