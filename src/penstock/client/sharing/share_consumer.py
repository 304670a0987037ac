"""A member of a share group: runs the membership, one link to each leader, and the locks.

The group's coordinator says which partitions to fetch. Each leader has a `link`: its fetches, its
acknowledgements and their session. Leases that the fetches bring wait in a buffer until a caller
takes them. While a lease is open, its lock is extended before it ends, if the options say so. When
the metadata says that another broker leads a partition, its leases are lost: the new leader does
not know the locks, and delivers the records again.

Closing ends the fetches first, because a record that is acquired after a session has ended stays
locked until its lock times out. Then everything that is held is released.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, Closed, LockLost
from penstock.client.sharing.ack_outcomes import MOVED, lock_lost
from penstock.client.sharing.acknowledgements import Acknowledgement, AckType
from penstock.client.sharing.acquired import Acquired, Range
from penstock.client.sharing.leader_link import Backoff, LeaderLink
from penstock.client.sharing.leases import Lease, LeaseState, LeaseTable, Room
from penstock.client.sharing.link_host import LinkSettings
from penstock.client.sharing.membership import ShareMembership, SharePart
from penstock.client.sharing.requests import Member
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import ShareGroupHeartbeatResponse

OnEnd = Callable[[ClientError | None], None]
_PURPOSE: Final = "share group"
_GRACE_S: Final = 5.0
"""A lock began after the fetch was sent, so it may end a little later than this client counts."""
_RENEW_STEPS: Final = 4
"""A lock is extended when less than half of it is left. This is looked at so often per lock."""
_CLOSE_S: Final = 10.0
_log: Final = logging.getLogger("penstock.client")


class ShareSettings(LinkSettings, Protocol):
    """The options that a share consumer needs."""

    @property
    def prefetch(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...
    @property
    def lock_extend(self) -> bool: ...
    @property
    def lock_extend_max_ms(self) -> int: ...
    @property
    def metadata_max_age_ms(self) -> int: ...


class ShareConsumer:
    """Acquires records of some topics for a share group. See the module's docstring."""

    def __init__(
        self, cluster: Cluster, group_id: str, topics: Iterable[str], settings: ShareSettings
    ) -> None:
        self.group_id = group_id
        self.topics = sorted(set(topics))
        self.leases = LeaseTable(settings.prefetch, settings.queued_bytes_max)
        self.lost = 0
        """Leases whose lock was lost before they were settled."""
        self._cluster = cluster
        self._settings = settings
        config = cluster.config
        self.membership = ShareMembership(
            group_id,
            urlsafe_b64encode(cluster.random.bytes(16)).decode().rstrip("="),
            self.topics,
            backoff_s=config.retry_backoff_s,
            backoff_max_s=config.retry_backoff_max_s,
            uniform=cluster.random.uniform,
        )
        self._links: dict[int, LeaderLink] = {}
        self._wanted: dict[int, frozenset[SharePart]] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[SharePart, int] = {}
        """The known leaders, also of partitions that are not assigned any more."""
        self._news = asyncio.Event()
        self._look_up = asyncio.Event()
        self._slow: frozenset[int] = frozenset()
        """Brokers that have not answered for a while."""
        self._tasks = asyncio.TaskGroup()
        self._background: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self._is_closing = False
        self._gives_back = False
        """Whether nobody takes what a fetch brings from now on."""
        self._settling = 0
        self._settled = asyncio.Event()
        self._assigned = asyncio.Event()

    # -- lifecycle ------------------------------------------------------------------------------

    def start(self) -> None:
        """Joins the group in the background."""
        self._background = asyncio.create_task(self._run(), name="penstock share consumer")
        self._background.add_done_callback(lambda _: self._news.set())

    async def _run(self) -> None:
        try:
            async with self._tasks:
                self._tasks.create_task(self._send_heartbeats())
                self._tasks.create_task(self._follow_leaders())
                self._tasks.create_task(self._extend_locks())
        finally:
            # Nobody answers any more, and callers may wait without a timeout.
            error = lock_lost("the client was closed before the broker answered")
            for link in self._links.values():
                link.abandon(error)
            for lease in self.leases:
                self._end(lease, error)

    def stop_taking(self) -> None:
        """Fetches no more, and releases what no caller has taken. What a fetch that is under way
        brings is released when it arrives: the fetch may wait at its leader."""
        self._gives_back = True
        self.stop_fetching()
        self._release_buffered()

    def stop_fetching(self) -> None:
        """Fetches no more. What a fetch that is under way brings is still taken."""
        self._is_closing = True
        for link in self._links.values():
            link.is_closing = True
            link.wake()
        self._news.set()

    def pause(self) -> None:
        """Begins no fetch until `resume`, so that other members get the records meanwhile."""
        self.leases.is_paused = True

    def resume(self) -> None:
        self.leases.is_paused = False
        self._wake_fetchers()

    async def close(self, timeout_s: float | None = None) -> None:
        """Releases what is held, ends the sessions and leaves the group. Does not raise."""
        self.stop_fetching()
        if self._background is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S if timeout_s is None else timeout_s):
                await self._wind_up()
        except (ClientError, TimeoutError) as error:
            _log.warning("jobs that are still held are released when their locks end: %r", error)
        finally:
            self._background.cancel()
            await asyncio.wait([self._background])

    async def _wind_up(self) -> None:
        links = list(self._links.values())
        await asyncio.gather(*(self._idle(link) for link in links))
        self.release(self.leases)
        await asyncio.gather(*(self._idle(link) for link in links))
        endings = (link.end_session() for link in links)
        for outcome in await asyncio.gather(*endings, return_exceptions=True):
            # A leader that is gone has no session. The coordinator must hear of the leave.
            if isinstance(outcome, ClientError):
                _log.debug("could not end a share session: %s", outcome)
            elif outcome is not None:
                raise outcome
        request = self.membership.leave()
        if request is not None:
            coordinator = await self._cluster.coordinator(self.group_id, purpose=_PURPOSE)
            await coordinator.call(request, ShareGroupHeartbeatResponse)

    @staticmethod
    async def _idle(link: LeaderLink) -> None:
        """Waits until everything is acknowledged and no request is under way."""
        while not link.is_idle:
            link.changed.clear()
            await link.changed.wait()

    # -- for callers ----------------------------------------------------------------------------

    async def take(self, timeout_s: float | None = None) -> Lease | None:
        """Returns the next lease. Returns None after the timeout, and when it is closing and
        nothing is buffered."""
        clock = self._cluster.clock
        end = None if timeout_s is None else clock.monotonic() + timeout_s
        while True:
            self._news.clear()
            lease = self.take_nowait()
            if lease is not None or self._is_closing:
                return lease
            left_s = None if end is None else end - clock.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()

    def take_nowait(self) -> Lease | None:
        """Returns the next buffered lease, or None."""
        if self._failure is not None:
            raise self._failure
        if self._background is not None and self._background.done():
            self._background.result()
            raise Closed("the queue is closed: make a new one")
        lease = self.leases.take(self._cluster.clock.monotonic())
        if self.leases.is_hungry:
            self._wake_fetchers()
        return lease

    def set_prefetch(self, records_max: int) -> None:
        """Changes how many leases it may have. Those that it has too many stay."""
        self.leases.records_max = records_max
        if self.leases.is_hungry:
            self._wake_fetchers()

    async def flush(self) -> None:
        """Waits until the outcome of everything that was settled is known."""
        while self._settling:
            self._settled.clear()
            await self._settled.wait()

    async def wait_assigned(self, timeout_s: float) -> bool:
        """Waits until this member has partitions. Returns False after the timeout."""
        end = self._cluster.clock.monotonic() + timeout_s
        while not self.membership.assignment:
            if self._failure is not None:
                raise self._failure
            left_s = end - self._cluster.clock.monotonic()
            if left_s <= 0:
                return False
            self._assigned.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._assigned.wait()
        return True

    def release(self, leases: Iterable[Lease]) -> None:
        """Releases leases that are open, without waiting. Their locks are lost from now on."""

        def ended(lease: Lease, error: ClientError | None) -> None:
            lease.state = LeaseState.LOST
            if error is not None:
                _log.debug("could not release a job: %s", error)

        for lease in leases:
            if lease.is_open:
                self.settle(lease, AckType.RELEASE, partial(ended, lease))

    def _release_buffered(self) -> None:
        self.release([each for each in self.leases if each.state is LeaseState.BUFFERED])

    def settle(self, lease: Lease, kind: AckType, on_end: OnEnd) -> None:
        """Acknowledges a lease, and calls `on_end` with the outcome."""
        if not lease.is_open:
            raise self.not_open(lease)
        lease.state = LeaseState.SETTLING
        self._settling += 1

        def resolve(error: ClientError | None) -> None:
            self._settling -= 1
            self._settled.set()
            self._end(lease, error)
            on_end(error)

        self._links[lease.broker_id].add(self._acknowledgement(lease, kind, resolve))

    def renew(self, lease: Lease, on_end: OnEnd) -> None:
        """Extends the lock by the time that locks of the group last."""
        if not lease.is_open:
            raise self.not_open(lease)
        link = self._links[lease.broker_id]
        lease.renewing = True

        def resolve(error: ClientError | None) -> None:
            lease.renewing = False
            if error is None:
                lease.locked_until = link.renewed_at + link.lock_s
            elif isinstance(error, LockLost) and lease.is_open:
                self._end(lease, error)
            on_end(error)

        link.renew(self._acknowledgement(lease, AckType.RENEW, resolve))

    @staticmethod
    def not_open(lease: Lease) -> ClientError:
        """Returns the error for a lease that cannot be settled any more."""
        if lease.state is LeaseState.LOST:
            return lock_lost(
                "it has timed out, another broker leads the partition, or the job was given back "
                "or delivered again"
            )
        return ClientError(
            "this job is settled already: call only one of done(), retry() and reject(), once"
        )

    def _end(self, lease: Lease, error: ClientError | None) -> None:
        if error is not None:
            self.lost += 1
        self.leases.end(lease, LeaseState.SETTLED if error is None else LeaseState.LOST)
        if self.leases.is_hungry:
            self._wake_fetchers()

    def _acknowledgement(self, lease: Lease, kind: AckType, resolve: OnEnd) -> Acknowledgement:
        offset = lease.offset
        deadline = lease.locked_until + _GRACE_S
        return Acknowledgement(lease.part, offset, offset, kind, deadline, resolve)

    # -- the host of links ----------------------------------------------------------------------

    def wanted(self, broker_id: int) -> frozenset[SharePart]:
        return self._wanted.get(broker_id, frozenset())

    def is_led_elsewhere(self, broker_id: int, part: SharePart) -> bool:
        return self._leaders.get(part, broker_id) != broker_id

    def holds(self, broker_id: int) -> bool:
        return self.leases.holds(broker_id)

    def room(self, broker_id: int) -> Room | None:
        waiting = [
            each
            for each, link in self._links.items()
            if self._wanted.get(each) and not link.is_fetching
        ]
        return self.leases.room(broker_id, waiting)

    def give_back(self, broker_id: int) -> None:
        self.leases.give_back(broker_id)
        if self.leases.is_hungry:
            self._wake_fetchers()

    def on_acquired(
        self, broker_id: int, part: SharePart, found: Acquired, locked_until: float
    ) -> None:
        topic_partition = TopicPartition(self._names[part.topic_id], part.partition)
        now = self._cluster.clock.monotonic()
        for row in found.rows:
            self.leases.add(Lease(part, topic_partition, broker_id, row, now, locked_until))
        self._acknowledge(broker_id, part, found.gaps, AckType.GAP, locked_until)
        if found.damaged:
            _log.error("releasing corrupt records of %s: %s", topic_partition, found.error)
            self._acknowledge(broker_id, part, found.damaged, AckType.RELEASE, locked_until)
        if self._gives_back:
            self._release_buffered()
        self._news.set()

    def _acknowledge(
        self,
        broker_id: int,
        part: SharePart,
        ranges: Iterable[Range],
        kind: AckType,
        locked_until: float,
    ) -> None:
        link = self._links[broker_id]
        for each in ranges:
            deadline = locked_until + _GRACE_S
            given = Acknowledgement(part, each.first, each.last, kind, deadline, lambda _: None)
            link.add(given)

    def on_leader_changed(self) -> None:
        self._look_up.set()

    def on_slow(self, broker_id: int) -> None:
        self._slow |= {broker_id}
        self._look_up.set()

    def on_failure(self, error: ClientError) -> None:
        self._failure = error
        self._assigned.set()
        self._news.set()

    def _wake_fetchers(self) -> None:
        for link in self._links.values():
            if not link.is_fetching:
                link.wake()

    # -- background tasks -----------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        clock, membership = self._cluster.clock, self.membership
        while membership.error is None:
            await clock.sleep(max(0.0, membership.due - clock.monotonic()))
            before = membership.assignment
            try:
                coordinator = await self._cluster.coordinator(
                    self.group_id, purpose=_PURPOSE, fresh=membership.find_coordinator
                )
                answer = await coordinator.call(membership.heartbeat(), ShareGroupHeartbeatResponse)
            except ClientError as error:
                _log.debug("heartbeat of share group %s failed: %s", self.group_id, error)
                membership.failed(error, clock.monotonic())
            else:
                membership.answered(answer, clock.monotonic())
            if membership.assignment != before:
                self._assigned.set()
                self._plan()
        self.on_failure(membership.error)

    async def _follow_leaders(self) -> None:
        """Refreshes the metadata when a leader has changed, when an assignment names a partition
        whose leader is unknown, and from time to time."""
        backoff = Backoff(self._cluster)
        while True:
            slow, self._slow = self._slow, frozenset()
            try:
                await self._cluster.refresh(self.topics, avoid=slow)
            except ClientError as error:
                _log.debug("cannot refresh the topic metadata, retrying: %s", error)
                is_complete = False
            else:
                is_complete = self._plan()
            if is_complete:
                backoff.reset()
            # Leaders may refuse partitions at a high rate while the metadata is old.
            await self._cluster.clock.sleep(backoff.next_s())
            with suppress(TimeoutError):
                age_s = self._settings.metadata_max_age_ms / 1000
                async with asyncio.timeout(age_s if is_complete else 0):
                    await self._look_up.wait()
            self._look_up.clear()

    def _plan(self) -> bool:
        """Divides the assigned partitions among their leaders. Returns whether all are known."""
        self._learn_leaders()
        wanted: dict[int, set[SharePart]] = {}
        is_complete = True
        for part in self.membership.assignment:
            leader = self._leaders.get(part)
            if leader is None:
                is_complete = False
            else:
                wanted.setdefault(leader, set()).add(part)
        self._wanted = {broker_id: frozenset(parts) for broker_id, parts in wanted.items()}
        for broker_id in wanted:
            if broker_id not in self._links and not self._is_closing:
                self._links[broker_id] = self._link(broker_id)
        for link in self._links.values():
            link.drop_lost()
            link.wake()
        if not is_complete:
            self._look_up.set()
        return is_complete

    def _learn_leaders(self) -> None:
        """Notes the leaders of all partitions, and ends the leases of those that have moved."""
        self._leaders = {}
        for topic in self.topics:
            known = self._cluster.known_topic(topic)
            if known is None or known.error_code:
                continue
            self._names[known.topic_id] = topic
            for each in known.partitions:
                number = each.partition_index
                leader = self._cluster.known_leader(TopicPartition(topic, number))
                if leader is not None:
                    self._leaders[SharePart(known.topic_id, number)] = leader.broker_id
        for lease in self.leases:
            # The links report what is being settled.
            if lease.is_open and self.is_led_elsewhere(lease.broker_id, lease.part):
                self._end(lease, lock_lost(MOVED))

    def _link(self, broker_id: int) -> LeaderLink:
        member = Member(self.group_id, self.membership.member_id)
        link = LeaderLink(broker_id, member, self._cluster, self._settings, self)
        self._tasks.create_task(link.run())
        return link

    async def _extend_locks(self) -> None:
        """Extends locks in time, if the options say so. Drops leases whose lock is over: the caller
        has forgotten them, and they must not take the room of others."""
        clock, settings = self._cluster.clock, self._settings
        while True:
            shortest_s = min(
                (link.lock_s for link in self._links.values()), default=float(_RENEW_STEPS)
            )
            await clock.sleep(shortest_s / _RENEW_STEPS)
            now = clock.monotonic()
            for lease in self.leases:
                if not lease.is_open or lease.renewing:
                    continue
                if lease.locked_until + _GRACE_S <= now:
                    self._end(lease, lock_lost("it has timed out"))
                    continue
                lock_s = self._links[lease.broker_id].lock_s
                is_due = lease.locked_until - now < lock_s / 2
                is_long = now - lease.acquired_at > settings.lock_extend_max_ms / 1000
                if settings.lock_extend and is_due and not is_long:
                    self.renew(lease, self._on_extended)

    @staticmethod
    def _on_extended(error: ClientError | None) -> None:
        if error is not None:
            _log.warning("cannot extend the lock of a job: %s", error)
