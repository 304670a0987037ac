"""Limits how fast clients may open connections, by address.

An address over its quota (`connection_creation_rate`) gets no session: its connection is not read,
and is closed after the throttle time, at most a second, so that the client does not try again at
once. If brokers have a listener of their own, its connections are not limited.

`accept_rates` limits listeners and the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.access.quotas import ClientQuotas
from penstock.net.session import Answer, Peer, Session
from penstock.net.throttled_log import ThrottledLog
from penstock.wire.errors import ProtocolError

_log: Final = logging.getLogger(__name__)


class ConnectionRates:
    """Makes the sessions of a listener, as long as the clients of an address connect slowly
    enough."""

    def __init__(self, new_session: Callable[[Peer], Session], quotas: ClientQuotas) -> None:
        self._new_session = new_session
        self._quotas = quotas
        self._log = ThrottledLog(_log)

    def session(self, peer: Peer) -> Session:
        wait_ms = self._quotas.record_connection(peer.host)
        if not wait_ms:
            return self._new_session(peer)
        reason = "its address is over connection_creation_rate"
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
