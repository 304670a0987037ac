"""The listeners of a broker, and all connections that they accepted.

One timer serves all connections: each tick checks every connection once. With thousands of
connections that takes a millisecond per second, and no request pays for setting or clearing a
timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Final

from penstock.net.admission import Admission
from penstock.net.budget import RequestBudget
from penstock.net.config import ServerConfig
from penstock.net.connection import Connection
from penstock.net.counters import Counters
from penstock.net.fair_turns import FairTurns, Turn
from penstock.net.open_listener import OpenConnection, OpenListener
from penstock.net.response_budget import ResponseBudget
from penstock.net.session import Peer, Session
from penstock.net.timeouts import Activity
from penstock.ports import Clock, Network

_log: Final = logging.getLogger(__name__)
_FIRST: Final = "first"


class Server:
    """Accepts connections, and owns what they share. One server may have several listeners."""

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
        self.turns = FairTurns(clock.monotonic)
        self.new_session = new_session
        self.scratch = memoryview(bytearray(config.read_buffer_bytes))
        self.now = clock.monotonic()
        self.stopping = False
        self._network = network
        self._clock = clock
        self._connections: dict[OpenConnection, tuple[OpenListener, Activity, Turn]] = {}
        self._listeners: dict[str, OpenListener] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """The address of the first listener, with the port that was chosen if the configured one
        is 0."""
        for each in self._listeners.values():
            if each.listener is not None:
                return each.listener.address()
        raise RuntimeError("the server is not listening: call start() or open() first")

    @property
    def listeners(self) -> Mapping[str, OpenListener]:
        """The listeners by name, in the order in which they were opened."""
        return self._listeners

    async def start(self) -> None:
        """Listens on the configured address, with the network and the sessions of the server.
        Raises OSError if that fails."""

        def new_session(peer: Peer) -> Session:
            return self.new_session(peer)

        await self.open(
            OpenListener(_FIRST, new_session), self._network, self.config.host, self.config.port
        )

    async def open(
        self, opened: OpenListener, network: Network, host: str, port: int
    ) -> tuple[str, int]:
        """Opens another listener. Returns its address. Raises OSError if that fails."""
        accept = partial(Connection, self, opened)
        opened.listener = await network.listen(host, port, accept, opened.pace)
        self._listeners[opened.name] = opened
        if self._timer is None:
            self._set_timer()
        return opened.listener.address()

    async def stop(self, timeout_s: float) -> None:
        """Accepts no more connections, sends the pending answers, then drops the remaining
        connections."""
        self.stopping = True
        for each in self._listeners.values():
            if each.listener is not None:
                await each.listener.close()
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
            self.turns.close()
            for connection in tuple(self._connections):
                connection.abort()
        await self._all_lost()

    def tick(self) -> None:
        """Checks every connection for timeouts: idle, or too slow. Checks whether the event loop is
        overloaded."""
        turns = (each for _, _, each in self._connections.values())
        self.turns.on_tick(each.tenant for each in turns if not each.is_exempt)
        now = self.now = self._clock.monotonic()
        for connection in tuple(self._connections):
            connection.on_tick(now)

    def on_opened(
        self,
        connection: OpenConnection,
        listener: OpenListener,
        activity: Activity,
        turn: Turn,
    ) -> None:
        self.counters.connections += 1
        self.counters.connections_accepted += 1
        self._connections[connection] = listener, activity, turn
        turn.on_open(connection.host)
        if self.admission.is_exceeded and listener.is_protected:
            self._make_room()

    def on_lost(self, connection: OpenConnection) -> None:
        self.counters.connections -= 1
        del self._connections[connection]
        if not self._connections:
            self._emptied.set()

    def _make_room(self) -> None:
        """Closes the connection of a client that is idle for the longest time."""
        of_clients = (
            (activity.active_at, activity, connection)
            for connection, (listener, activity, _) in self._connections.items()
            if not listener.is_protected
        )
        active_at, activity, connection = min(
            of_clients, key=itemgetter(0), default=(math.inf, None, None)
        )
        if activity is None or connection is None or active_at == math.inf:
            return
        activity.active_at = math.inf  # It is about to be lost, and must not be chosen again.
        self.counters.connections_displaced += 1
        connection.drop(
            "was idle for the longest time, max.connections is reached, and another broker has "
            "connected"
        )

    async def _all_lost(self) -> None:
        while self._connections:
            self._emptied.clear()
            await self._emptied.wait()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.config.tick_s, self._on_timer)

    def _on_timer(self) -> None:
        self._set_timer()
        self.tick()
