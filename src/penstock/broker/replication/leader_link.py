"""Fetches from one leader, for all partitions that this broker follows there.

A link has two connections. The main connection keeps a fetch session and waits long for data. The
express connection fetches what becomes ready while the main connection's request is out
(`replica_fetcher` says why). A partition of the link is in one of these states:

    ready      can be fetched now, in this order
    flushing   has records that are not synced yet; ready once they are
    neither    is being fetched or truncated, or waits for a timer or for new metadata

When a partition leaves `ready` and `flushing`, some event brings it back: an answer, the end of a
truncation, a flush, a timer or a new role. A connection never waits for a single partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.broker.partitions.replication_throttle import ReplicationThrottle
from penstock.broker.peers.connection import Peer, PeerLost
from penstock.broker.peers.connector import PeerConnector
from penstock.broker.replication.linked_partition import LinkedPartition
from penstock.broker.replication.replica_requests import (
    FETCH_VERSION,
    LIST_OFFSETS_VERSION,
    Asked,
    FetchSession,
    bounds_requests,
    read_offsets,
)
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.model import BrokerInfo
from penstock.partition.follower import AskBounds, Effect, Halt, RetryAt, WaitForMetadata
from penstock.ports import Buffer, Env
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchResponse, ListOffsetsResponse

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
"""How long an attempt to connect to the leader may take."""
EXPRESS_WAIT_MS: Final = 20
"""How long a leader holds a request of the express connection if there is no data."""
GATHER_S: Final = 0.01
"""How long a connection waits for the flushes that its last response has caused."""
MERGE_S: Final = 5.0
"""How often a busy main connection waits for the express connection's request to return, to take
over its partitions. Rarely, because a partition that becomes ready during that wait is delayed by
up to EXPRESS_WAIT_MS."""
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_RESPONSE_SLACK_BYTES: Final = 128 << 20
"""How far a response may exceed its limit: one batch is always sent whole, however large it is."""
_FLUSH_KEY: Final = 0


@dataclass(frozen=True, slots=True)
class LinkParts:
    """What all links of this broker share."""

    env: Env
    broker_id: int
    broker_epoch: Callable[[], int]
    broker: Callable[[int], BrokerInfo | None]
    configs: Callable[[], BrokerConfigs]
    throttle: ReplicationThrottle
    connector: PeerConnector
    change_log: Callable[[LinkedPartition, Sequence[Effect], Buffer], None]

    def monotonic_ms(self) -> int:
        return int(self.env.clock.monotonic() * 1000)


class LeaderLink:
    """The partitions that are fetched from one leader, and the two connections that fetch them."""

    def __init__(self, leader: int, parts: LinkParts) -> None:
        self.leader = leader
        self.parts = parts
        self.out: dict[bool, bool] = {False: False, True: False}
        """Whether the main connection (False) and the express connection (True) wait for a
        response."""
        self.flushing: dict[TopicPartition, LinkedPartition] = {}
        self.ready: dict[TopicPartition, LinkedPartition] = {}
        self._linked: dict[TopicPartition, LinkedPartition] = {}
        self._connections = (
            _FetchConnection(self, is_express=False),
            _FetchConnection(self, is_express=True),
        )

    async def run(self) -> None:
        """Fetches until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for connection in self._connections:
                    tasks.create_task(connection.run())
        finally:
            for connection in self._connections:
                connection.close("this broker no longer fetches from it")

    # Partitions

    @property
    def is_idle(self) -> bool:
        return not self._linked

    def add(self, linked: LinkedPartition) -> None:
        self._linked[linked.key] = linked
        linked.shell.hosted.listen_flushed(_FLUSH_KEY, lambda _: self._on_flushed(linked))
        self.offer(linked)

    def remove(self, linked: LinkedPartition) -> None:
        key = linked.key
        if self._linked.get(key) is not linked:
            return
        for held in (self._linked, self.ready, self.flushing):
            held.pop(key, None)
        linked.shell.hosted.unlisten_flushed(_FLUSH_KEY)
        for connection in self._connections:
            connection.session.drop_linked(linked)
        if linked.timer is not None:
            linked.timer.cancel()
        self.wake()

    def pause(self, linked: LinkedPartition) -> None:
        """Removes the partition from the fetch session, until it is offered again.

        As long as it is in the leader's session and nothing is written, the leader would count this
        replica as in sync."""
        for connection in self._connections:
            connection.pause(linked)

    def offer(self, linked: LinkedPartition) -> None:
        """Makes the partition ready to be fetched, once all its records are written, and with
        `durability=fsync` synced."""
        key = linked.key
        if self._linked.get(key) is not linked:
            return
        if linked.shell.waits_for_flush:
            self.flushing[key] = linked
            linked.shell.request_flush()
        else:
            self.ready[key] = linked
        self.wake()

    def _on_flushed(self, linked: LinkedPartition) -> None:
        if linked.key in self.flushing and not linked.shell.waits_for_flush:
            del self.flushing[linked.key]
            self.offer(linked)

    def settle(self, linked: LinkedPartition, effects: Sequence[Effect]) -> None:
        """Decides when to fetch again, after all effects of an answer were carried out."""
        for effect in effects:
            match effect:
                case RetryAt(at_ms, reason):
                    _log.debug("%s: %s", linked.shell, reason)
                    self.offer_at(linked, at_ms)
                    return
                case Halt() | WaitForMetadata() | AskBounds():
                    return
        self.offer(linked)

    def offer_at(self, linked: LinkedPartition, at_ms: int) -> None:
        if self._linked.get(linked.key) is not linked:
            return
        if linked.timer is not None:
            linked.timer.cancel()
        linked.retry_at_ms = at_ms
        # One millisecond more, because `monotonic_ms` is rounded down.
        delay_s = (max(0, at_ms - self.parts.monotonic_ms()) + 1) / 1000
        linked.timer = asyncio.get_running_loop().call_later(delay_s, self.offer, linked)

    def take(self) -> list[Asked]:
        """Returns the fetches of the next request: all ready partitions that are not throttled."""
        now_ms, parts, configs = self.parts.monotonic_ms(), self.parts, self.parts.configs()
        rate = configs.int_value("follower.replication.throttled.rate")
        throttled_ms = parts.throttle.wait_ms(rate, now_ms)
        asked: list[Asked] = []
        ready, self.ready = self.ready, {}
        throttled = {key for key, each in ready.items() if each.lags and self._is_throttled(each)}
        bytes_max = configs.int_value("replica.fetch.max.bytes")
        piece = min(bytes_max, parts.throttle.piece(rate, len(throttled)))
        for key, linked in ready.items():
            if throttled_ms and key in throttled:
                self.offer_at(linked, now_ms + throttled_ms)
                continue
            fetch = linked.shell.next_fetch()
            if fetch is not None:
                asked.append(Asked(linked, fetch, piece if key in throttled else bytes_max))
            elif linked.retry_at_ms > now_ms:
                self.offer_at(linked, linked.retry_at_ms)
            elif linked.shell.is_current and linked.shell.waits_for_flush:
                self.offer(linked)
        return asked

    def _is_throttled(self, linked: LinkedPartition) -> bool:
        hosted = linked.shell.hosted
        named = hosted.settings.follower_replication_throttled_replicas
        return bool(named) and self.parts.throttle.names(named, hosted.index)

    def count_fetched(self, linked: LinkedPartition, size: int) -> None:
        if size and self._is_throttled(linked):
            self.parts.throttle.on_fetched(size)

    # The leader

    def on_broker(self) -> None:
        """The leader has registered, left or registered with another address or epoch."""
        for connection in self._connections:
            connection.on_broker()
        self.wake()

    def wake(self) -> None:
        for connection in self._connections:
            connection.woken.set()


