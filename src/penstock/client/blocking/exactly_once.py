"""The sync version of `penstock.client.processing.exactly_once`.

The async loop runs on the consumer's thread. The handler is called on the thread that waits. The
producer has another event loop; it is called from a worker thread, once for all records of a
transaction and not once per record.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar

from penstock.client.blocking.caller_callbacks import wrapped
from penstock.client.blocking.consumer import Consumer
from penstock.client.blocking.producer import Producer
from penstock.client.blocking.transactions import Transaction
from penstock.client.interceptors import ProducerRecord
from penstock.client.model import OffsetAndMetadata, Record
from penstock.client.processing.contracts import RunSummary
from penstock.client.processing.exactly_once import InTransaction, exactly_once_into
from penstock.client.producing.transactions import GroupOf
from penstock.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Transform = Callable[[list[Record[K, V]]], Iterable[ProducerRecord[Any, Any]]]


def exactly_once(
    consumer: Consumer[K, V],
    producer: Producer[Any, Any],
    handler: Transform[K, V],
    *,
    max_records: int | None = None,
    retries: int = 10,
    stop: threading.Event | None = None,
) -> RunSummary:
    """Reads records, sends what `handler` makes of them, and commits both together.

    Runs until `stop` is set. One transaction covers at most `max_records` records (default:
    `max_poll_records`). An aborted transaction is repeated up to `retries` times before its error
    is raised. The consumer needs a `group_id`, `isolation_level="read_committed"` and
    `enable_auto_commit=False`. The producer needs a `transactional_id`, a different one for each
    instance that runs at the same time. Raises `OptionError` if one of these is missing, `Fenced`
    if another producer has taken over, and what the handler raises.

    Example:
        from penstock.interceptors import ProducerRecord

        stop = threading.Event()

        def to_payments(records):
            stop.set()
            return [ProducerRecord("payments", each.value, each.key) for each in records]

        with Consumer(
            "localhost:9092",
            topics="orders",
            group_id="billing",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
        ) as consumer:
            with Producer("localhost:9092", transactional_id="billing-1") as producer:
                summary = exactly_once(consumer, producer, to_payments, stop=stop)
        print(summary.processed)
        #> 3
    """

    def transform(records: list[Record[K, V]]) -> list[ProducerRecord[Any, Any]]:
        return list(handler(records))

    return consumer._thread.until(
        stop,
        lambda stopping: exactly_once_into(
            _Sink(producer),
            consumer._async,
            wrapped(consumer._on_caller, transform),
            max_records,
            retries,
            stopping,
        ),
    )


class _Sink:
    """Lets an async loop use a sync producer, which has its own event loop."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self._producer = producer
        self.transactional_id = producer.options.transactional_id

    def transaction(self) -> AbstractAsyncContextManager[InTransaction]:
        return _Transaction(self._producer.transaction())

    async def send_all(self, records: Iterable[ProducerRecord[Any, Any]]) -> None:
        await _beside(lambda: self._send(records))

    def _send(self, records: Iterable[ProducerRecord[Any, Any]]) -> None:
        for each in records:
            self._producer.send(
                each.topic,
                each.value,
                key=each.key,
                headers=each.headers,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
            )


class _Transaction:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> InTransaction:
        await _beside(self._transaction.__enter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _beside(lambda: self._transaction.__exit__(kind, error, traceback))

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupOf
    ) -> None:
        await _beside(lambda: self._transaction.send_offsets(offsets, group))


async def _beside(work: Callable[[], T]) -> T:
    """Runs `work` on another thread.

    If cancelled, it still waits for the thread: what the thread sends belongs to this transaction,
    and must not be sent after the transaction's end.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
