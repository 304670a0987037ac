"""Consume, transform, produce, exactly once: output and positions are committed together.

    read records -> begin -> handler(records) -> send what it returns -> send positions -> commit

Output and positions are part of one transaction, so either both count or neither does. Failures:

    the transaction was aborted     by its timeout, an undelivered record, or a lost coordinator:
                                    the consumer goes back to the committed offsets and reads again
    the group has rebalanced        the same; partitions that moved are read by their new owners
    the handler fails               the transaction is aborted, the consumer goes back, and the
                                    error is raised to the caller
    another producer has taken      `Fenced` ends the loop: that producer's instance continues
    over the transactional id
    it is unknown whether the       `DeadlineExceeded` ends the loop: start again with a new
    transaction was committed       producer and a new consumer, which will find out
    the process dies                the next instance continues: its producer aborts the open
                                    transaction, its consumer starts at the committed offsets

The positions are committed with the group membership that the consumer had when it read the records
(`membership`).

`Sink` is where the output is sent: an async producer on the same event loop here, a sync producer
in `blocking`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.client.errors import (
    BrokerError,
    ClientError,
    DeadlineExceeded,
    Fenced,
    OptionError,
    TransactionAborted,
)
from penstock.client.interceptors import ProducerRecord
from penstock.client.membership.steps import Identity
from penstock.client.model import OffsetAndMetadata, Record
from penstock.client.processing.contracts import RunSummary, TransactionalConsumer
from penstock.client.producing.producer import Producer
from penstock.client.producing.transactions import GroupOf
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

K = TypeVar("K")
V = TypeVar("V")

Transform = Callable[
    [list[Record[K, V]]],
    Iterable[ProducerRecord[Any, Any]] | Awaitable[Iterable[ProducerRecord[Any, Any]]],
]
"""Returns the records to send for the records read. It is called with them again if the transaction
was aborted."""

_POLL_MS: Final = 200
"""The longest time until `stop` is noticed while there is nothing to read."""

_MOVED_ON: Final = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class InTransaction(Protocol):
    """An open transaction."""

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf
    ) -> None: ...


class Sink(Protocol):
    """What the loop needs from a producer."""

    @property
    def transactional_id(self) -> str | None: ...

    def transaction(self) -> AbstractAsyncContextManager[InTransaction]: ...

    async def send_all(self, records: Iterable[ProducerRecord[Any, Any]]) -> None: ...


class _OwnLoop:
    """Adapts an async producer to `Sink`."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self._producer = producer
        self.transactional_id = producer.options.transactional_id
        self.transaction = producer.transaction

    async def send_all(self, records: Iterable[ProducerRecord[Any, Any]]) -> None:
        for each in records:
            await self._producer.send(
                each.topic,
                each.value,
                key=each.key,
                headers=each.headers,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
            )


async def exactly_once(
    consumer: TransactionalConsumer[K, V],
    producer: Producer[Any, Any],
    handler: Transform[K, V],
    *,
    max_records: int | None = None,
    retries: int = 10,
    stop: asyncio.Event | None = None,
) -> RunSummary:
    """Reads records, sends what `handler` makes of them, and commits both together.

    Runs until `stop` is set. One transaction covers at most `max_records` records (default:
    `max_poll_records`). An aborted transaction is repeated up to `retries` times before its error
    is raised. The consumer needs a `group_id`, `isolation_level="read_committed"` and
    `enable_auto_commit=False`. The producer needs a `transactional_id`, a different one for each
    instance that runs at the same time. Raises `OptionError` if one of these is missing, `Fenced`
    if another producer has taken over, and what the handler raises. The handler may be async.

    Example:
        from penstock.interceptors import ProducerRecord

        stop = asyncio.Event()

        async def to_payments(records):
            stop.set()
            return [ProducerRecord("payments", each.value, each.key) for each in records]

        async with aio.Consumer(
            "localhost:9092",
            topics="orders",
            group_id="billing",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
        ) as consumer:
            async with aio.Producer("localhost:9092", transactional_id="billing-1") as producer:
                summary = await aio.exactly_once(consumer, producer, to_payments, stop=stop)
        print(summary.processed)
        #> 3
    """
    sink = _OwnLoop(producer)
    return await exactly_once_into(sink, consumer, handler, max_records, retries, stop)


async def exactly_once_into(
    sink: Sink,
    consumer: TransactionalConsumer[K, V],
    handler: Transform[K, V],
    max_records: int | None,
    retries: int,
    stop: asyncio.Event | None,
) -> RunSummary:
    _require(consumer, sink)
    return await _Loop(consumer, sink, handler, max_records, retries).run(stop)


