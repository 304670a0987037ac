"""Queues that several workers share: a topic and a share group each.

A *feed* takes jobs for a consumer, one ahead of it: kombu waits for all of its queues at once, and
so cannot wait for a single one. Every job that a feed or its consumer has is locked at the broker,
and the client extends the lock until the job is settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from penstock.celery.message_format import Message, as_redelivered
from penstock.celery.settings import Settings
from penstock.client.blocking.portal import Forks
from penstock.client.blocking.queue import Job, Queue
from penstock.client.errors import ClientError
from penstock.client.queue_options import PREFETCH_MAX

_TAKE_S: Final = 1.0
_JOIN_S: Final = 10.0
_ATTEMPTS_MAX: Final = 1
"""A job is released after its first delivery only. Later it is put again, as a new job: the broker
gives a job up after `share.delivery.count.limit` deliveries, and a task that a worker has given
back on purpose must not be lost."""
_log: Final = logging.getLogger("penstock.celery")


def new_queue(settings: Settings, topic: str, prefetch: int | None = None) -> Queue[bytes]:
    """Returns a client for a queue. Without prefetch it is for putting only."""
    options: dict[str, Any] = {
        "allow_auto_create_topics": False,
        **settings.client,
        **settings.queue,
    }
    if prefetch is not None:
        options["prefetch"] = max(1, prefetch)
    return Queue(list(settings.servers), topic, **options)


class Feed:
    """Takes jobs of a queue on a thread of its own, and offers one at a time."""

    def __init__(self, queue: Queue[bytes], prefetch: int, wake: Callable[[], object]) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._wake = wake
        self._offered: Job[bytes] | None = None
        self._error: Exception | None = None
        self._is_stopping = False
        self._forks = Forks.count
        self._changed = threading.Condition()
        self._limiting = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"penstock feed {queue.topic}", daemon=True
        )

    def start(self) -> None:
        self._queue.start()
        self._thread.start()

    def take(self) -> Job[bytes] | None:
        """Returns the job that was taken, or None. Raises the error that has ended the feed."""
        with self._changed:
            job, self._offered = self._offered, None
            if job is not None and job.is_lost:
                job = None  # Another worker gets it.
            if job is None and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return job

    def limit(self, prefetch: int) -> None:
        """Changes how many jobs are locked for this client. Several threads settle jobs."""
        with self._limiting:
            if prefetch != self._prefetch:
                self._prefetch = prefetch
                self._queue.set_prefetch(min(prefetch, PREFETCH_MAX))

    def stop(self) -> None:
        """Takes no more jobs, and gives back those that were not offered. Jobs that were taken can
        still be settled. In a child process it has no effect: the thread is the parent's."""
        if self._forks != Forks.count:
            return
        with self._changed:
            self._is_stopping = True
            job, self._offered = self._offered, None
            self._changed.notify_all()
        try:
            self._queue.stop_taking()
            if job is not None:
                job.retry(wait=False)
        except ClientError as error:
            _log.debug("cannot release jobs of %s: %s", self._queue.topic, error)

    def close(self) -> None:
        """Gives back what is not settled, and leaves the group."""
        self.stop()
        self._queue.close()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                job = self._queue.take(_TAKE_S)
                if job is not None:
                    self._offer(job)
        except Exception as error:  # noqa: BLE001 -- the worker would wait for ever
            if not isinstance(error, ClientError):
                _log.exception(
                    "taking jobs of queue %s failed because of a bug; its worker gets the error",
                    self._queue.topic,
                )
            with self._changed:
                self._error = error
        self._wake()

    def _offer(self, job: Job[bytes]) -> None:
        with self._changed:
            is_late = self._is_stopping
            if not is_late:
                self._offered = job
        if is_late:
            # The queue may stay open for long, and would extend the lock.
            with suppress(ClientError):
                job.retry(wait=False)
            return
        self._wake()
        with self._changed:
            self._changed.wait_for(lambda: self._offered is None or self._is_stopping)


class TaskDelivery:
    """A job that a consumer of kombu has."""

    def __init__(
        self, job: Job[bytes], message: Message, put: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._job = job
        self._message = message
        self._put = put

    def done(self) -> None:
        self._job.done(wait=False)

    def reject(self) -> None:
        self._job.reject(wait=False)

    def give_back(self) -> None:
        """Has it delivered again. It may be delivered twice, if this client dies or loses the lock
        after it has put a copy."""
        if self._job.is_lost:
            return  # It is delivered again anyway.
        if self._job.attempt <= _ATTEMPTS_MAX:
            self._job.retry(wait=False)
            return
        try:
            self._put(as_redelivered(self._message))
        except BaseException:
            # Nobody else can settle it, and the client would extend its lock.
            with suppress(ClientError):
                self._job.retry(wait=False)
            raise
        self._job.done(wait=False)
