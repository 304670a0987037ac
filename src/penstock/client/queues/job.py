"""A job: one delivery of a record of a queue, to be settled by the worker that has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic

from penstock.client.consuming.record_decoder import DeserializationFailed
from penstock.client.errors import ClientError
from penstock.client.model import Headers, Record, V
from penstock.client.sharing.acknowledgements import AckType
from penstock.client.sharing.leases import Lease, LeaseState
from penstock.client.sharing.share_consumer import ShareConsumer

if TYPE_CHECKING:
    from penstock.client.queues.replies import Replies

_log: Final = logging.getLogger("penstock.client")


class Job(Generic[V]):
    """One delivery of a record. Settle it with `done`, `retry` or `reject`, exactly once.

    A job that is not settled is delivered again: when the queue is closed, when its lock ends, or
    when this process dies. `Queue` returns jobs; programs do not make them.

    Example:
        async with aio.Queue("localhost:9092", "jobs") as queue:
            await queue.put(b"resize cat.png")
            job = await queue.take()
            print(job.value, job.attempt)
            await job.done()
        #> b'resize cat.png' 1
    """

    def __init__(
        self,
        consumer: ShareConsumer,
        lease: Lease,
        deserialize: Callable[[bytes], V] | None,
        replies: Replies,
    ) -> None:
        self._consumer = consumer
        self._lease = lease
        self._deserialize = deserialize
        self._replies = replies
        self._value: Any = _UNREAD

    # -- the record -----------------------------------------------------------------------------

    @property
    def value(self) -> V | None:
        """The value. Raises `DeserializationFailed` if the serializer cannot read it."""
        if self._value is _UNREAD:
            data = self._lease.found.row[3]
            if data is None or self._deserialize is None:
                self._value = data
            else:
                try:
                    self._value = self._deserialize(data)
                except Exception as error:
                    raise DeserializationFailed(self.record, "value", error) from error
        value: V | None = self._value
        return value

    @property
    def key(self) -> bytes | None:
        """The key, in bytes."""
        return self._lease.found.row[2]

    @property
    def headers(self) -> Headers:
        """Names and values of the headers, in the order in which they were sent."""
        return self._lease.found.row[4]

    def header(self, name: str) -> bytes | None:
        """Returns the last value of the header with this name, or None."""
        return self.record.header(name)

    @property
    def attempt(self) -> int:
        """How often the job was delivered, this delivery included."""
        return self._lease.found.deliveries

    @property
    def topic(self) -> str:
        """The topic of the queue."""
        return self._lease.topic_partition.topic

    @property
    def partition(self) -> int:
        """The partition that the record is in."""
        return self._lease.topic_partition.partition

    @property
    def offset(self) -> int:
        """The offset of the record in its partition."""
        return self._lease.offset

    @property
    def timestamp(self) -> int:
        """When the job was put: milliseconds since 1970."""
        return self._lease.found.row[1]

    @property
    def record(self) -> Record[bytes | None, bytes | None]:
        """The record, in bytes."""
        topic, partition = self._lease.topic_partition
        found = self._lease.found
        return Record(topic, partition, *found.row, found.timestamp_type)

    # -- its state ------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether `done`, `retry` or `reject` was called."""
        return self._lease.state in (LeaseState.SETTLING, LeaseState.SETTLED)

    @property
    def is_lost(self) -> bool:
        """Whether the lock is known to be lost: another worker may have the job."""
        return self._lease.state is LeaseState.LOST

    # -- settling -------------------------------------------------------------------------------

    async def done(self, *, wait: bool = True) -> None:
        """Marks the job as done: it is not delivered again.

        Returns when the broker has stored that. Without `wait` it returns at once, and a failure is
        only logged. Raises `LockLost` if another worker may have the job.
        """
        await self._settle(AckType.ACCEPT, wait=wait)

    async def retry(self, *, wait: bool = True) -> None:
        """Gives the job back: it is delivered again, to any worker.

        At once, or after the back-off that the group has (`penstock.share.redelivery.backoff.ms`).
        A job that was delivered `share.delivery.count.limit` times is given up instead.
        """
        await self._settle(AckType.RELEASE, wait=wait)

    async def reject(self, *, wait: bool = True) -> None:
        """Gives the job up: it is not delivered again, and becomes a dead letter if the group has a
        topic for them."""
        await self._settle(AckType.REJECT, wait=wait)

    async def extend(self) -> None:
        """Extends the lock: from now on, it lasts as long as the group's locks do.

        Needed only for long jobs if the option `lock_extend` is off.
        """
        outcome = _Outcome()
        self._consumer.renew(self._lease, outcome.set)
        await outcome.wait()

    async def reply(self, value: Any) -> None:
        """Sends a reply to the client that asked, and waits until it is stored.

        Call it before `done`. Raises `ClientError` if nobody waits for a reply to this job.
        """
        await self._replies.send(self.record, value)

    @property
    def wants_reply(self) -> bool:
        """Whether it was sent with `ask`, so that a client waits for a reply."""
        return self._replies.wants_reply(self.record)

    async def _settle(self, kind: AckType, *, wait: bool) -> None:
        if wait:
            outcome = _Outcome()
            self._consumer.settle(self._lease, kind, outcome.set)
            await outcome.wait()
        else:
            self._consumer.settle(self._lease, kind, self._log_failure)

    def _log_failure(self, error: ClientError | None) -> None:
        if error is not None:
            _log.warning("offset %d of %s: %s", self.offset, self._lease.topic_partition, error)

    def __repr__(self) -> str:
        place = f"offset {self.offset} of {self._lease.topic_partition}"
        return f"<Job: {place}, attempt {self.attempt}, {self._lease.state.name.lower()}>"


_UNREAD: Final = object()


class _Outcome:
    """The outcome of an acknowledgement, for one caller that waits for it."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self, error: ClientError | None) -> None:
        if self._future.done():
            return  # The caller was cancelled.
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)

    async def wait(self) -> None:
        await self._future
