"""Limits the number of connections: in total, and from one address.

Lowering a limit closes no connection; it applies to new ones. Refusals are logged, but at most one
line per `LOG_INTERVAL_S`, so that a peer that connects in a loop cannot fill the disk.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.net.config import ServerConfig

LOG_INTERVAL_S: Final = 10.0

_log: Final = logging.getLogger(__name__)


class Admission:
    """Counts the open connections, and refuses new ones beyond the limits."""

    def __init__(self, config: ServerConfig) -> None:
        self.connections_max = config.connections_max
        self.per_address_max = config.connections_per_address_max
        self._per_address: dict[str, int] = {}
        self._count = 0
        self._logged_at: float | None = None
        self._unlogged = 0

    @property
    def addresses(self) -> int:
        """The number of different addresses that have an open connection."""
        return len(self._per_address)

    def admit(self, host: str, now: float) -> bool:
        """Whether another connection from this address may be accepted. If so, it counts until
        `leave`."""
        here = self._per_address.get(host, 0)
        if self._count >= self.connections_max:
            self._refuse(
                host, f"{self._count} connections are open, and max.connections allows no more", now
            )
            return False
        if here >= self.per_address_max:
            reason = (
                f"{here} connections from this address are open, and max.connections.per.ip "
                "allows no more"
            )
            self._refuse(host, reason, now)
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

    def _refuse(self, host: str, reason: str, now: float) -> None:
        if self._logged_at is not None and now - self._logged_at < LOG_INTERVAL_S:
            self._unlogged += 1
            return
        more = (
            f"; {self._unlogged} more refused since the last such message" if self._unlogged else ""
        )
        _log.warning("refused a connection from %s: %s%s", host, reason, more)
        self._logged_at = now
        self._unlogged = 0
