"""Limits how fast clients may open connections, by address and by listener.

An address over its quota (`connection_creation_rate`) gets no session: its connection is not read,
and is closed after the throttle time, at most a second, so that the client does not try again at
once. Connections over the rate of their listener (`max.connection.creation.rate`) wait for their
turn, at most a second. If there are too many for that, they are closed after a second.

If brokers have a listener of their own, its connections are not limited by address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.access.quotas import ClientQuotas
from penstock.net.session import Answer, Peer, Session
from penstock.net.throttled_log import ThrottledLog
from penstock.security.gauges import WindowedRate
from penstock.security.rates import SHORT_THROTTLE_MAX_MS
from penstock.wire.errors import ProtocolError

_log: Final = logging.getLogger(__name__)


class ConnectionRates:
    """Makes the sessions of one listener, as long as its clients connect slowly enough."""

    def __init__(
        self,
        listener: str,
        new_session: Callable[[Peer], Session],
        quotas: ClientQuotas,
        rate_max: int | None = None,
        *,
        limits_addresses: bool = True,
    ) -> None:
        """`rate_max`: the connections per second of the listener; None for no limit."""
        self._listener = listener
        self._new_session = new_session
        self._quotas = quotas
        self._limits_addresses = limits_addresses
        self._rate = None if rate_max is None else WindowedRate(max(1, rate_max), quotas.now_ms())
        self._log = ThrottledLog(_log)

    def session(self, peer: Peer) -> Session:
        if self._limits_addresses and (wait_ms := self._quotas.record_connection(peer.host)):
            return self._refused(peer, wait_ms, "its address is over connection_creation_rate")
        if self._rate is not None:
            now_ms = self._quotas.now_ms()
            wait_ms = self._rate.record(1, now_ms)
            if wait_ms > SHORT_THROTTLE_MAX_MS:
                self._rate.unrecord(1, now_ms)
                reason = f"listener {self._listener} is over its max.connection.creation.rate"
                return self._refused(peer, SHORT_THROTTLE_MAX_MS, reason)
            if wait_ms:
                peer.mute(wait_ms / 1000)
        return self._new_session(peer)

    def _refused(self, peer: Peer, wait_ms: int, reason: str) -> Session:
        self._log.warn(f"refused a connection from {peer.host}: {reason}", self._quotas.now_s())
        return RefusedConnection(peer, wait_ms / 1000)


class RefusedConnection:
    """The session of a connection that is about to be closed."""

    def __init__(self, peer: Peer, seconds: float) -> None:
        # The mute is longer, so nothing is read before the connection is closed.
        peer.mute(2 * seconds)
        self._timer = asyncio.get_running_loop().call_later(seconds, peer.close)

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        raise ProtocolError("the client opens connections too fast")

    def may_overlap(self, frame: memoryview) -> bool:
        return False

    def on_closed(self) -> None:
        self._timer.cancel()
