"""Fetches from one leader and acknowledges to it, one request after the other.

A leader refuses the answer to a fetch if another request of the session has arrived meanwhile, and
its records stay locked until they time out. So requests take turns, and an acknowledgement would
have to wait for a fetch that waits for records. Therefore a fetch waits at the leader only while
this member holds nothing there: then there is nothing to acknowledge. Otherwise a fetch returns at
once, and if it brought nothing, the next one follows after a pause. An acknowledgement interrupts
the pause, and a fetch carries the acknowledgements that wait.

Acknowledgements that wait at the same time are sent together. If an answer is lost, they are sent
again in a new session. If the leader then says that the member does not have the lock, the first
attempt may have taken effect: the caller learns that the lock is lost, as with Kafka's clients.

Locks are in the memory of the leader. If another broker leads the partition, they are lost: the
callers learn that at once, and do not wait for a broker that may never come back. A leader that is
frozen keeps its connection, and does not answer. So the metadata is refreshed while a request takes
long, and what another broker leads by then is lost, although the request is still under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import BrokerError, ClientError
from penstock.client.sharing.ack_outcomes import (
    LEADER_CHANGED,
    MOVED,
    Settled,
    lock_lost,
    resolve_all,
    settle_group,
)
from penstock.client.sharing.acknowledgements import Acknowledgement, AckQueue, Group
from penstock.client.sharing.acquired import Acquired, Range, find_acquired
from penstock.client.sharing.leases import Room
from penstock.client.sharing.link_host import LinkHost, LinkSettings
from penstock.client.sharing.membership import SharePart
from penstock.client.sharing.requests import (
    NOTHING,
    FetchLimits,
    Member,
    share_acknowledge,
    share_fetch,
)
from penstock.client.sharing.session import FINAL, NEW, ShareSession
from penstock.client.sharing.slow_requests import while_slow
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
)
from penstock.wire.messages.base import Buffer

PURPOSE: Final = "share"
_TURN_MS: Final = 100
"""How long a fetch waits for records if other leaders wait for their turn."""
_PAUSE_S: Final = 0.01
_PAUSE_MAX_S: Final = 0.1
"""The pauses between fetches that bring nothing while records are held."""
_PUT_OFF_S: Final = 0.2
"""How long a partition is left out after its leader refused it."""
_INLINE_BYTES: Final = 64 << 10
"""Decoding less than this takes less time than handing it to a thread."""
_LOCK_S: Final = 30.0
"""Kafka's default. Used until a leader has said how long its locks last."""
_RENEW_SINCE: Final = 2
_NO_RENEWAL: Final = (
    "the broker cannot extend locks: it needs version 2 of ShareAcknowledge (Kafka 4.2)"
)
_MISSING: Final = "the response does not have this partition"
_FATAL: Final = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
_log: Final = logging.getLogger("penstock.client")


