"""The member of a share group that the driver of a stream is.

It lives in the planning process of the query: one connection to each leader, whose session has the
locks. They are extended as long as the process lives. When it dies, its connections close, and the
leaders give the records to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.cluster import Cluster
from penstock.client.environment import default_environment
from penstock.client.errors import ClientError, ConnectFailed
from penstock.client.queue_options import QueueOptions
from penstock.client.queues.group_start import set_group_start
from penstock.client.queues.queue_stats import queue_stats
from penstock.client.sharing.acknowledgements import AckType
from penstock.client.sharing.share_consumer import ShareConsumer
from penstock.spark.client_options import keywords
from penstock.spark.clients import no_broker
from penstock.spark.offsets import Offsets
from penstock.spark.options import SourceOptions
from penstock.spark.share_batches import Taken
from penstock.topic_partition import TopicPartition

_MORE_S: Final = 0.05
"""After the first record, a batch is closed when no other came for this long."""
_LOCKED_MS: Final = 7 * 86_400_000
"""How long the lock of one record is extended. A micro-batch should be done by then."""


class ShareSession:
    def __init__(self, options: SourceOptions) -> None:
        self._topics = options.topics.names
        self._group = options.share_group
        self._options = _queue_options(options)
        env = default_environment()
        self._cluster = Cluster(
            self._options.cluster_config(), env.network, env.clock, env.random, env.executor
        )
        self._consumer: ShareConsumer | None = None
        self._life = Lifecycle("share group source", env.clock, self._start, self._close)
        self._life.watch(self)
        try:
            self._life.portal()
        except ConnectFailed as error:
            raise no_broker(options, error) from None

    async def _start(self) -> None:
        await self._cluster.__aenter__()
        for topic in self._topics:
            await self._cluster.partitions(topic)  # raises if there is no such topic
        await set_group_start(self._cluster, self._group, self._options.auto_offset_reset or "")
        consumer = ShareConsumer(self._cluster, self._group, self._topics, self._options)
        consumer.start()
        self._consumer = consumer

    async def _close(self, timeout_s: float | None) -> None:
        try:
            if self._consumer is not None:
                await self._consumer.close(timeout_s)
        finally:
            self._cluster.close()
            await self._cluster.closed()

    @property
    def _member(self) -> ShareConsumer:
        assert self._consumer is not None
        return self._consumer

    def close(self) -> None:
        """Gives back what is not acknowledged, and leaves the group."""
        self._life.close()

    def acquire(self, limit: int, wait_s: float) -> list[Taken]:
        """Waits for the first record, at most `wait_s`. Returns it with those that follow."""
        return self._life.call(self._acquire(limit, wait_s))

    async def _acquire(self, limit: int, wait_s: float) -> list[Taken]:
        member = self._member
        member.resume()
        taken: list[Taken] = []
        while len(taken) < limit:
            lease = await member.take(_MORE_S if taken else wait_s)
            if lease is None:
                break
            part, where = lease.part, lease.topic_partition
            attempt = lease.found.deliveries
            taken.append(Taken(part.topic_id.hex(), where, lease.offset, attempt, lease))
        if taken:
            # The batch may take long, and other queries shall not wait for what it does not have.
            member.pause()
        return taken

    def acknowledge(self, taken: Iterable[Taken]) -> list[Taken]:
        """Marks the records as done. Returns those whose locks were lost."""
        return self._life.call(self._settle(taken, AckType.ACCEPT))

    def release(self, taken: Iterable[Taken]) -> None:
        """Gives the records back, for this member or another."""
        self._life.call(self._settle(taken, AckType.RELEASE))

    async def _settle(self, taken: Iterable[Taken], kind: AckType) -> list[Taken]:
        member = self._member
        lost: list[Taken] = []

        def on_end(each: Taken, error: ClientError | None) -> None:
            if error is not None:
                lost.append(each)

        for each in taken:
            if each.lease.is_open:
                member.settle(each.lease, kind, partial(on_end, each))
            else:
                lost.append(each)
        await member.flush()
        return lost

    def ends(self) -> Offsets:
        """Returns where the logs end now."""
        return self._life.call(self._ends())

    async def _ends(self) -> Offsets:
        return {
            TopicPartition(topic, part.partition): part.end_offset
            for topic in self._topics
            for part in (await queue_stats(self._cluster, topic, self._group)).partitions
        }

    def has_waiting(self, target: Offsets) -> bool:
        """Whether there are records below these offsets that nobody is working on.

        False if the broker cannot tell how many are in flight, as Kafka's cannot."""
        return self._life.call(self._has_waiting(target))

    async def _has_waiting(self, target: Offsets) -> bool:
        if not self._member.membership.assignment:
            return True
        for topic in self._topics:
            for part in (await queue_stats(self._cluster, topic, self._group)).partitions:
                end = target.get(TopicPartition(topic, part.partition), 0)
                later = max(0, part.end_offset - end)
                if part.in_flight is not None and part.depth - part.in_flight - later > 0:
                    return True
        return False


def _queue_options(options: SourceOptions) -> QueueOptions:
    known = QueueOptions.names()
    given = keywords(
        {name: text for name, text in options.client.items() if name in known}, QueueOptions
    )
    own: dict[str, object] = {
        "group_id": options.share_group,
        "prefetch": options.trigger_offsets_max,
        "lock_extend_max_ms": _LOCKED_MS,
        "allow_auto_create_topics": False,
    }
    if options.trigger_bytes_max is not None:
        own["queued_bytes_max"] = options.trigger_bytes_max
    return QueueOptions.parse(options.bootstrap_servers, {**given, **own})


def has_any_below(taken: Sequence[Taken], target: Offsets) -> bool:
    """Whether one of the records is below the offsets at which a run ends."""
    return any(each.offset < target.get(each.topic_partition, 0) for each in taken)
