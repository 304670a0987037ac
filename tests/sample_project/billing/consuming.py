"""Orders out: loops, runs, listeners, offsets in a database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from billing.orders import ORDER, Order
from penstock import (
    CommitFailed,
    Consumer,
    Fenced,
    OffsetAndMetadata,
    OffsetStore,
    Record,
    RunSummary,
    SqlOffsets,
    TopicPartition,
    aio,
    errors,
    serializers,
)
from penstock.interceptors import ConsumerInterceptor
from penstock.tracing import ConsumerTracing, processing

OrderRecord = Record[str | None, Order | None]


class Count(ConsumerInterceptor):
    def __init__(self) -> None:
        self.records = 0

    def on_consume(self, records: list[Record[Any, Any]]) -> list[Record[Any, Any]]:
        self.records += len(records)
        return records


class Listener:
    def on_assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        print("mine:", sorted(topic_partitions))

    async def on_revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        print("no longer mine:", sorted(topic_partitions))


class FixedStore:
    """Any object with `load` is a store."""

    def load(self, topic_partitions: object) -> Mapping[TopicPartition, int]:
        return {}


def total(bootstrap: str) -> int:
    cents = 0
    with Consumer(
        bootstrap,
        topics=["orders"],
        group_id="billing",
        key_deserializer=serializers.string,
        value_deserializer=ORDER,
        auto_offset_reset="earliest",
        listener=Listener(),
        interceptors=[Count(), ConsumerTracing()],
    ) as consumer:
        assert_type(consumer, Consumer[str | None, Order | None])
        for record in consumer:
            assert_type(record, OrderRecord)
            with processing(record):
                cents += record.value.cents if record.value is not None else 0
            if record.offset > 1_000:
                break
        topic_partition = TopicPartition("orders", 0)
        try:
            consumer.commit({topic_partition: OffsetAndMetadata(1_001, "the thousandth")})
        except (CommitFailed, Fenced) as refused:
            print(refused)
        with consumer.at_least_once(idle_timeout_ms=1_000) as records:
            for record in records:
                cents += record.value.cents if record.value is not None else 0
    return cents


def lossy(bootstrap: str) -> list[bytes | None]:
    with Consumer(bootstrap, topics="orders", group_id="lossy") as consumer:
        assert_type(consumer, Consumer[bytes | None, bytes | None])
        with consumer.at_most_once(max_records=10, idle_timeout_ms=100) as records:
            return [record.value for record in records]


def work(bootstrap: str, stop: threading.Event) -> RunSummary:
    def handle(record: Record[bytes | None, Order | None]) -> None:
        print(record.topic_partition, record.header("stamped"), record.value)

    with Consumer(
        bootstrap, topics=["orders"], group_id="work", value_deserializer=ORDER
    ) as consumer:
        return consumer.run(
            handle, ordering="key", concurrency=8, dead_letter_topic="orders.dead", stop=stop
        )


async def work_async(bootstrap: str, stop: asyncio.Event) -> RunSummary:
    async def handle(record: Record[bytes | None, bytes | None]) -> None:
        await asyncio.sleep(0.01)

    async with aio.Consumer(bootstrap, topics=["orders"], group_id="work") as consumer:
        async for record in consumer:
            assert_type(record.value, bytes | None)
            break
        return await consumer.run(handle, concurrency=100, ordering="none", stop=stop)


def exactly_once(bootstrap: str, database: sqlite3.Connection, store: OffsetStore) -> None:
    offsets = SqlOffsets(database, "billing")
    stores: list[OffsetStore] = [offsets, FixedStore(), store]
    with Consumer(bootstrap, topics=["orders"], offset_store=stores[0]) as consumer:
        while records := consumer.poll(1_000):
            with database:
                offsets.save(records)


def explain(error: errors.ClientError) -> str:
    match error:
        case errors.TopicNotFound():
            return f"no topic {error.topic}"
        case errors.BrokerError():
            return error.code.name
        case errors.DeserializationFailed():
            return f"cannot read offset {error.offset} of {error.topic_partition}"
        case errors.DeadlineExceeded() | errors.DeliveryTimedOut():
            return f"late: {error.last}"
        case errors.AuthenticationFailed() | errors.TlsFailed():
            return f"not let in by {error.address}"
        case errors.ConnectFailed():
            return f"nobody at {error.address}"
        case errors.BufferExhausted() | errors.ConnectionLost() | errors.RequestTimedOut():
            return "try again"
        case errors.TransactionAborted():
            return "do it all again"
        case errors.OutsideLog():
            return f"the log goes from {error.log_start} to {error.log_end}"
        case errors.CommitFailed() | errors.Fenced():
            return "somebody else has it"
        case errors.ApiNotServed() | errors.NotKafka() | errors.OptionError():
            return "check the configuration"
        case errors.RecordTooLarge() | errors.SerializationFailed() | errors.RoutingError():
            return "check the record"
        case errors.Closed() | errors.NoOffset() | errors.UnknownTopicYet():
            return "check the program"
    unknown = errors.ErrorCode.UNKNOWN_SERVER_ERROR
    return unknown.name