class Backoff:
    """Doubling waits with jitter, after failures in a row."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        config = self._cluster.config
        longest_s = config.retry_backoff_max_s
        pause_s: float = min(config.retry_backoff_s * 2 ** min(self._failures, 16), longest_s)
        self._failures += 1
        return pause_s * (0.5 + self._cluster.random.uniform())


class LeaderLink:
    """One leader, as this member sees it."""

    def __init__(
        self,
        broker_id: int,
        member: Member,
        cluster: Cluster,
        settings: LinkSettings,
        host: LinkHost,
    ) -> None:
        self.broker_id = broker_id
        self.lock_s = _LOCK_S
        """How long locks last, as the leader said."""
        self.renewed_at = 0.0
        """When the last request with renewals was sent."""
        self.is_fetching = False
        self.is_closing = False
        self.acks = AckQueue()
        self.renewals = AckQueue()
        self.changed = asyncio.Event()
        """Set after each request. A close waits for it."""
        self._member = member
        self._cluster = cluster
        self._settings = settings
        self._host = host
        self._session = ShareSession()
        self._connection: Connection | None = None
        self._wake = asyncio.Event()
        self._backoff = Backoff(cluster)
        self._not_before = 0.0
        self._fetch_at = 0.0
        self._pause_s = 0.0
        self._is_busy = False
        self._put_off: dict[SharePart, float] = {}
        self._under_way: list[Group] = []
        """The acknowledgements of the request that is under way. Those that were lost meanwhile are
        removed from their groups."""

    @property
    def is_idle(self) -> bool:
        """Whether everything was acknowledged and no request is under way."""
        return not self._is_busy and not self.acks and not self.renewals

    def add(self, given: Acknowledgement) -> None:
        """Sends an acknowledgement soon."""
        self.acks.add(given)
        self._wake.set()

    def renew(self, given: Acknowledgement) -> None:
        """Sends the renewal of a lock soon."""
        self.renewals.add(given)
        self._wake.set()

    def wake(self) -> None:
        """Reports a change: an assignment, or room."""
        self._wake.set()

    def abandon(self, error: ClientError) -> None:
        """Ends everything that waits for an answer with this error. The link runs no more."""
        for queue in (self.renewals, self.acks):
            while queue:
                resolve_all(queue.take(), error)
        self.changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self._wake.clear()
            self._is_busy = True
            try:
                pause_s = await self._do_next()
            except ClientError as error:
                pause_s = self._failed(error)
            finally:
                self._is_busy = False
            self.changed.set()
            if pause_s != 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()

    async def end_session(self) -> None:
        """Ends the session: the leader releases what is left. No request is under way."""
        if self._session.is_open:
            self._session.lost()
            connection = await self._cluster.connection(self.broker_id, PURPOSE)
            request = share_acknowledge(self._member, FINAL, [])
            await connection.call(request, ShareAcknowledgeResponse)

    # -- decisions ------------------------------------------------------------------------------

    async def _do_next(self) -> float | None:
        """Sends what is due. Returns how long to wait; None: until something changes."""
        now = self._now()
        self.drop_lost()
        if now < self._not_before:
            return self._not_before - now
        # Callers that settle records in the same turn of the event loop share a request.
        await asyncio.sleep(0)
        if self.renewals and self._session.is_open:
            return await self._acknowledge(self.renewals)
        parts, wait_s = self._due_parts(now)
        if self._session.is_open and not self.acks.parts <= parts:
            # The next fetch names these partitions only, and there may always be a next fetch.
            return await self._acknowledge(self.acks)
        room = None
        if parts and not self.is_closing and (now >= self._fetch_at or not self._holds()):
            room = self._host.room(self.broker_id)
        elif parts and not self.is_closing:
            wait_s = min(self._fetch_at - now, wait_s or self._fetch_at - now)
        if room is not None:
            return await self._fetch(parts, room)
        if not self._session.is_open:
            # Acknowledgements need a session. A fetch of no partitions begins one.
            has_acks = bool(self.acks or self.renewals)
            return await self._fetch(frozenset(), None) if has_acks else wait_s
        if self.acks:
            return await self._acknowledge(self.acks)
        if self._session.parts and not self._host.wanted(self.broker_id):
            return await self._fetch(frozenset(), None)
        return wait_s

    def _due_parts(self, now: float) -> tuple[frozenset[SharePart], float | None]:
        """Returns the partitions to fetch, and when others may be fetched again."""
        self._put_off = {part: until for part, until in self._put_off.items() if until > now}
        wanted = self._host.wanted(self.broker_id)
        late = [until - now for part, until in self._put_off.items() if part in wanted]
        return wanted - self._put_off.keys(), min(late, default=None)

    def _holds(self) -> bool:
        return self._host.holds(self.broker_id)

    def drop_lost(self) -> None:
        """A lock that is certainly lost need not be asked for."""
        is_lost = partial(self._host.is_led_elsewhere, self.broker_id)
        for queue in (self.acks, self.renewals):
            for each in queue.drop_late(self._now()):
                each.resolve(lock_lost("it has timed out"))
            for each in queue.drop_parts(is_lost):
                each.resolve(lock_lost(MOVED))
        for group in self._under_way:
            if group and is_lost(group[0].part):
                lost = group[:]
                group.clear()
                resolve_all([lost], lock_lost(MOVED))

    def _now(self) -> float:
        return self._cluster.clock.monotonic()

    def _failed(self, error: ClientError) -> float | None:
        self._session.lost()
        if not error.retriable:
            resolve_all([*self.acks.take(), *self.renewals.take()], error)
            self._host.on_failure(error)
            self._not_before = self._now() + self._backoff.next_s()
            return None
        _log.debug("request to broker %d failed, retrying: %s", self.broker_id, error)
        self._host.on_leader_changed()
        return self._put_off_all()

    def _put_off_all(self) -> float:
        pause_s = self._backoff.next_s()
        self._not_before = self._now() + pause_s
        return pause_s

    async def _connect(self) -> Connection:
        connection = await self._cluster.connection(self.broker_id, PURPOSE)
        if connection is not self._connection:
            # The leader ends a session with the connection that began it.
            self._connection = connection
            self._session.lost()
        return connection

    @contextmanager
    def _sending(self, groups: list[Group], wait_s: float = 0.0) -> Iterator[None]:
        """Runs a request. Groups that are lost meanwhile are removed from `groups`."""
        self._under_way = groups
        try:
            with while_slow(partial(self._host.on_slow, self.broker_id), wait_s):
                yield
        finally:
            self._under_way = []
            groups[:] = [each for each in groups if each]

    # -- fetches --------------------------------------------------------------------------------

    async def _fetch(self, parts: frozenset[SharePart], room: Room | None) -> float:
        self.is_fetching = True
        try:
            return await self._fetch_once(parts, NOTHING if room is None else self._limits(room))
        finally:
            # Not before the records are decoded: they count from then on.
            self.is_fetching = False
            self._host.give_back(self.broker_id)

    async def _fetch_once(self, parts: frozenset[SharePart], limits: FetchLimits) -> float:
        groups: list[Group] = []
        try:
            connection = await self._connect()
            said = self._session.fetch(parts)
            if said.epoch != NEW:
                groups = self.acks.take(parts)
            request = share_fetch(self._member, said, limits, groups, self._settings.acquire_mode)
            sent_at = self._now()
            wait_s = limits.wait_ms / 1000
            with self._sending(groups, wait_s):
                answer = await connection.call(
                    request,
                    ShareFetchResponse,
                    timeout_s=self._settings.request_timeout_ms / 1000 + wait_s,
                )
        except BaseException:
            self.acks.put_back(groups)
            raise
        if answer.error_code:
            self.acks.put_back(groups)
            return self._refused(answer.error_code, answer.error_message)
        self._backoff.reset()
        self._learn_lock(answer.acquisition_lock_timeout_ms)
        waits = self._on_carried(answer, groups)
        await self._on_fetched(answer, sent_at)
        self._plan_next_fetch()
        return self._put_off_all() if waits else 0

    def _limits(self, room: Room) -> FetchLimits:
        settings = self._settings
        wait_ms = settings.fetch_max_wait_ms
        if room.is_turn:
            wait_ms = min(wait_ms, _TURN_MS)
        if self._holds() or self.renewals:
            wait_ms = 0
        nbytes = min(settings.fetch_max_bytes, room.nbytes)
        return FetchLimits(room.records, nbytes, settings.fetch_min_bytes, wait_ms)

    def _plan_next_fetch(self) -> None:
        """After a fetch that brought nothing, the next one follows after a pause that doubles."""
        self._fetch_at = self._now() + self._pause_s
        self._pause_s = min(max(self._pause_s * 2, _PAUSE_S), _PAUSE_MAX_S)

    def _on_carried(self, answer: ShareFetchResponse, groups: list[Group]) -> bool:
        """Handles the answers for the acknowledgements that a fetch carried. Returns whether some
        are sent again after a while."""
        found = {
            SharePart(topic.topic_id, part.partition_index): (
                part.acknowledge_error_code,
                part.acknowledge_error_message,
            )
            for topic in answer.responses
            for part in topic.partitions
        }
        return self._settle_all(self.acks, groups, found)

    async def _on_fetched(self, answer: ShareFetchResponse, sent_at: float) -> None:
        for topic in answer.responses:
            for each in topic.partitions:
                part = SharePart(topic.topic_id, each.partition_index)
                if each.error_code:
                    self._on_refused_part(part, each.error_code, each.error_message)
                if each.acquired_records:
                    self._pause_s = 0.0
                    found = await self._decode(each)
                    locked_until = sent_at + self.lock_s
                    self._host.on_acquired(self.broker_id, part, found, locked_until)

    def _on_refused_part(self, part: SharePart, code: int, message: str | None) -> None:
        self._put_off[part] = self._now() + _PUT_OFF_S
        error = BrokerError(code, message, f"partition {part.partition}")
        if code in LEADER_CHANGED:
            self._host.on_leader_changed()
        elif code in _FATAL:
            self._host.on_failure(error)
        _log.debug("cannot fetch from broker %d, retrying: %s", self.broker_id, error)

    async def _decode(self, part: ShareFetchResponse.PartitionData) -> Acquired:
        ranges = [
            Range(each.first_offset, each.last_offset, each.delivery_count)
            for each in part.acquired_records
        ]
        data = _view(part.records)
        check_crcs = self._settings.check_crcs

        def work() -> Acquired:
            return find_acquired(data, ranges, check_crcs=check_crcs)

        return work() if len(data) < _INLINE_BYTES else await self._cluster.executor.run(work)

    # -- acknowledgements -----------------------------------------------------------------------

    async def _acknowledge(self, queue: AckQueue) -> float:
        renews = queue is self.renewals
        connection = await self._connect()
        if not self._session.is_open:
            return 0
        groups = queue.take()
        if renews and connection.version_of(ShareAcknowledgeRequest) < _RENEW_SINCE:
            resolve_all(groups, BrokerError(ErrorCode.UNSUPPORTED_VERSION, _NO_RENEWAL))
            return 0
        epoch = self._session.acknowledge()
        sent_at = self._now()
        request = share_acknowledge(self._member, epoch, groups, renews=renews)
        try:
            with self._sending(groups):
                answer = await connection.call(request, ShareAcknowledgeResponse)
        except BaseException:
            queue.put_back(groups)
            raise
        if answer.error_code:
            queue.put_back(groups)
            return self._refused(answer.error_code, answer.error_message)
        self._backoff.reset()
        self._learn_lock(answer.acquisition_lock_timeout_ms)
        if renews:
            self.renewed_at = sent_at
        return self._on_acknowledged(queue, groups, answer)

    def _on_acknowledged(
        self, queue: AckQueue, groups: Iterable[Group], answer: ShareAcknowledgeResponse
    ) -> float:
        found = {
            SharePart(topic.topic_id, part.partition_index): (part.error_code, part.error_message)
            for topic in answer.responses
            for part in topic.partitions
        }
        return self._put_off_all() if self._settle_all(queue, groups, found) else 0

    def _settle_all(
        self,
        queue: AckQueue,
        groups: Iterable[Group],
        found: Mapping[SharePart, tuple[int, str | None]],
    ) -> bool:
        """Handles the answers of all partitions. Returns whether some are sent again after a
        while."""
        waits = False
        for group in groups:
            code, message = found.get(group[0].part, (ErrorCode.UNKNOWN_SERVER_ERROR, _MISSING))
            waits = self._settle(queue, group, code, message) or waits
        return waits

    def _settle(self, queue: AckQueue, group: Group, code: int, message: str | None) -> bool:
        outcome = settle_group(queue, group, code, message)
        if outcome is Settled.LEADER_CHANGED:
            self._host.on_leader_changed()
        return outcome is Settled.AGAIN

    def _refused(self, code: int, message: str | None) -> float:
        """Handles an answer that refuses the whole request."""
        if code in _SESSION_LOST:
            self._session.lost()
            return self._put_off_all()
        raise BrokerError(code, message, "share group")

    def _learn_lock(self, timeout_ms: int) -> None:
        if timeout_ms > 0:
            self.lock_s = timeout_ms / 1000


def _view(records: Buffer | list[Buffer] | None) -> memoryview:
    if isinstance(records, list):
        return memoryview(b"".join(records))
    return memoryview(records or b"")
