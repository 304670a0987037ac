"""Consume, transform, produce, exactly once: what was read is committed with what was made of it.

    read records -> begin -> handler(records) -> send what it returns -> send positions -> commit

Output and positions are in one transaction, so either both count or neither. What may go wrong:

    the transaction was aborted     by its timeout, a record not delivered, a coordinator lost: the
                                    consumer goes back to what is committed and reads again
    the group has moved on          the same; partitions that others have now are theirs to read
    the handler fails               the transaction is aborted, the consumer goes back, and the
                                    error goes on to the caller
    another has the transactional   `Fenced` ends it: that one reads on
    id
    whether it was committed is     `DeadlineExceeded` ends it: start again with a new producer and
    not known                       a new consumer, which finds out
    the process dies                the next instance does: its producer aborts what was open, its
                                    consumer begins at what is committed

The positions are signed as the consumer signed when it had just read the records (`membership`).

`Sink` is where it sends to: a producer of the same loop here, a sync one in `blocking`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.client.consuming.consumer import Consumer
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
from penstock.client.model import OffsetAndMetadata, Record, TopicPartition
from penstock.client.processing.contracts import RunSummary
from penstock.client.producing.producer import Producer
from penstock.client.producing.transactions import GroupOf
from penstock.wire.errors import ErrorCode

K = TypeVar("K")
V = TypeVar("V")

Transform = Callable[
    [list[Record[K, V]]],
    Iterable[ProducerRecord[Any, Any]] | Awaitable[Iterable[ProducerRecord[Any, Any]]],
]
"""What to send for these records; called again with them when the transaction was aborted."""

_POLL_MS: Final = 200
"""How long it may take until `stop` is noticed while there is nothing to read."""

_MOVED_ON: Final = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class InTransaction(Protocol):
    """A transaction that goes on."""

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf
    ) -> None: ...


class Sink(Protocol):
    """A producer, as far as this goes."""

    @property
    def transactional_id(self) -> str | None: ...

    def transaction(self) -> AbstractAsyncContextManager[InTransaction]: ...

    async def send_all(self, records: Iterable[ProducerRecord[Any, Any]]) -> None: ...


class _OwnLoop:
    """An async producer as a sink."""

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
    consumer: Consumer[K, V],
    producer: Producer[Any, Any],
    handler: Transform[K, V],
    *,
    max_records: int | None = None,
    retries: int = 10,
    stop: asyncio.Event | None = None,
) -> RunSummary:
    """Read records, send what `handler` makes of them, and commit both together; until `stop`.

    One transaction has at most `max_records` (`max_poll_records`). One that is aborted is done
    again, `retries` times before its error is raised. The consumer needs a `group_id`,
    `isolation_level="read_committed"` and `enable_auto_commit=False`; the producer needs a
    `transactional_id`, another for each instance that runs at the same time."""
    sink = _OwnLoop(producer)
    return await exactly_once_into(sink, consumer, handler, max_records, retries, stop)


async def exactly_once_into(
    sink: Sink,
    consumer: Consumer[K, V],
    handler: Transform[K, V],
    max_records: int | None,
    retries: int,
    stop: asyncio.Event | None,
) -> RunSummary:
    _require(consumer, sink)
    return await _Loop(consumer, sink, handler, max_records, retries).run(stop)


def _require(consumer: Consumer[Any, Any], sink: Sink) -> None:
    options = consumer.options
    if options.group_id is None:
        raise OptionError("exactly_once commits positions for a group: give the consumer group_id")
    if options.enable_auto_commit:
        raise OptionError(
            "exactly_once commits positions in transactions, and nothing else may: give the "
            "consumer enable_auto_commit=False"
        )
    if not options.isolation_level:
        raise OptionError(
            "what is read uncommitted may never have been: give the consumer "
            'isolation_level="read_committed"'
        )
    if sink.transactional_id is None:
        raise OptionError("exactly_once sends in transactions: give the producer transactional_id")


class _Signed:
    """How a consumer signed when it had read the records."""

    def __init__(self, membership: tuple[str, Identity]) -> None:
        self.membership = membership


class _Loop(Generic[K, V]):
    def __init__(
        self,
        consumer: Consumer[K, V],
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
        """One transaction; False when the group has moved on, and these records may be others'."""
        # Nothing is awaited between the poll and this, so it is all of the same moment.
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
        self._committed |= {place: at.offset for place, at in _of(records, positions).items()}
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
        """For whoever goes on with the consumer after the error."""
        try:
            await self._go_back(records)
        except ClientError as failure:
            error.add_note(f"The consumer stands behind what it was given: {failure}")

    async def _go_back(self, records: Sequence[Record[K, V]]) -> None:
        """To what is committed; where nothing is, to the first of these, which came first then."""
        consumer = self._consumer
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(record.place, record.offset)
        committed = await consumer.committed(*firsts)
        assigned = consumer.assignment()
        for place, first in firsts.items():
            if place in assigned:
                at = committed.get(place)
                consumer.seek(place, first if at is None else at)


def _of(
    records: Sequence[Record[Any, Any]], positions: dict[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The positions behind these records."""
    ends = {record.place: OffsetAndMetadata(record.offset + 1) for record in records}
    return {place: positions.get(place, end) for place, end in ends.items()}
