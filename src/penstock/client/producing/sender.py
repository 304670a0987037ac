"""Sends batches to the leaders of their partitions and handles the answers.

There is no sending task. `_pump` is a plain function that sends whatever can be sent. It is
scheduled when something may have become possible (a batch is ready, an answer arrived, a connection
opened, the metadata changed, a timer fired) and never waits. What has to wait, such as opening a
connection, runs as a chore; when the chore ends, the pump is scheduled again. So a broker that does
not answer delays only its own partitions.

Every wait is bounded: a connection attempt, a request, and above all each batch, whose deadline the
pump watches in every state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ApiNotServed, ClientError, DeadlineExceeded, check
from penstock.client.metrics import ProducerMeter
from penstock.client.options import ProducerOptions
from penstock.client.producing.accumulator import Accumulator
from penstock.client.producing.background_tasks import BackgroundTasks
from penstock.client.producing.batches import Batch
from penstock.client.producing.lanes import NOBODY, Lane
from penstock.client.producing.produce_responses import ProduceResponses, Settled
from penstock.client.producing.sequences import Identity
from penstock.client.producing.topics import Topics
from penstock.client.producing.transactions import Join
from penstock.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

_PURPOSE: Final = "produce"
_BROKER_SHARE: Final = 0.9
"""The share of the request timeout that the broker gets. An error from the broker is more
informative than a missing response."""
_BACKOFF_DOUBLINGS_MAX: Final = 16
_log = logging.getLogger(__name__)


class _Node:
    """One broker, and the requests in flight to it."""

    __slots__ = ("broker_id", "connection", "error", "failures", "requests", "retry_at", "told")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.connection: Connection | None = None
        self.requests = 0
        self.retry_at = 0.0
        self.failures = 0
        self.error: ClientError | None = None
        self.told = False
        """Whether requests without a response were sent over the connection."""


class Sender:
    """Sends the accumulator's batches and handles the answers. See the module's docstring."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        topics: Topics,
        options: ProducerOptions,
        meter: ProducerMeter,
        lock: AbstractContextManager[Any],
        *,
        from_threads: bool,
        on_freed: Callable[[], None],
        on_fatal: Callable[[ClientError], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._topics = topics
        self._options = options
        self._meter = meter
        self._lock = lock
        self._from_threads = from_threads
        self._on_freed = on_freed
        self._on_fatal = on_fatal
        self._responses = ProduceResponses(accumulator, topics, meter, self._backoff_s)
        self._background = BackgroundTasks(self._crash)
        self._nodes: dict[int, _Node] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_scheduled = False
        self._is_closed = False
        self._is_stale = False
        self._refreshed_at = cluster.clock.monotonic()
        self._refresh_after = 0.0
        self._refresh_failures = 0
        self._refresh_error: ClientError | None = None
        self._identify_after = 0.0
        self._numbers = count()
        self._join: Join | None = None
        self._version_max: int | None = None
        self.last_error: ClientError | None = None

    # -- interface ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedules the pump, as there may be something to send. With a lock, may be called from
        any thread."""
        if self._is_scheduled or self._is_closed:
            return
        self._is_scheduled = True
        if self._from_threads:
            self._loop.call_soon_threadsafe(self._pump)
        else:
            self._loop.call_soon(self._pump)

    async def close(self) -> None:
        """Stops sending. Requests in flight end with their connection."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._background.close()

    def take_failure(self) -> ClientError | None:
        """Returns the first failure of a batch since the last call, if any, and clears it."""
        failure, self._responses.failure = self._responses.failure, None
        return failure

    def note_failure(self, error: ClientError) -> None:
        """Notes that something that was sent will not be delivered."""
        self._responses.failure = self._responses.failure or error

    def join_by_request(self, join: Join, version_max: int) -> None:
        """Sends to partitions only after they have joined the transaction, with request versions in
        which a batch does not make its partition join."""
        self._join = join
        self._version_max = version_max

    async def vouch(self) -> None:
        """With acks=0, waits until the brokers have read everything that was sent.

        A broker reads the requests of a connection in order, so one response confirms all requests
        before it. If a connection is lost there is nothing left to wait for; acks=0 promises
        nothing.
        """
        for node in list(self._nodes.values()):
            if node.told and node.connection is not None and node.connection.is_open:
                node.told = False
                try:
                    await node.connection.call(MetadataRequest(topics=[]), MetadataResponse)
                except ClientError as error:
                    self.last_error = error
                    _log.warning("records sent with acks=0 may be lost: %s", error)

    # -- the pump -------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        try:
            self._expire()
            self._send_ready()
        except Exception as error:  # noqa: BLE001 - senders must not hang, whatever it is
            self._crash(error)

    def _crash(self, error: BaseException) -> None:
        _log.error("the producer failed and cannot continue", exc_info=error)
        failure = ClientError(f"the producer failed and cannot continue: {error!r}")
        failure.__cause__ = error
        self._on_fatal(failure)

    def _expire(self) -> None:
        now = self._cluster.clock.monotonic()
        with self._lock:
            expired = self._accumulator.expire(now)
        for batch, error in expired:
            self.note_failure(error)
            self._meter.failed_records += batch.count
            batch.outcome.fail(error)
        if expired:
            self._on_freed()

    def _send_ready(self) -> None:
        now = self._cluster.clock.monotonic()
        next_at = self._refreshed_at + self._options.metadata_max_age_ms / 1000
        if next_at <= now:
            self._is_stale, next_at = True, inf
        with self._lock:
            by_leader = self._by_leader(self._accumulator.ready(now))
        for leader, lanes in by_leader.items():
            node = self._nodes.get(leader)
            if node is None:
                node = self._nodes[leader] = _Node(leader)
            if self._is_connected(node, now):
                self._send_all(node, lanes, now)
            else:
                for lane in lanes:
                    lane.last_error = node.error or lane.last_error
                if node.retry_at > now:
                    next_at = min(next_at, node.retry_at)
        config = self._accumulator.config
        if self._accumulator.wants_identity and config.idempotent and not config.transactional:
            if self._identify_after <= now:
                self._background.start("identify", self._identify)
            else:
                next_at = min(next_at, self._identify_after)
        if self._join is not None and self._accumulator.outside:
            self._background.start("join", partial(self._join_outside, self._join))
        if self._is_stale and self._topics.names():
            if self._refresh_after <= now:
                self._background.start("refresh", self._refresh)
            else:
                next_at = min(next_at, self._refresh_after)
        self._set_timer(now, next_at)

    def _by_leader(self, lanes: Sequence[Lane]) -> dict[int, list[Lane]]:
        by_leader: dict[int, list[Lane]] = {}
        for lane in lanes:
            leader = self._topics.leader(lane)
            if leader == NOBODY:
                self._is_stale = True
                lane.last_error = self._refresh_error or self._topics.why_leaderless(lane)
            else:
                by_leader.setdefault(leader, []).append(lane)
        return by_leader

    def _set_timer(self, now: float, next_at: float) -> None:
        with self._lock:
            own_at = self._accumulator.next_at()
        if own_at is not None:
            next_at = min(next_at, own_at)
        if self._timer is not None:
            if now < self._timer_at <= next_at:
                return
            self._timer.cancel()
        self._timer_at = next_at
        self._timer = None
        if next_at < inf:
            self._timer = self._loop.call_later(max(next_at - now, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    # -- requests -------------------------------------------------------------------------------

    def _send_all(self, node: _Node, lanes: list[Lane], now: float) -> None:
        limit = self._options.max_in_flight_requests_per_connection
        while node.requests < limit:
            # asyncio copies what the system does not accept: one request of that is enough. The
            # response to a request in flight triggers the next round.
            if node.requests and node.connection is not None and not node.connection.is_writable:
                return
            with self._lock:
                batches = self._accumulator.drain(lanes, node.broker_id, now)
            if not batches:
                return
            self._send(node, batches, now)
            if not self._is_connected(node, now):
                return
            # Lanes that were served go to the end of the line.
            served = {batch.topic_partition for batch in batches}
            lanes.sort(key=lambda lane: lane.topic_partition in served)

    def _send(self, node: _Node, batches: list[Batch], now: float) -> None:
        connection = node.connection
        assert connection is not None
        request = self._request(batches)
        for batch in batches:
            if batch.attempts == 1:
                self._meter.queue_latency.add(now - batch.created_at, batch.count)
        self._meter.requests += 1
        if self._options.acks == 0:
            self._begin(node)
            name = f"tell {next(self._numbers)}"
            self._background.start(name, partial(self._tell, node, connection, request, batches))
            return
        try:
            future = connection.submit(request, ProduceResponse, version_max=self._version_max)
        except ClientError as error:
            self._act(self._lost(batches, error, maybe_written=False))
            return
        self._begin(node)
        future.add_done_callback(partial(self._on_end, node, batches, now))

    def _request(self, batches: Sequence[Batch]) -> ProduceRequest:
        options = self._options
        topics: dict[str, ProduceRequest.Topic] = {}
        for batch in batches:
            name, partition = batch.topic_partition
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = ProduceRequest.Topic(name)
            data = batch.seal(options.compression_type, options.compression_level)
            topic.partition_data.append(ProduceRequest.Partition(partition, data))
        return ProduceRequest(
            transactional_id=options.transactional_id,
            acks=options.acks,
            timeout_ms=int(options.request_timeout_ms * _BROKER_SHARE),
            topic_data=list(topics.values()),
        )

    async def _tell(
        self, node: _Node, connection: Connection, request: ProduceRequest, batches: list[Batch]
    ) -> None:
        try:
            await connection.tell(request)
            node.told = True
            with self._lock:
                settled = self._responses.on_written(batches)
        except ClientError as error:
            settled = self._lost(batches, error, maybe_written=False)
        except asyncio.CancelledError:
            self._end(node)
            raise
        self._end(node)
        self._act(settled)

    def _on_end(
        self, node: _Node, batches: list[Batch], sent_at: float, future: asyncio.Future[Any]
    ) -> None:
        self._end(node)
        now = self._cluster.clock.monotonic()
        try:
            response = future.result()
            self._meter.request_latency.add(now - sent_at)
            with self._lock:
                settled = self._responses.on_answer(batches, response, now)
        except ClientError as error:
            settled = self._lost(batches, error, maybe_written=True)
        except Exception as error:  # noqa: BLE001 - senders must not hang, whatever it is
            self._crash(error)
            return
        self._act(settled)

    def _lost(
        self, batches: Sequence[Batch], error: ClientError, *, maybe_written: bool
    ) -> Settled:
        self.last_error = error
        now = self._cluster.clock.monotonic()
        with self._lock:
            return self._responses.on_lost(batches, error, now, maybe_written=maybe_written)

    def _begin(self, node: _Node) -> None:
        node.requests += 1
        self._meter.requests_in_flight += 1

    def _end(self, node: _Node) -> None:
        node.requests -= 1
        self._meter.requests_in_flight -= 1

    def _act(self, settled: Settled) -> None:
        for settle in settled.settlements:
            settle()
        self._is_stale = self._is_stale or settled.look_afresh
        if settled.fatal is not None:
            self._on_fatal(settled.fatal)
        self._on_freed()
        self.wake()

    # -- background tasks -----------------------------------------------------------------------

    def _is_connected(self, node: _Node, now: float) -> bool:
        """Returns whether requests can be written now. If not, starts to open a connection."""
        if node.connection is not None:
            if node.connection.is_open:
                return True
            # The leader may have changed. With acks=0 closing the connection is a broker's only way
            # to say so.
            node.connection = None
            self._is_stale = True
        if node.retry_at <= now:
            self._background.start(f"connect {node.broker_id}", partial(self._connect, node))
        return False

    async def _connect(self, node: _Node) -> None:
        try:
            node.connection = await self._cluster.connection(node.broker_id, _PURPOSE)
            # Checked here, where an error can be handled, and not in the pump.
            node.connection.version_of(ProduceRequest)
            node.failures = 0
            node.error = None
        except ClientError as error:
            node.connection = None
            node.error = self.last_error = error
            node.retry_at = self._cluster.clock.monotonic() + self._backoff_s(node.failures)
            node.failures += 1
            self._is_stale = True
        self.wake()

    async def _join_outside(self, join: Join) -> None:
        while True:
            with self._lock:
                topic_partitions = self._accumulator.take_outside()
            if not topic_partitions:
                break
            await join(topic_partitions)
            self.wake()
        # Runs after this chore has ended. If the pump finds more partitions then, it can start
        # another chore.
        self._loop.call_soon(self.wake)

    async def _refresh(self) -> None:
        clock = self._cluster.clock
        try:
            await self._cluster.refresh(self._topics.names())
            self._refresh_failures = 0
            self._refreshed_at = clock.monotonic()
            self._refresh_error = None
            self._is_stale = False
        except ClientError as error:
            self.last_error = self._refresh_error = error
            self._refresh_failures += 1
        with self._lock:
            self._topics.sync()
        self._refresh_after = clock.monotonic() + self._backoff_s(self._refresh_failures)
        self.wake()

    async def _identify(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        try:
            answer = await self._cluster.ask_any(request, InitProducerIdResponse)
            check(answer.error_code, subject="InitProducerId")
        except ApiNotServed as error:
            self._on_fatal(ApiNotServed(f"{error}; set enable_idempotence=False for such a broker"))
        except ClientError as error:
            if not error.retriable and not isinstance(error, DeadlineExceeded):
                self._on_fatal(error)
                return
            self.last_error = error
            self._identify_after = self._cluster.clock.monotonic() + self._backoff_s(1)
        else:
            with self._lock:
                self._accumulator.identify(Identity(answer.producer_id, answer.producer_epoch))
        self.wake()

    def _backoff_s(self, failures: int) -> float:
        """Returns an exponential backoff with an upper limit and jitter."""
        options = self._options
        doubled = options.retry_backoff_ms << min(failures, _BACKOFF_DOUBLINGS_MAX)
        bounded = min(doubled, options.retry_backoff_max_ms)
        return bounded / 1000 * (0.8 + 0.4 * self._cluster.random.uniform())
