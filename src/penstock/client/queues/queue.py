"""The async queue: the public face of `sharing` and of this package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Generic, Protocol, Self, Unpack, overload

from penstock.client.admin.share_groups import not_served
from penstock.client.cluster import Cluster
from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv, default_environment
from penstock.client.errors import ApiNotServed, Closed, DeadlineExceeded, OptionError
from penstock.client.model import Record, RecordMetadata, V
from penstock.client.option_help import with_help
from penstock.client.queue_options import PREFETCH_MAX, QueueKeywords, QueueOptions
from penstock.client.queues import queue_stats
from penstock.client.queues.group_start import set_group_start
from penstock.client.queues.job import Job
from penstock.client.queues.job_headers import Extras, Seconds
from penstock.client.queues.job_sender import JobSender
from penstock.client.queues.queue_stats import QueueStats
from penstock.client.queues.replies import Replies
from penstock.client.queues.workers import (
    Handler,
    OnError,
    WorkerPool,
    WorkSummary,
    stop_on_signals,
)
from penstock.client.serializers import CanDeserialize, CanSerialize, deserialize_with
from penstock.client.sharing.leases import Lease
from penstock.client.sharing.share_consumer import ShareConsumer
from penstock.topic_partition import TopicPartition
from penstock.wire.messages import ShareGroupHeartbeatRequest

GRACE_S: Final = 30.0
_JOIN_S: Final = 60.0
_IDLE_S: Final = 2.0


class Serializer(CanSerialize[V], CanDeserialize[V], Protocol[V]):
    """Converts values to bytes and back, as all objects of `penstock.serializers` do."""


@with_help(QueueOptions)
class Queue(Generic[V]):
    """A queue of jobs: a topic that is read by a share group. Each job goes to one worker.

    `serializer` converts values (see `penstock.serializers`); without it, give bytes. `env` is for
    tests without a network. The other keywords are options: see `help(aio.Queue)` or
    docs/QUEUES.md.

    A queue that only puts jobs does not join the group. Iterating over it, or `take`, does. Leaving
    the block gives back the jobs that are not settled. It needs Kafka 4.2 or later.

    Example:
        async with aio.Queue("localhost:9092", "jobs") as queue:
            await queue.put(b"resize cat.png")
            async for job in queue:
                print(job.value)
                await job.done()
                break
        #> b'resize cat.png'
    """

    @overload
    def __init__(
        self: Queue[bytes],
        bootstrap_servers: str | list[str],
        topic: str,
        *,
        env: ClientEnv | None = None,
        **options: Unpack[QueueKeywords],
    ) -> None: ...
    @overload
    def __init__(
        self,
        bootstrap_servers: str | list[str],
        topic: str,
        *,
        serializer: Serializer[V],
        env: ClientEnv | None = None,
        **options: Unpack[QueueKeywords],
    ) -> None: ...
    def __init__(
        self,
        bootstrap_servers: str | list[str],
        topic: str,
        *,
        serializer: Any = None,
        env: ClientEnv | None = None,
        **options: Any,
    ) -> None:
        TopicPartition(topic, 0)
        self.options = QueueOptions.parse(bootstrap_servers, options)
        self.env = default_environment() if env is None else env
        self.topic = topic
        self.group = self.options.group_id or topic
        self._deserialize = deserialize_with(serializer)
        self._cluster = Cluster(
            self.options.cluster_config(),
            self.env.network,
            self.env.clock,
            self.env.random,
            self.env.executor,
        )
        self._sender = JobSender(self._cluster, topic, self.options, self.env, serializer)
        self._replies = Replies(self._cluster, self.options, self.env, self._sender, serializer)
        self._consumer: ShareConsumer | None = None
        self._joining = asyncio.Lock()
        self._is_started = False
        self._is_closed = False
        self._has_stopped = False
        self._prefetch = self.options.prefetch

    # -- starting and closing -------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster, or raises `ConnectFailed`."""
        if self._is_closed:
            raise Closed("the queue is closed: make a new one")
        if not self._is_started:
            await self._cluster.__aenter__()
            self._is_started = True

    async def close(self, timeout_s: float | None = None) -> None:
        """Gives back the jobs that are not settled, leaves the group and disconnects."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._consumer is not None:
                await self._consumer.close(timeout_s)
            await self._replies.close()
            await self._sender.close(timeout_s)
        finally:
            self._cluster.close()
            await self._cluster.closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- putting --------------------------------------------------------------------------------

    async def put(
        self,
        value: V | None,
        *,
        key: bytes | str | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        delay: Seconds | None = None,
        ttl: Seconds | None = None,
        priority: int | None = None,
        dedup: str | None = None,
    ) -> RecordMetadata:
        """Puts a job into the queue, and returns when it is stored.

        `delay`: it is delivered after this time. `ttl`: it is given up if it was not delivered so
        long after it was due. Both need the topic setting `penstock.timed.records`. `priority`: 0
        is the lowest; needs `penstock.priority.levels`. `dedup`: a second job with this id is not
        delivered; needs `penstock.dedup.window.ms`. Raises `ClientError` if the topic does not have
        the setting. Times are in seconds, or a timedelta.

        Example:
            async with aio.Queue("localhost:9092", "jobs", serializer=serializers.json) as queue:
                stored = await queue.put({"resize": "cat.png"}, key="cats")
                print(stored.topic)
            #> jobs
        """
        self._check_started()
        return await self._sender.put(value, key, headers, Extras(delay, ttl, priority, dedup))

    async def put_all(
        self,
        values: Iterable[V | None],
        *,
        delay: Seconds | None = None,
        ttl: Seconds | None = None,
        priority: int | None = None,
    ) -> int:
        """Puts many jobs, and returns their number when all are stored. Much faster than one by
        one.

        If one fails, it raises that error. Others may have been stored.
        """
        self._check_started()
        extras = Extras(delay, ttl, priority)
        deliveries = [await self._sender.send(value, None, (), extras) for value in values]
        for delivery in deliveries:
            await delivery
        return len(deliveries)

    # -- taking ---------------------------------------------------------------------------------

    async def take(self, timeout_s: float | None = None) -> Job[V] | None:
        """Returns the next job. Waits for one, at most for the timeout, and then returns None.

        Example:
            async with aio.Queue("localhost:9092", "jobs") as queue:
                await queue.put(b"resize cat.png")
                job = await queue.take(timeout_s=60)
                await job.retry()
        """
        consumer = await self._joined()
        lease = await consumer.take(timeout_s)
        return None if lease is None else self._job(consumer, lease)

    async def take_many(self, limit: int, timeout_s: float | None = None) -> list[Job[V]]:
        """Waits for the first job as `take` does, and returns it with others that are here."""
        first = await self.take(timeout_s)
        jobs = [] if first is None else [first]
        consumer = await self._joined()
        while jobs and len(jobs) < limit and (lease := consumer.take_nowait()) is not None:
            jobs.append(self._job(consumer, lease))
        return jobs

    def __aiter__(self) -> AsyncIterator[Job[V]]:
        return self

    async def __anext__(self) -> Job[V]:
        job = await self.take()
        if job is None:
            raise StopAsyncIteration
        return job

    def set_prefetch(self, prefetch: int) -> None:
        """Changes the option `prefetch` from now on. 0 fetches no more jobs until it is changed
        again. Jobs that were fetched before stay."""
        if not 0 <= prefetch <= PREFETCH_MAX:
            raise OptionError(f"prefetch is {prefetch}: give 0 to {PREFETCH_MAX}")
        self._prefetch = prefetch
        if self._consumer is not None:
            self._consumer.set_prefetch(prefetch)

    def stop_taking(self) -> None:
        """Takes no more jobs: gives back those that are buffered, and ends iterations. Jobs that
        were taken can still be settled."""
        self._has_stopped = True
        if self._consumer is not None:
            self._consumer.stop_taking()

    async def flush(self) -> None:
        """Waits until the broker has stored what was settled with `wait=False`."""
        if self._consumer is not None:
            await self._consumer.flush()

    # -- working --------------------------------------------------------------------------------

    async def run(
        self,
        handler: Handler[V],
        *,
        workers: int = 1,
        on_error: OnError = "retry",
        stop: asyncio.Event | None = None,
        grace_s: float = GRACE_S,
        signals: bool = True,
    ) -> WorkSummary:
        """Calls the handler for every job, for `workers` jobs at the same time.

        A job is done when the handler returns, unless the handler has settled it itself. If it
        raises, the job is given back, or rejected with `on_error="reject"`. The handler may be
        async; a plain function is called on a thread, of which there are as many as workers.

        Returns after `stop` is set, or after SIGTERM or Ctrl-C if `signals` is on. Handlers then
        have `grace_s` seconds to finish. What they have not finished is given back. The queue can
        take no more jobs afterwards.

        Example:
            async with aio.Queue("localhost:9092", "jobs") as queue:
                await queue.put_all([b"cat.png", b"dog.png"])
                stop = asyncio.Event()
                seen = []

                async def handle(job):
                    seen.append(job.value)
                    if len(seen) == 2:
                        stop.set()

                summary = await queue.run(handle, workers=4, stop=stop)
                print(summary.done)
            #> 2
        """
        if workers < 1:
            raise OptionError(f"workers is {workers}: give at least 1")
        await self._joined()
        pool = WorkerPool(
            self,
            handler,
            workers=workers,
            on_error=on_error,
            grace_s=grace_s,
        )
        stopping = asyncio.Event() if stop is None else stop
        if not signals:
            return await pool.run(stopping)
        loop = asyncio.get_running_loop()
        with stop_on_signals(lambda: _call_soon(loop, stopping)):
            return await pool.run(stopping)

    # -- asking ---------------------------------------------------------------------------------

    async def ask(
        self,
        value: V | None,
        *,
        timeout_s: float = 30.0,
        key: bytes | str | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        priority: int | None = None,
    ) -> V | None:
        """Puts a job, waits for the reply of the worker that gets it, and returns the reply.

        Raises `RequestTimedOut` if none comes in time. The job stays in the queue then. Replies go
        through the topic `penstock.replies`, which is created if it does not exist.

        Example:
            async with aio.Queue("localhost:9092", "jobs") as queue:

                async def work():
                    job = await queue.take()
                    await job.reply(job.value.upper())
                    await job.done()

                worker = asyncio.create_task(work())
                print(await queue.ask(b"hello", timeout_s=60))
                await worker
            #> b'HELLO'
        """
        self._check_started()
        own, future = await self._replies.expect()
        try:
            await self._sender.put(value, key, headers, Extras(priority=priority), own)
        except BaseException:
            future.cancel()
            raise
        reply: V | None = await self._replies.wait(future, timeout_s)
        return reply

    # -- looking --------------------------------------------------------------------------------

    async def stats(self) -> QueueStats:
        """Returns the numbers of the queue: depth, group state, members, partitions."""
        self._check_started()
        return await queue_stats.queue_stats(self._cluster, self.topic, self.group)

    async def peek(self, limit: int = 10) -> list[Record[bytes | None, bytes | None]]:
        """Returns the first records that are not done, without taking them.

        They are read from the log, so some may be with workers, and later ones may be done.
        """
        options = self.options
        consumer: Consumer[bytes | None, bytes | None] = Consumer(
            options.servers(), env=self.env, auto_offset_reset="earliest", **options.common()
        )
        return await queue_stats.peek(await self.stats(), limit, consumer)

    async def drain(self, *, idle_s: float = _IDLE_S) -> int:
        """Takes all jobs and marks them as done. Returns their number.

        Ends when no job came for `idle_s` seconds. Jobs that other workers have are not drained.
        """
        consumer = await self._joined()
        if not await consumer.wait_assigned(_JOIN_S):
            raise DeadlineExceeded(
                f"share group {self.group}", _JOIN_S, Closed("it assigned no partition")
            )
        count = 0
        while (job := await self.take(idle_s)) is not None:
            await job.done(wait=False)
            count += 1
        await consumer.flush()
        return count

    # -- internals ------------------------------------------------------------------------------

    def _job(self, consumer: ShareConsumer, lease: Lease) -> Job[V]:
        return Job(consumer, lease, self._deserialize, self._replies)

    def _check_started(self) -> None:
        if self._is_closed:
            raise Closed("the queue is closed: make a new one")
        if not self._is_started:
            raise Closed("the queue is not started: use `async with`, or await start()")

    async def _joined(self) -> ShareConsumer:
        """Returns the member of the group. The first call joins."""
        self._check_started()
        if self._consumer is not None:
            return self._consumer
        async with self._joining:
            if self._consumer is None:
                await self._prepare()
                consumer = ShareConsumer(self._cluster, self.group, [self.topic], self.options)
                consumer.set_prefetch(self._prefetch)
                consumer.start()
                if self._has_stopped:
                    consumer.stop_taking()
                self._consumer = consumer
        return self._consumer

    async def _prepare(self) -> None:
        """Checks that the broker has share groups, and that the topic exists."""
        connection = await self._cluster.coordinator_connection(self.group)
        try:
            connection.version_of(ShareGroupHeartbeatRequest)
        except ApiNotServed as error:
            raise not_served(error) from error
        create = self.options.allow_auto_create_topics
        await self._cluster.partitions(self.topic, auto_create=create)
        if self.options.auto_offset_reset is not None:
            await set_group_start(self._cluster, self.group, self.options.auto_offset_reset)


def _call_soon(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # A handler of signals interrupts the loop at any place, and the loop may be waiting.
    loop.call_soon_threadsafe(stop.set)