def _require(consumer: TransactionalConsumer[Any, Any], sink: Sink) -> None:
    options = consumer.options
    if options.group_id is None:
        raise OptionError("exactly_once needs a consumer group: give the consumer a group_id")
    if options.enable_auto_commit:
        raise OptionError(
            "exactly_once commits offsets only in transactions: give the consumer "
            "enable_auto_commit=False"
        )
    if not options.isolation_level:
        raise OptionError(
            "exactly_once must not read records of aborted transactions: give the consumer "
            'isolation_level="read_committed"'
        )
    if sink.transactional_id is None:
        raise OptionError("exactly_once needs transactions: give the producer a transactional_id")


class _Signed:
    """The membership of a consumer at the time when it had read the records."""

    def __init__(self, membership: tuple[str, Identity]) -> None:
        self.membership = membership


class _Loop(Generic[K, V]):
    def __init__(
        self,
        consumer: TransactionalConsumer[K, V],
        sink: Sink,
        handler: Transform[K, V],
        max_records: int | None,
        retries: int,
    ) -> None:
        self._consumer = consumer
        self._sink = sink
        self._handler = handler
        self._max_records = max_records
        self._retries = retries
        self._processed = 0
        self._retried = 0
        self._committed: dict[TopicPartition, int] = {}

    async def run(self, stop: asyncio.Event | None) -> RunSummary:
        options = self._consumer.options
        first_pause_s = options.retry_backoff_ms / 1000
        failures, pause_s = 0, first_pause_s
        while stop is None or not stop.is_set():
            records = await self._consumer.poll(_POLL_MS, self._max_records)
            if not records:
                continue
            try:
                done = await self._copy(records)
            except TransactionAborted:
                failures += 1
                if failures > self._retries:
                    raise
                self._retried += 1
                await self._consumer.env.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, options.retry_backoff_max_ms / 1000)
            else:
                if done:
                    failures, pause_s = 0, first_pause_s
        return RunSummary(
            processed=self._processed, retried=self._retried, committed=dict(self._committed)
        )

    async def _copy(self, records: list[Record[K, V]]) -> bool:
        """Runs one transaction.

        Returns False if the group has rebalanced, and these records may belong to other members
        now.
        """
        # Nothing is awaited between the poll and here, so membership and positions match the
        # records.
        signed = _Signed(self._consumer.membership)
        positions = self._consumer.positions()
        try:
            await self._transact(records, positions, signed)
        except Exception as error:
            moved_on = isinstance(error, BrokerError) and error.code in _MOVED_ON
            if moved_on or isinstance(error, TransactionAborted):
                await self._go_back(records)
            elif not isinstance(error, Fenced | DeadlineExceeded):
                await self._try_to_go_back(records, error)
            if moved_on:
                self._retried += 1
                return False
            raise
        self._processed += len(records)
        self._committed |= {
            topic_partition: at.offset for topic_partition, at in _of(records, positions).items()
        }
        return True

    async def _transact(
        self,
        records: list[Record[K, V]],
        positions: dict[TopicPartition, OffsetAndMetadata],
        signed: _Signed,
    ) -> None:
        async with self._sink.transaction() as transaction:
            made = self._handler(records)
            await self._sink.send_all(await made if inspect.isawaitable(made) else made)
            await transaction.send_offsets(_of(records, positions), signed)

    async def _try_to_go_back(self, records: Sequence[Record[K, V]], error: Exception) -> None:
        """Moves the positions back, in case the caller continues with the consumer after the
        error."""
        try:
            await self._go_back(records)
        except ClientError as failure:
            error.add_note(f"The consumer's positions could not be moved back: {failure}")

    async def _go_back(self, records: Sequence[Record[K, V]]) -> None:
        """Moves the positions back to the committed offsets.

        A partition without a committed offset goes back to the first of these records, because it
        was the first record to be read.
        """
        consumer = self._consumer
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(record.topic_partition, record.offset)
        committed = await consumer.committed(*firsts)
        assigned = consumer.assignment()
        for topic_partition, first in firsts.items():
            if topic_partition in assigned:
                at = committed.get(topic_partition)
                consumer.seek(topic_partition, first if at is None else at)


def _of(
    records: Sequence[Record[Any, Any]], positions: dict[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the positions after these records."""
    ends = {record.topic_partition: OffsetAndMetadata(record.offset + 1) for record in records}
    return {
        topic_partition: positions.get(topic_partition, end)
        for topic_partition, end in ends.items()
    }
