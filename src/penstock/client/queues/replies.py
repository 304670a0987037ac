"""Requests with replies: a client asks, one worker answers.

Replies are records of the topic `penstock.replies`. A client that asks reads one partition of it as
a log, from its end at that time. Each request names the partition and a correlation id in its
headers. A worker sends its reply there before it settles the job. If it dies in between, another
worker replies again, and the client ignores the second reply.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from penstock.client.admin.operations import NewTopic, create_topic
from penstock.client.cluster import Cluster
from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError, ClientError, Closed, RequestTimedOut, TopicNotFound
from penstock.client.model import Headers, Record
from penstock.client.queue_options import QueueOptions
from penstock.client.queues.job_headers import CORRELATION_ID, REPLY_PARTITION
from penstock.client.queues.job_sender import JobSender
from penstock.client.serializers import deserialize_with
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

TOPIC: Final = "penstock.replies"
RETENTION_MS: Final = 3_600_000
"""Replies that nobody reads are deleted after an hour."""
PARTITIONS: Final = 8
_DIGITS_MAX: Final = 9
_POLL_MS: Final = 10_000
_log: Final = logging.getLogger("penstock.client")


class Replies:
    """The replies of one client: those that it waits for, and those that it sends."""

    def __init__(
        self,
        cluster: Cluster,
        options: QueueOptions,
        env: ClientEnv,
        sender: JobSender,
        serializer: Any,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._env = env
        self._sender = sender
        self._deserialize = deserialize_with(serializer)
        self._waiting: dict[bytes, asyncio.Future[Any]] = {}
        self._consumer: Consumer[bytes | None, bytes | None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._partition = -1
        self._starting = asyncio.Lock()
        self.ignored = 0
        """Replies that nobody waits for: for other clients, late ones, and second ones."""

    # -- workers --------------------------------------------------------------------------------

    @staticmethod
    def wants_reply(record: Record[Any, Any]) -> bool:
        return _partition_of(record) is not None

    async def send(self, record: Record[Any, Any], value: Any) -> None:
        """Sends the reply to a job."""
        partition, correlation_id = _partition_of(record), record.header(CORRELATION_ID)
        if partition is None or correlation_id is None:
            raise ClientError(
                "no client is waiting for a reply to this job: it was sent with put(), not with "
                "ask()"
            )
        producer = await self._sender.producer()
        headers = ((CORRELATION_ID, correlation_id),)
        await (await producer.send(TOPIC, value, headers=headers, partition=partition))

    # -- clients that ask -----------------------------------------------------------------------

    async def expect(self) -> tuple[Headers, asyncio.Future[Any]]:
        """Returns the headers of a request, and the future of its reply."""
        await self._start()
        correlation_id = self._env.random.bytes(16).hex().encode()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        headers = (
            (REPLY_PARTITION, str(self._partition).encode()),
            (CORRELATION_ID, correlation_id),
        )
        return headers, future

    @staticmethod
    async def wait(future: asyncio.Future[Any], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimedOut(
                f"no reply within {timeout_s:g} s: the job is still in the queue, or a worker has "
                "it"
            ) from None
        finally:
            future.cancel()

    async def close(self) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                # Not cancelled: nobody has cancelled the task that waits.
                future.set_exception(Closed("the queue was closed before the reply came"))
                future.exception()  # The task may be about to fail for another reason.
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._reading])
        if self._consumer is not None:
            await self._consumer.close()

    async def _start(self) -> None:
        """Begins to read at the end of a partition, before the first request is sent."""
        async with self._starting:
            if self._consumer is not None:
                return
            count = await self._partitions()
            self._partition = self._env.random.below(count)
            consumer: Consumer[bytes | None, bytes | None] = Consumer(
                self._options.servers(),
                env=self._env,
                auto_offset_reset="latest",
                **self._options.common(),
            )
            await consumer.start()
            here = TopicPartition(TOPIC, self._partition)
            consumer.assign([here])
            try:
                await consumer.position(here)
            except BaseException:
                await consumer.close()
                raise
            self._consumer = consumer
            self._reading = asyncio.create_task(self._read(consumer), name="penstock replies")

    async def _partitions(self) -> int:
        """Returns the number of partitions. Creates the topic if it does not exist."""
        try:
            return await self._cluster.partitions(TOPIC)
        except TopicNotFound:
            configs = {"retention.ms": str(RETENTION_MS), "cleanup.policy": "delete"}
        try:
            await create_topic(self._cluster, NewTopic(TOPIC, PARTITIONS, configs=configs))
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise ClientError(
                    f"ask() needs the topic {TOPIC}, and this client cannot create it: {error}"
                ) from error

        async def attempt(fresh: bool) -> int:
            # A new topic takes a moment to appear on every broker.
            try:
                return await self._cluster.partitions(TOPIC)
            except TopicNotFound as error:
                raise BrokerError(error.code, subject=TOPIC) from error

        return await self._cluster.retry(f"topic {TOPIC}", attempt)

    async def _read(self, consumer: Consumer[bytes | None, bytes | None]) -> None:
        while True:
            try:
                records = await consumer.poll(_POLL_MS)
            except ClientError as error:
                _log.warning("cannot read replies, retrying: %s", error)
                await self._env.clock.sleep(self._options.retry_backoff_max_ms / 1000)
                continue
            for record in records:
                self._on_reply(record)

    def _on_reply(self, record: Record[bytes | None, bytes | None]) -> None:
        future = self._waiting.get(record.header(CORRELATION_ID) or b"")
        if future is None or future.done():
            self.ignored += 1
            return
        value: Any = record.value
        try:
            if value is not None and self._deserialize is not None:
                value = self._deserialize(value)
        except Exception as error:  # noqa: BLE001 -- a user's code may raise anything
            future.set_exception(ClientError(f"cannot deserialize the reply: {error}"))
        else:
            future.set_result(value)


def _partition_of(record: Record[Any, Any]) -> int | None:
    text = (record.header(REPLY_PARTITION) or b"").decode(errors="replace")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None
