"""The listener and all connections that it accepted.

One timer serves all connections: each tick checks every connection once. With thousands of
connections that takes a millisecond per second, and no request pays for setting or clearing a
timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from penstock.net.admission import Admission
from penstock.net.budget import RequestBudget
from penstock.net.config import ServerConfig
from penstock.net.connection import Connection
from penstock.net.counters import Counters
from penstock.net.response_budget import ResponseBudget
from penstock.net.session import Peer, Session
from penstock.ports import Clock, Listener, Network, Receiver

_log: Final = logging.getLogger(__name__)


class Server:
    """Accepts connections, and owns what they share."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        config: ServerConfig,
        new_session: Callable[[Peer], Session],
    ) -> None:
        self.config = config
        self.counters = Counters()
        self.budget = RequestBudget(config.request_bytes_max)
        self.large_requests = RequestBudget(config.large_request_bytes_max)
        self.responses = ResponseBudget(config.response_bytes_max)
        self.admission = Admission(config)
        self.new_session = new_session
        self.scratch = memoryview(bytearray(config.read_buffer_bytes))
        self.now = clock.monotonic()
        self.stopping = False
        self._network = network
        self._clock = clock
        self._connections: dict[Connection, None] = {}
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """The address on which the server listens, with the port that was chosen if the configured
        one is 0."""
        if self._listener is None:
            raise RuntimeError("the server is not listening: call start() first")
        return self._listener.address()

    async def start(self) -> None:
        """Starts listening. Raises OSError if that fails."""
        config = self.config
        self._listener = await self._network.listen(config.host, config.port, self._accept)
        self._set_timer()

    async def stop(self, timeout_s: float) -> None:
        """Accepts no more connections, sends the pending answers, then drops the remaining
        connections."""
        self.stopping = True
        if self._listener is not None:
            await self._listener.close()
        for connection in tuple(self._connections):
            connection.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._all_lost()
            if self._connections:
                _log.warning(
                    "stopping: dropped %d connections whose responses could not be sent within "
                    "%g s",
                    len(self._connections),
                    timeout_s,
                )
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for connection in tuple(self._connections):
                connection.abort()
        await self._all_lost()

    def tick(self) -> None:
        """Checks every connection for timeouts: idle, or too slow."""
        now = self.now = self._clock.monotonic()
        for connection in tuple(self._connections):
            connection.on_tick(now)

    def on_opened(self, connection: Connection) -> None:
        self.counters.connections += 1
        self.counters.connections_accepted += 1
        self._connections[connection] = None

    def on_lost(self, connection: Connection) -> None:
        self.counters.connections -= 1
        del self._connections[connection]
        if not self._connections:
            self._emptied.set()

    def _accept(self) -> Receiver:
        return Connection(self)

    async def _all_lost(self) -> None:
        while self._connections:
            self._emptied.clear()
            await self._emptied.wait()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.config.tick_s, self._on_timer)

    def _on_timer(self) -> None:
        self._set_timer()
        self.tick()
