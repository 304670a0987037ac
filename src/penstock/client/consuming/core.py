"""Connects the parts of a consumer and drives them from its polls.

    subscription  what is read, and the position in each partition   (pure)
    reading       moves records from the buffers to the caller       (pure)
    topics        the metadata of the topics that are read
    fetcher       prefetches, in its own task
    positions     finds start positions, in the fetcher's rounds
    member        the group membership: which partitions to read     (with `subscribe` and a group)
    commits       the group's committed offsets only                 (with `assign` and a group)

Without a group, a subscription covers all partitions of its topics, including partitions that are
added later.

Everything that affects the caller happens during a poll: partitions are assigned and revoked,
listeners are called, errors are raised, offsets are committed. Between polls the consumer only
fetches. `news` is set whenever a waiting poll should check again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from penstock.client.admin.offsets import EARLIEST
from penstock.client.cluster import Cluster
from penstock.client.consuming.fetcher import Fetcher
from penstock.client.consuming.listeners import Listeners
from penstock.client.consuming.positions import Positions
from penstock.client.consuming.reading import Reading
from penstock.client.consuming.record_decoder import RecordMaker
from penstock.client.consuming.subscription import Subscription
from penstock.client.consuming.topic_tracker import TopicTracker
from penstock.client.environment import ClientEnv
from penstock.client.errors import ClientError, Closed
from penstock.client.interceptors import consumer_chain
from penstock.client.membership.autocommit import AutoCommit
from penstock.client.membership.commits import Commits
from penstock.client.membership.member import GroupMember
from penstock.client.membership.settings import MembershipOptions
from penstock.client.membership.steps import NOBODY, Identity
from penstock.client.metrics import ConsumerMeter, ConsumerMetrics
from penstock.client.model import OffsetAndMetadata
from penstock.client.option_values import CONSUMER
from penstock.client.options import PARTITION_FETCH_BYTES, ConsumerOptions
from penstock.topic_partition import TopicPartition

YIELD_S: Final = 0.001
"""How often polls that always find buffered records yield to other tasks."""
_LOOKUP_S: Final = 5.0
"""How long one round of position lookups waits for the group coordinator."""
_NOT_STARTED: Final = "the consumer has not been started: use `async with`, or start()"
CLOSE_S: Final = 30.0
_NOTHING: Final[tuple[frozenset[str], str | None]] = frozenset(), None

_log: Final = logging.getLogger("penstock.client")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Topics = str | Iterable[str]
OnCommit = Callable[[Offsets, ClientError | None], None]


class ConsumerCore:
    """Owns the parts of a consumer. It is the `Host` of its group membership."""

    def __init__(self, options: ConsumerOptions, env: ClientEnv, maker: RecordMaker) -> None:
        committed_only = bool(options.isolation_level)
        self.options = options
        self.env = env
        self.subscription = Subscription(
            check_crcs=options.check_crcs, committed_only=committed_only
        )
        self.reading = Reading(self.subscription, maker)
        self.listeners = Listeners()
        self.meter = ConsumerMeter()
        self.chain = consumer_chain(options.interceptors)
        self.news = asyncio.Event()
        self.is_closed = False
        self.auto_commit_holds = 0
        """The number of holds on auto-commit. While it is above zero only explicit commits are
        made."""
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._background: asyncio.Task[None] | None = None
        self._member: GroupMember | None = None
        self._read_as: Identity | None = None
        self._commits: Commits | None = None
        self._auto_commit: AutoCommit | None = None
        self.topics = TopicTracker(self.subscription, options, lambda: self.cluster, self.news.set)
        self._seen_topics: set[str] = set()
        self._wanted: tuple[frozenset[str], str | None] = _NOTHING
        """The topics and the regular expression that the group member was last given."""
        self._to_announce: list[TopicPartition] = []
        self._yielded_at = 0.0
        self._woken = False

    # -- starting and closing -------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        if self.is_closed:
            raise Closed("the consumer has been closed: make a new one")
        if self._cluster is None:
            raise ClientError(_NOT_STARTED)
        return self._cluster

    @property
    def is_started(self) -> bool:
        return self._cluster is not None

    async def start(self) -> None:
        if self.is_closed:
            raise Closed("the consumer has been closed: make a new one")
        if self._cluster is not None:
            return
        env = self.env
        cluster = Cluster(
            self.options.cluster_config(), env.network, env.clock, env.random, env.executor
        )
        await cluster.__aenter__()
        self._cluster = cluster
        positions = Positions(
            cluster,
            self.subscription,
            self.options.auto_offset_reset,
            isolation_level=self.options.isolation_level,
            committed=self._committed_offsets if self.options.group_id is not None else None,
            on_reset=self._count_reset,
        )
        self._fetcher = Fetcher(
            cluster,
            self.subscription,
            positions,
            self.options,
            self.meter,
            refresh=self.topics.refresh,
            on_news=self.news.set,
        )
        self._background = asyncio.create_task(self._fetcher.run(), name="penstock fetches")
        self._background.add_done_callback(lambda _: self.news.set())

    async def close(self, timeout_s: float | None) -> None:
        """Commits, leaves the group and stops. Does not wait longer than the timeout."""
        if self.is_closed:
            return
        limit_s = CLOSE_S if timeout_s is None else timeout_s
        self.reading.drop_run()
        self.is_closed = True
        self.news.set()
        try:
            if self._member is not None:
                await self._member.close(limit_s)
            await self._commit_last(limit_s)
            if self._commits is not None:
                await self._commits.close(limit_s)
        finally:
            if self._background is not None:
                self._background.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self._background])
            if self._cluster is not None:
                self._cluster.close()
                await self._cluster.closed()
            self.subscription.clear()

    async def _commit_last(self, limit_s: float) -> None:
        """Commits the final positions of manually assigned partitions before they are given up."""
        if self._auto_commit is None:
            return
        offsets = self._auto_commit.moved(self.consumed())
        try:
            if offsets:
                await self.committer.commit(offsets, timeout_s=limit_s)
        except ClientError as error:
            _log.warning("cannot commit at close, records will be read again: %s", error)

    # -- subscriptions --------------------------------------------------------------------------

    def begin_with(self, topics: Topics) -> None:
        """Sets the topics to subscribe to when the consumer starts."""
        self.subscription.follow(_names(topics))
        self.topics.changed = True

    async def subscribe(
        self, topics: Topics, pattern: str | re.Pattern[str] | None, listener: object | None
    ) -> None:
        names = _names(topics)
        if bool(names) == (pattern is not None):
            raise ClientError(
                "subscribe needs either topics or a pattern: give exactly one of them"
            )
        regex = None
        if isinstance(pattern, str) and self.options.group_protocol == CONSUMER:
            pattern, regex = None, pattern
        elif isinstance(pattern, str):
            pattern = re.compile(pattern)
        if listener is not None:
            self.listeners.set_users(listener)
        if pattern is not None and self._cluster is not None:
            names = await self.topics.matching(pattern)
        self.reading.drop_run()
        self.subscription.follow(names, pattern, regex)
        self.topics.changed = True
        self.refresh_soon()

    async def unsubscribe(self) -> None:
        self.reading.drop_run()
        if self._member is not None:
            member, self._member, self._read_as = self._member, None, None
            await member.unsubscribe()
            await member.close()
            self._wanted = _NOTHING
        if self._auto_commit is not None:
            await self._commit_last(self.options.default_api_timeout_ms / 1000)
            self._auto_commit = None
        self.subscription.clear()
        self._seen_topics.clear()
        self.topics.changed = False
        self.wake_fetcher()

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.reading.drop_run()
        if self._auto_commit is not None and self.is_started:
            self._commit_now(self._auto_commit)
        before = set(self.subscription.states)
        self.subscription.assign(topic_partitions)
        self._to_announce = [
            topic_partition
            for topic_partition in self.subscription.states
            if topic_partition not in before
        ]
        options = self.options
        if self._auto_commit is None and options.enable_auto_commit and options.group_id:
            self._auto_commit = AutoCommit(
                options.auto_commit_interval_ms,
                options.retry_backoff_max_ms,
                self.env.clock.monotonic(),
            )
        self.refresh_soon()

    # -- at each poll ---------------------------------------------------------------------------

    async def attend(self) -> None:
        """Applies everything that may change the caller's partitions. Each poll calls this
        first."""
        cluster = self.cluster
        if self._background is not None and self._background.done():
            self._background.result()
        await self._let_others_run()
        if self.topics.changed:
            self.topics.changed = False
            self._renew_recreated(cluster)
            await self._follow_topics(cluster)
        if self._to_announce:
            topic_partitions, self._to_announce = self._to_announce, []
            await self.listeners.positioned(topic_partitions)
        if self._member is not None:
            await self._member.poll()
        elif self._auto_commit is not None:
            self._commit_if_due()
        self.topics.raise_error()
        self.raise_error(again=False)

    async def _let_others_run(self) -> None:
        """Yields to other tasks. Polls may find buffered records for a long time without waiting,
        and heartbeats and fetches must continue in the meantime."""
        now = self.env.clock.monotonic()
        if now - self._yielded_at > YIELD_S:
            await asyncio.sleep(0)
            self._yielded_at = self.env.clock.monotonic()

    def _renew_recreated(self, cluster: Cluster) -> None:
        """Resets the positions of topics that were deleted and created again.

        All records of such a topic were written after this consumer began to read, as with a
        partition that was added, so it is read from the beginning.
        """
        for name in self.topics.recreated(cluster):
            self.reading.drop_run()
            self.subscription.renew(
                [
                    topic_partition
                    for topic_partition in self.subscription.states
                    if topic_partition.topic == name
                ],
                EARLIEST,
            )
            self.wake_fetcher()

    async def _follow_topics(self, cluster: Cluster) -> None:
        if not self.subscription.follows_topics:
            return
        if self.options.group_id is not None:
            wanted = self.subscription.topics, self.subscription.regex
            if wanted != self._wanted:
                self._wanted = wanted
                listener = self.listeners.as_listener()
                self._join(cluster).subscribe(wanted[0], listener, regex=wanted[1])
            return
        states = self.subscription.states
        gone = [
            topic_partition
            for topic_partition in states
            if topic_partition.topic not in self.subscription.topics
        ]
        if gone:
            await self.listeners.revoked(gone)
            self.drop(gone)
        new: list[TopicPartition] = []
        for topic in sorted(self.subscription.topics):
            count = cluster.known_partitions(topic) or 0
            topic_partitions = [TopicPartition(topic, index) for index in range(count)]
            added = [
                topic_partition
                for topic_partition in topic_partitions
                if topic_partition not in states
            ]
            self.add(added)
            if topic in self._seen_topics:
                # All records of a partition that was just added were written after this consumer
                # subscribed.
                for topic_partition in added:
                    self.subscription.look_up(states[topic_partition], EARLIEST)
            elif count:
                self._seen_topics.add(topic)
            new += added
        if new:
            await self.listeners.assigned(new)

    def _join(self, cluster: Cluster) -> GroupMember:
        if self._member is None:
            options = self.options
            assert options.group_id is not None
            self._member = GroupMember(
                cluster,
                MembershipOptions.of(options.group_id, options),
                self,
            )
        return self._member

    async def wait(self, deadline: float) -> bool:
        """Waits for news. Returns False once the deadline has passed or `wakeup` was called."""
        left_s = deadline - self.env.clock.monotonic()
        if self._woken or left_s <= 0:
            self._woken = False
            return False
        try:
            async with asyncio.timeout(left_s):
                await self.news.wait()
        except TimeoutError:
            return False
        return True

    def wakeup(self) -> None:
        self._woken = True
        self.news.set()

    def raise_error(self, *, again: bool) -> None:
        """Raises the error that stops a partition from being read: once when it occurs, and with
        `again` also whenever there is nothing else to return."""
        retry_at = self.env.clock.monotonic() + self.options.retry_backoff_max_ms / 1000
        error = self.subscription.take_error(retry_at, again=again)
        if error is not None:
            self.wake_fetcher()
            raise error

    def wake_fetcher(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def fetch_for_tables(self, partition_bytes: int) -> None:
        """Fetches larger pieces, unless the user configured `max_partition_fetch_bytes`."""
        given = self.options.max_partition_fetch_bytes != PARTITION_FETCH_BYTES
        if self._fetcher is not None and not given:
            self._fetcher.partition_bytes = partition_bytes

    def refresh_soon(self) -> None:
        if self._fetcher is not None:
            self._fetcher.refresh_now()

    @property
    def held_bytes(self) -> int:
        return self._fetcher.held_bytes if self._fetcher is not None else 0

    def _count_reset(self) -> None:
        self.meter.resets += 1

    # -- the group ------------------------------------------------------------------------------

    @property
    def membership(self) -> tuple[str, Identity]:
        """The group's name, and the member id and generation for offset commits in a transaction.

        These are the values from when the consumer last returned records. If it has lost their
        partitions since and joined again, its current identity would be accepted for records that
        other members have read by then.
        """
        if self.options.group_id is None:
            raise ClientError("committing offsets needs a consumer group: give group_id")
        if self._member is None:
            return self.options.group_id, NOBODY
        if self._read_as is None:
            return self.options.group_id, self._member.identity
        return self.options.group_id, self._member.renewed(self._read_as)

    def note_handed_out(self) -> None:
        self._read_as = None if self._member is None else self._member.identity

    @property
    def committer(self) -> GroupMember | Commits:
        if self._member is not None:
            return self._member
        if self._commits is None:
            group = self.options.group_id
            if group is None:
                raise ClientError("committing offsets needs a consumer group: give group_id")
            if self._cluster is None:
                raise ClientError(_NOT_STARTED)
            self._commits = Commits(
                self._cluster,
                group,
                require_stable=bool(self.options.isolation_level),
                timeout_s=self.options.default_api_timeout_ms / 1000,
                on_committed=self._on_committed,
            )
        return self._commits

    async def _committed_offsets(
        self, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        return await self.committer.committed(topic_partitions, timeout_s=_LOOKUP_S)

    def _commit_if_due(self) -> None:
        """Auto-commits for manually assigned partitions. A group member does this by itself."""
        auto = self._auto_commit
        if auto is not None and auto.is_due(self.env.clock.monotonic()):
            self._commit_now(auto)

    def _commit_now(self, auto: AutoCommit) -> None:
        clock = self.env.clock
        offsets = auto.begin(self.consumed(), clock.monotonic())
        if not offsets:
            return

        def on_end(_: Offsets, error: ClientError | None) -> None:
            retriable = error is not None and error.retriable
            auto.on_end(retriable=retriable, now=clock.monotonic())
            if error is not None:
                _log.warning("auto-commit failed, retrying later: %s", error)

        self.committer.commit_nowait(offsets, on_end)

    def _on_committed(self, offsets: Offsets) -> None:
        if self._auto_commit is not None:
            self._auto_commit.on_committed(offsets)
        self.committed(offsets)

    # -- the Host of the group member -----------------------------------------------------------

    def consumed(self) -> Offsets:
        if self.auto_commit_holds:
            return {}
        self.reading.settle()
        return self.subscription.positions()

    def add(self, topic_partitions: Collection[TopicPartition]) -> None:
        self.subscription.add(topic_partitions)
        self.wake_fetcher()

    def drop(self, topic_partitions: Collection[TopicPartition]) -> None:
        self.reading.drop_run()
        self.subscription.drop(topic_partitions)
        self.wake_fetcher()

    def wake(self) -> None:
        self.news.set()

    def committed(self, offsets: Offsets) -> None:
        if self.chain is not None:
            self.chain.on_commit(offsets)

    def snapshot(self) -> ConsumerMetrics:
        self.reading.settle()
        if self._member is not None:
            self.meter.rebalances = self._member.stats().rebalances
        committed_only = bool(self.options.isolation_level)
        lags = {
            topic_partition: lag
            for topic_partition, state in self.subscription.states.items()
            if (lag := state.lag(committed_only=committed_only)) is not None
        }
        return self.meter.snapshot(self.held_bytes, lags)


def _names(topics: Topics) -> frozenset[str]:
    return frozenset([topics] if isinstance(topics, str) else topics)