class _FetchConnection:
    """One connection to the leader, and the loop that sends fetches over it."""

    def __init__(self, link: LeaderLink, *, is_express: bool) -> None:
        self.woken = asyncio.Event()
        self.session = FetchSession(is_kept=not is_express)
        self._link = link
        self._parts = link.parts
        self._is_express = is_express
        self._peer: Peer | None = None
        self._connected_to: BrokerInfo | None = None
        self._failures = 0
        self._answered_at = 0.0
        self._was_idle = True
        """The last response had no records, so no request waits for this follower to store any."""
        self._merge_at = 0.0

    async def run(self) -> None:
        while True:
            await self._until(self._is_due)
            peer = await self._connected()
            if peer is None:
                continue
            await self._gather()
            if not self._is_due():
                continue
            asked = self._link.take()
            if asked or len(self.session):
                await self._ask(peer, asked)

    def _is_due(self) -> bool:
        if self._parts.broker(self._link.leader) is None or self._parts.broker_epoch() < 0:
            return False
        if self._is_express:
            return bool(self._link.ready) and self._link.out[False]
        return bool(self._link.ready) or len(self.session) > 0

    async def _until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Waits until `holds()` is true or the timeout expires. Checks when the connection is
        woken."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self.woken.clear()
                    await self.woken.wait()
        except TimeoutError:
            pass

    async def _gather(self) -> None:
        """Waits a little for partitions whose records are being synced.

        The main connection also waits for the express connection's request from time to time.
        Otherwise it would never take over the partitions of the express connection."""
        link, now = self._link, self._parts.env.clock.monotonic()
        left_s = self._answered_at + GATHER_S - now
        if left_s > 0 and link.flushing:
            await self._until(lambda: not link.flushing, left_s)
        if not self._is_express and link.out[True] and (self._was_idle or now >= self._merge_at):
            self._merge_at = now + MERGE_S
            await self._until(lambda: not link.out[True], 2 * EXPRESS_WAIT_MS / 1000)

    # The connection

    async def _connected(self) -> Peer | None:
        """Returns the open connection, or connects. None if that fails or the broker is unknown."""
        broker = self._parts.broker(self._link.leader)
        if self._peer is not None and self._peer.is_open and self._connected_to == broker:
            return self._peer
        self.close("the broker's address has changed")
        if broker is None:
            return None
        limit = self._parts.configs().int_value("replica.fetch.response.max.bytes")
        self._connected_to = broker
        try:
            self._peer = await self._parts.connector.connect(
                broker,
                client_id=f"broker-{self._parts.broker_id}-follower",
                timeout_s=CONNECT_TIMEOUT_S,
                response_bytes_max=limit + _RESPONSE_SLACK_BYTES,
            )
        except PeerLost as lost:
            await self._back_off(str(lost))
            return None
        self._failures = 0
        return self._peer

    async def _back_off(self, reason: str) -> None:
        """Waits after a failure, longer after each one, but not beyond a change of the broker's
        registration."""
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        _log.log(level, "cannot fetch from leader %d, retrying: %s", self._link.leader, reason)
        delay_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 10))
        delay_s *= 0.5 + self._parts.env.random.uniform() / 2
        at = self._connected_to
        await self._until(lambda: self._connected_to is not at, delay_s)

    def on_broker(self) -> None:
        broker = self._parts.broker(self._link.leader)
        if broker != self._connected_to:
            self._connected_to = None
            self._failures = 0
            self.close("the broker's registration has changed")

    def close(self, reason: str) -> None:
        if self._peer is not None:
            self._peer.close(reason)
            self._peer = None

    # Requests

    async def _ask(self, peer: Peer, asked: list[Asked]) -> None:
        configs, link = self._parts.configs(), self._link
        wait_ms = configs.int_value("replica.fetch.wait.max.ms")
        if self._is_express:
            wait_ms = min(wait_ms, EXPRESS_WAIT_MS)
        replica = (self._parts.broker_id, self._parts.broker_epoch())
        request = self.session.request(asked, replica, wait_ms, configs)
        link.out[self._is_express] = True
        link.wake()
        try:
            timeout_s = (wait_ms + configs.int_value("replica.socket.timeout.ms")) / 1000
            response = await peer.ask(request, FETCH_VERSION, FetchResponse, timeout_s)
        except PeerLost as lost:
            for each in self.session.take_all():
                self._conclude(each.linked, each.linked.shell.on_lost(each.fetch), b"")
            await self._back_off(str(lost))
            return
        finally:
            link.out[self._is_express] = False
            link.wake()
        self._failures = 0
        self._answered_at = self._parts.env.clock.monotonic()
        unbounded = self._take_in(response)
        if unbounded:
            await self._ask_bounds(peer, unbounded)

    def _take_in(self, response: FetchResponse) -> list[Asked]:
        """Passes each partition's answer to its follower, and carries out the effects.

        Returns the fetches that were out of range: the bounds of the leader's log are needed."""
        unbounded, fed = [], []
        for each, answer, records in self.session.answers(response):
            linked = each.linked
            if answer.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED and self._peer is not None:
                self._peer.tell_refused()
            linked.lags = answer.high_watermark > each.fetch.offset
            if answer.flaw is not None:
                _log.warning(
                    "%s: leader %d sent an invalid batch: %s",
                    linked.shell,
                    self._link.leader,
                    answer.flaw,
                )
            if answer.spans:
                fed.append((each, answer, records))
                continue
            effects = linked.shell.on_answer(each.fetch, answer)
            self._conclude(linked, effects, records)
            if effects and isinstance(effects[0], AskBounds):
                unbounded.append(each)
        self._was_idle = not fed
        # Last, so that partitions that got no records are ahead of them in the next request.
        for each, answer, records in fed:
            self._link.count_fetched(each.linked, len(records))
            effects = each.linked.shell.on_answer(each.fetch, answer)
            self._conclude(each.linked, effects, records)
        return unbounded

    def pause(self, linked: LinkedPartition) -> None:
        held = self.session.drop_linked(linked)
        if held is not None:
            self._conclude(linked, linked.shell.on_lost(held.fetch), b"")

    def _conclude(
        self, linked: LinkedPartition, effects: Sequence[Effect], records: Buffer
    ) -> None:
        try:
            rest = linked.shell.carry_out(effects, records)
        except Exception:  # noqa: BLE001 - a bug in one partition must not end all replication
            _log.exception(
                "%s: this replica stopped fetching after an unexpected error: restart the broker, "
                "and report the error",
                linked.shell,
            )
            return
        if rest and isinstance(rest[0], RetryAt | Halt):
            self._link.settle(linked, rest)
        elif rest:
            self._parts.change_log(linked, rest, records)
        else:
            self._link.settle(linked, effects)

    async def _ask_bounds(self, peer: Peer, unbounded: list[Asked]) -> None:
        """Asks the leader where its logs start and end, and passes that to the followers."""
        found: list[dict[TopicPartition, int]] = []
        timeout_s = self._parts.configs().int_value("replica.socket.timeout.ms") / 1000
        try:
            for request in bounds_requests(unbounded, self._parts.broker_id):
                answer = await peer.ask(
                    request, LIST_OFFSETS_VERSION, ListOffsetsResponse, timeout_s
                )
                found.append(read_offsets(answer))
        except PeerLost as lost:
            _log.debug(
                "leader %d did not report where its logs start and end: %s", self._link.leader, lost
            )
            found = [{}, {}]
        starts, ends = found
        for each in unbounded:
            key = each.linked.key
            bounds = (starts[key], ends[key]) if key in starts and key in ends else None
            self._conclude(each.linked, each.linked.shell.on_bounds(bounds), b"")
