"""Orders in: typed values, callbacks, routers, interceptors, tables."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, assert_type

from billing.orders import ORDER, Order
from penstock import (
    BufferExhausted,
    ClientError,
    Consumer,
    Delivery,
    Producer,
    Record,
    RecordMetadata,
    TopicPartition,
    aio,
    exactly_once,
    routers,
    serializers,
)
from penstock.interceptors import ProducerInterceptor, ProducerRecord
from penstock.tracing import ProducerTracing, context_of, links_of


class Stamp(ProducerInterceptor):
    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        record.headers = (*record.headers, ("stamped", b"yes"))
        return record


class ByLength(routers.Router):
    def route(
        self,
        topic: str,
        key: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        timestamp_ms: int,
        size: int,
        view: routers.PartitionView,
    ) -> int:
        if size < 0:
            raise routers.RoutingError("a record has no size")
        return size % view.count


def choose(name: str) -> routers.Router:
    known: dict[str, routers.Router] = {
        "default": routers.DefaultRouter(),
        "turns": routers.RoundRobinRouter(),
        "crc": routers.Crc32Router(),
        "ranges": routers.KeyRangeRouter([b"g", b"p"]),
        "regions": routers.GeographicRouter({"eu": [0, 1], "us": 2}, header="region"),
        "load": routers.LoadAwareRouter(),
        "hours": routers.TimeWindowRouter(3_600_000),
        "first": routers.CallableRouter(lambda topic, key, count: 0),
        "length": ByLength(),
    }
    return known[name]


def on_delivery(metadata: RecordMetadata | None, error: ClientError | None) -> None:
    if error is not None and not error.retriable:
        raise error
    if metadata is not None:
        assert_type(metadata.offset, int)


def send_all(bootstrap: str, orders: list[Order]) -> list[Delivery]:
    with Producer(
        bootstrap,
        key_serializer=serializers.string,
        value_serializer=ORDER,
        acks="all",
        linger_ms=5,
        compression_type="zstd",
        router=choose("default"),
        interceptors=[Stamp(), ProducerTracing()],
    ) as producer:
        assert_type(producer, Producer[str, Order])
        deliveries = []
        for order in orders:
            try:
                delivery = producer.send(
                    "orders", order, key=order.customer, on_delivery=on_delivery
                )
            except BufferExhausted:
                producer.flush(timeout_s=30)
                continue
            deliveries.append(delivery)
        producer.flush(timeout_s=30)
        skew: dict[str, routers.Distribution] = dict(producer.metrics().distribution)
        assert all(each.skew >= 1 for each in skew.values())
        return deliveries


def send_table(bootstrap: str, table: Any) -> int:
    with Producer(bootstrap) as producer:
        assert_type(producer, Producer[bytes | None, bytes | None])
        return producer.send_table("orders", table).result(timeout_s=60).records


async def send_async(bootstrap: str, order: Order) -> RecordMetadata:
    async with aio.Producer(bootstrap, value_serializer=ORDER) as producer:
        delivery: aio.Delivery = await producer.send("orders", order, headers=[("v", b"1")])
        return await delivery


def send_together(bootstrap: str, orders: list[Order]) -> None:
    with (
        Producer(bootstrap, value_serializer=ORDER, transactional_id="billing-1") as producer,
        producer.transaction() as transaction,
    ):
        for order in orders:
            producer.send("orders", order)
        transaction.send_offsets({TopicPartition("carts", 0): 7}, "billing")


async def copy(bootstrap: str, stop: asyncio.Event) -> int:
    def bill(
        records: list[Record[bytes | None, Order | None]],
    ) -> list[ProducerRecord[bytes | None, Order | None]]:
        return [ProducerRecord("bills", record.value, record.key) for record in records]

    async with (
        aio.Producer(bootstrap, value_serializer=ORDER, transactional_id="billing-2") as producer,
        aio.Consumer(
            bootstrap,
            topics="orders",
            group_id="billing",
            enable_auto_commit=False,
            isolation_level="read_committed",
            value_deserializer=ORDER,
        ) as consumer,
    ):
        summary = await aio.exactly_once(consumer, producer, bill, stop=stop)
        return assert_type(summary.processed, int)


def copy_some(bootstrap: str, stop: threading.Event) -> int:
    with (
        Producer(bootstrap, value_serializer=ORDER, transactional_id="billing-3") as producer,
        Consumer(
            bootstrap,
            topics="orders",
            group_id="billing",
            enable_auto_commit=False,
            isolation_level="read_committed",
            value_deserializer=ORDER,
        ) as consumer,
    ):
        summary = exactly_once(
            consumer,
            producer,
            lambda records: [
                ProducerRecord("bills", record.value, record.key) for record in records
            ],
            stop=stop,
        )
        return assert_type(summary.processed, int)


def traces(record: Any) -> tuple[object, object]:
    return context_of(record), links_of(record)
