"""The sync queue: the async queue on a thread of its own, and calls to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from penstock.client.blocking.lifecycle import Lifecycle
from penstock.client.environment import ClientEnv
from penstock.client.model import Headers, Record, RecordMetadata, V
from penstock.client.option_help import with_help
from penstock.client.queue_options import QueueKeywords, QueueOptions
from penstock.client.queues.job import Job as AsyncJob
from penstock.client.queues.job_headers import Seconds
from penstock.client.queues.queue import GRACE_S, Serializer
from penstock.client.queues.queue import Queue as AsyncQueue
from penstock.client.queues.queue_stats import QueueStats
from penstock.client.queues.workers import OnError, WorkSummary, stop_on_signals

T = TypeVar("T")


class Job(Generic[V]):
    """One delivery of a record. Settle it with `done`, `retry` or `reject`, exactly once.

    A job that is not settled is delivered again: when the queue is closed, when its lock ends, or
    when this process dies. `Queue` returns jobs; programs do not make them.

    Example:
        with Queue("localhost:9092", "jobs") as queue:
            queue.put(b"resize cat.png")
            job = queue.take()
            print(job.value, job.attempt)
            job.done()
        #> b'resize cat.png' 1
    """

    def __init__(self, job: AsyncJob[V], life: Lifecycle) -> None:
        self._async = job
        self._life = life

    # -- the record -----------------------------------------------------------------------------

    @property
    def value(self) -> V | None:
        """The value. Raises `DeserializationFailed` if the serializer cannot read it."""
        return self._async.value

    @property
    def key(self) -> bytes | None:
        """The key, in bytes."""
        return self._async.key

    @property
    def headers(self) -> Headers:
        """Names and values of the headers, in the order in which they were sent."""
        return self._async.headers

    def header(self, name: str) -> bytes | None:
        """Returns the last value of the header with this name, or None."""
        return self._async.header(name)

    @property
    def attempt(self) -> int:
        """How often the job was delivered, this delivery included."""
        return self._async.attempt

    @property
    def topic(self) -> str:
        """The topic of the queue."""
        return self._async.topic

    @property
    def partition(self) -> int:
        """The partition that the record is in."""
        return self._async.partition

    @property
    def offset(self) -> int:
        """The offset of the record in its partition."""
        return self._async.offset

    @property
    def timestamp(self) -> int:
        """When the job was put: milliseconds since 1970."""
        return self._async.timestamp

    @property
    def record(self) -> Record[bytes | None, bytes | None]:
        """The record, in bytes."""
        return self._async.record

    @property
    def is_settled(self) -> bool:
        """Whether `done`, `retry` or `reject` was called."""
        return self._async.is_settled

    @property
    def is_lost(self) -> bool:
        """Whether the lock is known to be lost: another worker may have the job."""
        return self._async.is_lost

    @property
    def wants_reply(self) -> bool:
        """Whether it was sent with `ask`, so that a client waits for a reply."""
        return self._async.wants_reply

    # -- settling -------------------------------------------------------------------------------

    def done(self, *, wait: bool = True) -> None:
        """Marks the job as done: it is not delivered again.

        Returns when the broker has stored that. Without `wait` it returns at once, and a failure is
        only logged. Raises `LockLost` if another worker may have the job.
        """
        self._life.call(self._async.done(wait=wait))

    def retry(self, *, wait: bool = True) -> None:
        """Gives the job back: it is delivered again, to any worker.

        At once, or after the back-off that the group has (`penstock.share.redelivery.backoff.ms`).
        A job that was delivered `share.delivery.count.limit` times is given up instead.
        """
        self._life.call(self._async.retry(wait=wait))

    def reject(self, *, wait: bool = True) -> None:
        """Gives the job up: it is not delivered again, and becomes a dead letter if the group has a
        topic for them."""
        self._life.call(self._async.reject(wait=wait))

    def extend(self) -> None:
        """Extends the lock: from now on, it lasts as long as the group's locks do.

        Needed only for long jobs if the option `lock_extend` is off.
        """
        self._life.call(self._async.extend())

    def reply(self, value: Any) -> None:
        """Sends a reply to the client that asked, and waits until it is stored.

        Call it before `done`. Raises `ClientError` if nobody waits for a reply to this job.
        """
        self._life.call(self._async.reply(value))

    def __repr__(self) -> str:
        return repr(self._async)


@with_help(QueueOptions)
class Queue(Generic[V]):
    """A queue of jobs: a topic that is read by a share group. Each job goes to one worker.

    `serializer` converts values (see `penstock.serializers`); without it, give bytes. `env` is for
    tests without a network. The other keywords are options: see `help(Queue)` or docs/QUEUES.md.

    A queue that only puts jobs does not join the group. Iterating over it, or `take`, does. Leaving
    the block gives back the jobs that are not settled. May be used from several threads at once. It
    needs Kafka 4.2 or later.

    Example:
        with Queue("localhost:9092", "jobs") as queue:
            queue.put(b"resize cat.png")
            for job in queue:
                print(job.value)
                job.done()
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
        core: AsyncQueue[V] = AsyncQueue(
            bootstrap_servers, topic, serializer=serializer, env=env, **options
        )
        self._async = core
        self.options = core.options
        self.topic = core.topic
        self.group = core.group
        self._life = Lifecycle("queue", core.env.clock, core.start, core.close)
        self._life.watch(self)

    # -- starting and closing -------------------------------------------------------------------

    def start(self) -> None:
        """Connects now, or raises `ConnectFailed`. Otherwise the first call connects."""
        self._life.portal()

    def close(self, timeout_s: float | None = None) -> None:
        """Gives back the jobs that are not settled, leaves the group and disconnects."""
        self._life.close(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- putting --------------------------------------------------------------------------------

    def put(
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
            with Queue("localhost:9092", "jobs", serializer=serializers.json) as queue:
                stored = queue.put({"resize": "cat.png"}, key="cats")
                print(stored.topic)
            #> jobs
        """
        return self._call(
            self._async.put(
                value,
                key=key,
                headers=tuple(headers),
                delay=delay,
                ttl=ttl,
                priority=priority,
                dedup=dedup,
            )
        )

    def put_all(
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
        return self._call(self._async.put_all(values, delay=delay, ttl=ttl, priority=priority))

    # -- taking ---------------------------------------------------------------------------------

    def take(self, timeout_s: float | None = None) -> Job[V] | None:
        """Returns the next job. Waits for one, at most for the timeout, and then returns None.

        Example:
            with Queue("localhost:9092", "jobs") as queue:
                queue.put(b"resize cat.png")
                job = queue.take(timeout_s=60)
                job.retry()
        """
        job = self._call(self._async.take(timeout_s))
        return None if job is None else Job(job, self._life)

    def take_many(self, limit: int, timeout_s: float | None = None) -> list[Job[V]]:
        """Waits for the first job as `take` does, and returns it with others that are here."""
        jobs = self._call(self._async.take_many(limit, timeout_s))
        return [Job(job, self._life) for job in jobs]

    def __iter__(self) -> Iterator[Job[V]]:
        return self

    def __next__(self) -> Job[V]:
        job = self.take()
        if job is None:
            raise StopIteration
        return job

    def set_prefetch(self, prefetch: int) -> None:
        """Changes the option `prefetch` from now on. 0 fetches no more jobs until it is changed
        again. Jobs that were fetched before stay.

        Example:
            with Queue("localhost:9092", "jobs", prefetch=10) as queue:
                queue.set_prefetch(20)
        """

        async def change() -> None:
            self._async.set_prefetch(prefetch)

        self._call(change())

    def stop_taking(self) -> None:
        """Takes no more jobs: gives back those that are buffered, and ends iterations. Jobs that
        were taken can still be settled."""
        self._life.portal().tell(self._async.stop_taking)

    def flush(self) -> None:
        """Waits until the broker has stored what was settled with `wait=False`."""
        self._call(self._async.flush())

    # -- working --------------------------------------------------------------------------------

    def run(
        self,
        handler: Callable[[Job[V]], object],
        *,
        workers: int = 1,
        on_error: OnError = "retry",
        stop: threading.Event | None = None,
        grace_s: float = GRACE_S,
        signals: bool = True,
    ) -> WorkSummary:
        """Calls the handler for every job, on `workers` threads.

        A job is done when the handler returns, unless the handler has settled it itself. If it
        raises, the job is given back, or rejected with `on_error="reject"`.

        Returns after `stop` is set, or after SIGTERM or Ctrl-C if `signals` is on. Handlers then
        have `grace_s` seconds to finish. Jobs that they have not finished are given back. The queue
        can take no more jobs afterwards.

        Example:
            with Queue("localhost:9092", "jobs") as queue:
                queue.put_all([b"cat.png", b"dog.png"])
                stop = threading.Event()
                seen = []

                def handle(job):
                    seen.append(job.value)
                    if len(seen) == 2:
                        stop.set()

                summary = queue.run(handle, workers=4, stop=stop)
                print(summary.done)
            #> 2
        """
        life, portal = self._life, self._life.portal()
        stopping = asyncio.Event()

        def on_thread(job: AsyncJob[V]) -> None:
            handler(Job(job, life))

        def ask_to_stop() -> None:
            portal.tell(stopping.set)

        def look() -> None:
            if stop is not None and stop.is_set():
                ask_to_stop()

        work = self._async.run(
            on_thread,
            workers=workers,
            on_error=on_error,
            stop=stopping,
            grace_s=grace_s,
            signals=False,
        )
        if not signals:
            return life.call(work, watch=look)
        with stop_on_signals(ask_to_stop):
            return life.call(work, watch=look)

    # -- asking ---------------------------------------------------------------------------------

    def ask(
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
        """
        return self._call(
            self._async.ask(
                value, timeout_s=timeout_s, key=key, headers=tuple(headers), priority=priority
            )
        )

    # -- looking --------------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """Returns the numbers of the queue: depth, group state, members, partitions."""
        return self._call(self._async.stats())

    def peek(self, limit: int = 10) -> list[Record[bytes | None, bytes | None]]:
        """Returns the first records that are not done, without taking them.

        They are read from the log, so some may be with workers, and later ones may be done.
        """
        return self._call(self._async.peek(limit))

    def drain(self, *, idle_s: float = 2.0) -> int:
        """Takes all jobs and marks them as done. Returns their number.

        Ends when no job came for `idle_s` seconds. Jobs that other workers have are not drained.
        """
        return self._call(self._async.drain(idle_s=idle_s))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._life.call(coroutine)
