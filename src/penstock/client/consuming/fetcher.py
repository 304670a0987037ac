"""Prefetches records with long polls, at all brokers concurrently.

One task, `run`, checks the subscription whenever there is news and starts what is missing: a round
of position lookups, a metadata request, a fetch for partitions that are not in one. It never waits
for the network itself; what it started reports by setting `news`.

*Lanes.* A fetch waits at the broker until there is data, and blocks the requests behind it on its
connection. So fetches have their own connections, and each broker has two lanes of one fetch each.
Normally everything is in the first lane. When a partition is added, is moved by a seek or has
buffer space again while that fetch waits, the second lane fetches it at once. No partition is in
both lanes. A fetch whose results are no longer needed is abandoned by closing its connection.

*Memory.* All buffered data counts, and so does what a fetch in flight may return. A fetch requests
no more than there is memory for, and none is sent while not even one partition's share of a
response would fit. Each broker may use only its share, so that an idle one cannot keep memory from
the others, and each partition only its share of the buffer. When memory is short, the data of
paused partitions is dropped and fetched again after they are resumed. Only a first batch that is
larger than requested is returned nevertheless, or its partition would be stuck forever.

*Fairness.* A broker fills its response in the order of the request, so partitions that have waited
longest come first. In a fetch session the broker rotates them itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.consuming.buffer import Answer, Ledger, Piece, measure
from penstock.client.consuming.fetch_flight import FetchFlight, FetchLane, Wanted
from penstock.client.consuming.fetch_settings import FetchMeter, FetchOptions
from penstock.client.consuming.positions import Positions
from penstock.client.consuming.record_decoder import damaged
from penstock.client.consuming.sessions import Asked, FetchSession
from penstock.client.consuming.subscription import UNKNOWN, PartitionState, Subscription
from penstock.client.errors import BrokerError, ClientError
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import CorruptBatch
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchRequest, FetchResponse
from penstock.wire.messages.base import Buffer

_SESSIONS_SINCE: Final = 7
_LANES: Final = 2
_ROUNDS_TO_SEND: Final = 3
_LOOK_AFRESH: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_log: Final = logging.getLogger("penstock.client")


class Fetcher:
    """Prefetches the assigned partitions in the background. See the module's docstring."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        positions: Positions,
        options: FetchOptions,
        meter: FetchMeter,
        *,
        refresh: Callable[[], Awaitable[bool]],
        on_news: Callable[[], None],
        purpose: str = "fetch",
    ) -> None:
        """`refresh` refreshes the topics' metadata and returns whether all is known. `on_news` is
        called for new data and errors."""
        self._cluster = cluster
        self._subscription = subscription
        self._positions = positions
        self._options = options
        self._meter = meter
        self._refresh = refresh
        self._on_news = on_news
        self._purpose = purpose
        self.partition_bytes = options.max_partition_fetch_bytes
        """The limit on one partition's share of a response. Callers that read large pieces may
        raise it."""
        self._news = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._ledger = Ledger()
        self._flights: dict[FetchLane, FetchFlight] = {}
        self._sessions: dict[FetchLane, FetchSession] = defaultdict(FetchSession)
        self._answers = 0
        self._turn = 0
        self._turns: dict[int, int] = {}
        """By broker: the sequence number of the last fetch that was sent to it."""
        self._resolving = False
        self._refreshing = False
        self._refresh_at = 0.0
        self._refresh_failures = 0

    @property
    def held_bytes(self) -> int:
        return self._ledger.held_bytes

    def wake(self) -> None:
        """Reports a change: a seek, an assignment, or freed buffer space."""
        self._news.set()

    def refresh_now(self) -> None:
        """Reports new topics whose metadata is unknown."""
        self._refresh_at = 0.0
        self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with self._tasks:
            while True:
                self._news.clear()
                # Both use the same time. Work that becomes due between two readings of the clock
                # would be neither started nor waited for.
                now = self._cluster.clock.monotonic()
                self._start_what_is_due(now)
                await self._wait_for_news(now)

    async def _wait_for_news(self, now: float) -> None:
        due = self._subscription.next_retry(now)
        until = inf if due is None else due
        if not self._refreshing:
            # A refresh in progress wakes this task when it ends.
            until = min(until, self._refresh_at)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until == inf else max(0.001, until - now)):
                await self._news.wait()

    # -- planning -------------------------------------------------------------------------------

    def _start_what_is_due(self, now: float) -> None:
        if not self._refreshing and self._refresh_at <= now:
            self._refreshing = True
            self._tasks.create_task(self._refresh_metadata())
        self._abandon_the_useless()
        brokers = self._by_broker(now)
        # Afterwards, because a change of leader may have changed what a partition needs.
        if not self._resolving and self._positions.is_due(now):
            self._resolving = True
            self._tasks.create_task(self._resolve_positions())
        # The broker that has waited longest comes first, so that none starves when memory is short.
        for broker_id in sorted(brokers, key=lambda each: self._turns.get(each, 0)):
            lane = self._free_lane(broker_id)
            if lane is None:
                continue
            room = self._room(len(brokers.keys() | {lane.broker_id for lane in self._flights}))
            if room is None:
                break
            states = brokers[broker_id]
            self._turn += 1
            self._turns[broker_id] = self._turn
            flight = FetchFlight(self._wanted(states, room), room)
            self._flights[lane] = flight
            self._tasks.create_task(self._fetch(lane, flight))

    def _abandon_the_useless(self) -> None:
        """Closes the connections of long polls that no longer fetch anything useful.

        That is the case when all of their partitions were moved by a seek or dropped. Such a long
        poll only blocks its lane, and there is no other way to cancel it.
        """
        current = self._subscription.current
        for flight in self._flights.values():
            if flight.connection is not None and not any(
                current(topic_partition, each.token)
                for topic_partition, each in flight.wanted.items()
            ):
                flight.connection.close()

    def _free_lane(self, broker_id: int) -> FetchLane | None:
        lanes = (FetchLane(broker_id, number) for number in range(_LANES))
        return next((lane for lane in lanes if lane not in self._flights), None)

    def _by_broker(self, now: float) -> dict[int, list[tuple[PartitionState, int]]]:
        """Returns the partitions to fetch from each broker, with their leader epochs.

        These are the partitions that may be fetched, have buffer space, and are not in a fetch.
        """
        brokers: dict[int, list[tuple[PartitionState, int]]] = defaultdict(list)
        share = self._options.queued_bytes_max // max(1, len(self._subscription.states))
        flights = list(self._flights.values())
        for state in list(self._subscription.fetchable(now)):
            leader = self._cluster.known_leader(state.topic_partition)
            if leader is None:
                self.look_afresh(now)
                continue
            self._subscription.on_leader(state, leader.epoch)
            if not state.is_fetchable(now) or state.buffer.size > share:
                continue
            if any(flight.covers(state) for flight in flights):
                continue
            broker_id = leader.broker_id
            if state.replica in self._cluster.brokers and now < state.replica_until:
                broker_id = state.replica
            brokers[broker_id].append((state, leader.epoch))
        return brokers

    def _room(self, brokers: int) -> int | None:
        """Returns how many bytes the next fetch may return, or None if there is too little memory
        for one."""
        options = self._options
        total = options.queued_bytes_max
        least = min(options.max_partition_fetch_bytes, options.fetch_max_bytes, total)
        if self._free_bytes() < least:
            self._give_up_paused()
        free = self._free_bytes()
        if free < least:
            return None
        # One broker's second fetch must not take memory from another broker's first.
        shares = brokers * _LANES if brokers > 1 else 1
        return min(options.fetch_max_bytes, free, max(least, total // shares))

    def _free_bytes(self) -> int:
        reserved = sum(flight.room for flight in self._flights.values())
        return self._options.queued_bytes_max - self._ledger.held_bytes - reserved

    def _give_up_paused(self) -> None:
        for state in self._subscription.states.values():
            if state.paused and state.buffer:
                self._subscription.refetch(state)

    def _wanted(
        self, states: Iterable[tuple[PartitionState, int]], room: int
    ) -> dict[TopicPartition, Wanted]:
        bytes_max = min(self.partition_bytes, room)
        return {
            state.topic_partition: Wanted(
                state, state.token, Asked(state.fetch_offset, epoch, bytes_max)
            )
            for state, epoch in sorted(states, key=lambda pair: pair[0].served)
        }

    # -- requests -------------------------------------------------------------------------------

    def look_afresh(self, now: float) -> None:
        """Refreshes the metadata soon, but not more often than the backoff allows."""
        config = self._cluster.config
        pause_s = min(
            config.retry_backoff_s * 2 ** min(self._refresh_failures, 16),
            config.retry_backoff_max_s,
        )
        if not self._refreshing:
            self._refresh_at = min(self._refresh_at, now + pause_s)

    async def _refresh_metadata(self) -> None:
        clock = self._cluster.clock
        complete = False
        # Keeps an earlier time if another refresh is requested while this one is in progress.
        started = self._refresh_at = clock.monotonic()
        try:
            complete = await self._refresh()
        except ClientError as error:
            _log.debug("cannot refresh the topic metadata, retrying: %s", error)
        finally:
            self._refreshing = False
            if self._refresh_at == started:
                self._refresh_at = clock.monotonic() + self._options.metadata_max_age_ms / 1000
            if complete:
                self._refresh_failures = 0
            else:
                self.look_afresh(clock.monotonic())
                self._refresh_failures += 1
            self._news.set()

    async def _resolve_positions(self) -> None:
        try:
            await self._positions.resolve()
        finally:
            self._resolving = False
            self._news.set()
            self._on_news()

    async def _fetch(self, lane: FetchLane, flight: FetchFlight) -> None:
        """Fetches once. A failure postpones each partition; nothing is raised."""
        clock = self._cluster.clock
        started = clock.monotonic()
        purpose = f"{self._purpose} {lane.number}"
        try:
            connection = await self._cluster.connection(lane.broker_id, purpose)
            flight.connection = connection
            answer = await self._ask(connection, self._sessions[lane], flight)
        except ClientError as error:
            self._sessions[lane].lost()
            self._put_off_all(flight.wanted, error)
        else:
            self._meter.fetches += 1
            self._meter.fetch_latency.add(clock.monotonic() - started)
            self._on_answer(lane, answer, flight.wanted)
        finally:
            del self._flights[lane]
            self._news.set()

    async def _ask(
        self, connection: Connection, session: FetchSession, flight: FetchFlight
    ) -> FetchResponse:
        options = self._options
        request = FetchRequest(
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=flight.room,
            isolation_level=options.isolation_level,
            rack_id=options.client_rack,
        )
        session.carry_by(connection)
        session.fill(
            request,
            {topic_partition: each.asked for topic_partition, each in flight.wanted.items()},
            served=connection.version_of(FetchRequest) >= _SESSIONS_SINCE,
        )
        timeout_s = (options.request_timeout_ms + options.fetch_max_wait_ms) / 1000
        return await connection.call(request, FetchResponse, timeout_s=timeout_s)

    # -- responses ------------------------------------------------------------------------------

    def _on_answer(
        self, lane: FetchLane, answer: FetchResponse, wanted: Mapping[TopicPartition, Wanted]
    ) -> None:
        session = self._sessions[lane]
        if answer.error_code:
            session.lost(forgotten=answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if answer.error_code not in _SESSION_LOST:
                self._put_off_all(wanted, BrokerError(answer.error_code, subject="Fetch"))
            return
        session.answered(answer.session_id)
        self._answers += 1
        parts = [
            (TopicPartition(topic.topic, part.partition_index), part)
            for topic in answer.responses
            for part in topic.partitions
        ]
        whole = Answer(self._ledger, sum(_size(part.records) for _, part in parts))
        news = False
        for topic_partition, part in parts:
            each = wanted.get(topic_partition)
            if each is None or self._subscription.current(topic_partition, each.token) is None:
                continue
            if part.error_code:
                self._on_refusal(each.state, part.error_code, from_leader=each.state.replica < 0)
            else:
                self._on_part(lane.broker_id, each.state, part, whole)
            news = news or bool(each.state.buffer) or each.state.error is not None
        if news:
            self._on_news()

    def _on_part(
        self,
        broker_id: int,
        state: PartitionState,
        part: FetchResponse.Partition,
        whole: Answer,
    ) -> None:
        state.succeeded()
        state.drain_first = False
        state.high_watermark = part.high_watermark
        state.last_stable_offset = part.last_stable_offset
        state.log_start_offset = part.log_start_offset
        if part.preferred_read_replica >= 0 and part.preferred_read_replica != broker_id:
            age_s = self._options.metadata_max_age_ms / 1000
            until = self._cluster.clock.monotonic() + age_s
            state.use_replica(part.preferred_read_replica, until)
        if not _size(part.records):
            return
        data = _view(part.records)
        try:
            extent = measure(data)
        except CorruptBatch as error:
            state.fail(damaged(state.topic_partition, state.fetch_offset, error))
            return
        if extent is None or extent.next_offset <= state.fetch_offset:
            # An incomplete batch. A later response will begin with it, and contain all of it.
            self._positions.put_off(state, BrokerError(ErrorCode.CORRUPT_MESSAGE))
            return
        state.served = self._answers
        self._meter.batches += extent.batches
        self._meter.record_bytes += extent.size
        aborted = [
            AbortedTransaction(each.producer_id, each.first_offset)
            for each in part.aborted_transactions or ()
        ]
        state.push(Piece(data, extent, whole, aborted))

    def _on_refusal(self, state: PartitionState, code: int, *, from_leader: bool) -> None:
        if not from_leader:
            # A follower may lag behind, or no longer be a follower. The leader's answer counts.
            state.replica = UNKNOWN
            self._positions.put_off(state, BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE))
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.buffer:
                state.drain_first = True
            else:
                _log.info(
                    "%s does not hold offset %d; using auto_offset_reset",
                    state.topic_partition,
                    state.fetch_offset,
                )
                self._positions.reset(state, f"does not hold offset {state.fetch_offset}")
            return
        if code in _LOOK_AFRESH:
            self.look_afresh(self._cluster.clock.monotonic())
        self._positions.put_off(state, BrokerError(code, subject=str(state.topic_partition)))

    def _put_off_all(self, wanted: Mapping[TopicPartition, Wanted], error: ClientError) -> None:
        for topic_partition, each in wanted.items():
            if self._subscription.current(topic_partition, each.token) is not None:
                self.look_afresh(self._cluster.clock.monotonic())
                each.state.replica = UNKNOWN
                self._positions.put_off(each.state, error)
                if each.state.error is not None:
                    self._on_news()


async def let_fetches_start() -> None:
    """Lets the next fetch start before a long piece of work.

    Data that has just been taken frees memory for the next fetch. It takes some rounds of the event
    loop to plan, write and send it.
    """
    for _ in range(_ROUNDS_TO_SEND):
        await asyncio.sleep(0)


def _size(records: Buffer | list[Buffer] | None) -> int:
    if records is None:
        return 0
    return sum(map(len, records)) if isinstance(records, list) else len(records)


def _view(records: Buffer | list[Buffer] | None) -> memoryview:
    if isinstance(records, list):
        return memoryview(b"".join(records))
    return memoryview(records or b"")
