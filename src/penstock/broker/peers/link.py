"""Sends requests of one kind to one other broker, and batches them.

Items that are added while a request is in flight go into the next request. A link has one task and
one connection, which exist only while there is something to send, and for `IDLE_S` after that. If a
request is lost, its items are passed to `lost`. They may or may not have been carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.ports import Env
from penstock.wire.errors import ErrorCode

Item = TypeVar("Item")

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_S: Final = 30.0
"""How long an idle connection is kept open."""
ITEMS_MAX: Final = 1000
_RESPONSE_BYTES_MAX: Final = 64 << 20
_log = logging.getLogger(__name__)


def code_from(number: int) -> ErrorCode:
    """Converts an error code of another broker, which may run a newer version."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class PeerLink(Generic[Item]):
    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        broker_id: int,
        exchange: Callable[[Peer, list[Item]], Awaitable[None]],
        lost: Callable[[list[Item]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        client_id: str,
        connector: PeerConnector | None = None,
    ) -> None:
        """`exchange` sends items in one request and processes the answer. If it raises `PeerLost`,
        all of these items are lost."""
        self._env = env
        self._cluster = cluster
        self._broker_id = broker_id
        self._exchange = exchange
        self._lost = lost
        self._spawn = spawn
        self._client_id = client_id
        self._connector = connector or PeerConnector(env.network)
        self._queue: deque[Item] = deque()
        self._more = asyncio.Event()
        self._is_running = False

    def put(self, item: Item) -> None:
        self._queue.append(item)
        self._more.set()
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        peer: Peer | None = None
        try:
            while await self._has_more():
                count = min(len(self._queue), ITEMS_MAX)
                items = [self._queue.popleft() for _ in range(count)]
                try:
                    if peer is None or not peer.is_open:
                        peer = await self._connect()
                    await self._exchange(peer, items)
                except PeerLost as error:
                    _log.info("broker %d: %s", self._broker_id, error)
                    self._lost(items)
        finally:
            self._is_running = False
            if peer is not None:
                peer.close()

    async def _has_more(self) -> bool:
        """Waits for something to send. Returns False if nothing came for `IDLE_S`."""
        if not self._queue:
            self._more.clear()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._more.wait()
            except TimeoutError:
                return bool(self._queue)
        return True

    async def _connect(self) -> Peer:
        broker = self._cluster.image.brokers.get(self._broker_id)
        if broker is None:
            raise PeerLost(f"broker {self._broker_id} is not registered")
        return await self._connector.connect(
            broker,
            client_id=self._client_id,
            timeout_s=CONNECT_TIMEOUT_S,
            response_bytes_max=_RESPONSE_BYTES_MAX,
        )
