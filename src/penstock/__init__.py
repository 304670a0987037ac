"""Penstock: a distributed message log that speaks the Kafka protocol.

    from penstock import Consumer, Producer, Queue

    with Producer("localhost:9092") as producer:
        producer.send("orders", b"42", key=b"alice").result()

    with Consumer("localhost:9092", topics=["orders"], auto_offset_reset="earliest") as consumer:
        for record in consumer:
            print(record.key, record.value)

    with Queue("localhost:9092", "jobs") as queue:
        queue.put(b"resize cat.png")
        for job in queue:
            print(job.value)
            job.done()

`penstock.aio` has the same clients for asyncio. `penstock.serializers` convert values to bytes and
back, `penstock.routers` choose partitions, `penstock.interceptors` and `penstock.tracing` observe
records, `penstock.errors` has all errors, and `penstock.testing` starts a real broker for tests.

Names are loaded on first use, so that a broker starts without loading the clients.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # Type checkers know the name; importing `typing` costs too much.
if TYPE_CHECKING:
    from typing import Any

    from penstock.client.admin.operations import NewTopic
    from penstock.client.blocking.admin import Admin
    from penstock.client.blocking.consumer import Consumer
    from penstock.client.blocking.exactly_once import exactly_once
    from penstock.client.blocking.producer import Producer
    from penstock.client.blocking.queue import Job, Queue
    from penstock.client.errors import (
        BrokerError,
        BufferExhausted,
        ClientError,
        CommitFailed,
        Fenced,
    )
    from penstock.client.model import OffsetAndMetadata, Record, RecordMetadata
    from penstock.client.processing.contracts import RunSummary
    from penstock.client.processing.stores import OffsetStore, SqlOffsets
    from penstock.client.producing.deliveries import Delivery
    from penstock.topic_partition import TopicPartition

_HOMES = {
    "Admin": "penstock.client.blocking.admin",
    "BrokerError": "penstock.client.errors",
    "BufferExhausted": "penstock.client.errors",
    "ClientError": "penstock.client.errors",
    "CommitFailed": "penstock.client.errors",
    "Consumer": "penstock.client.blocking.consumer",
    "Delivery": "penstock.client.producing.deliveries",
    "Fenced": "penstock.client.errors",
    "Job": "penstock.client.blocking.queue",
    "NewTopic": "penstock.client.admin.operations",
    "OffsetAndMetadata": "penstock.client.model",
    "OffsetStore": "penstock.client.processing.stores",
    "Producer": "penstock.client.blocking.producer",
    "Queue": "penstock.client.blocking.queue",
    "Record": "penstock.client.model",
    "RecordMetadata": "penstock.client.model",
    "RunSummary": "penstock.client.processing.contracts",
    "SqlOffsets": "penstock.client.processing.stores",
    "TopicPartition": "penstock.topic_partition",
    "exactly_once": "penstock.client.blocking.exactly_once",
}
_ROOMS = {
    "aio": "penstock.aio",
    "errors": "penstock.errors",
    "interceptors": "penstock.interceptors",
    "routers": "penstock.routers",
    "serializers": "penstock.serializers",
    "testing": "penstock.testing",
    "tracing": "penstock.tracing",
}

__all__ = [
    "Admin",
    "BrokerError",
    "BufferExhausted",
    "ClientError",
    "CommitFailed",
    "Consumer",
    "Delivery",
    "Fenced",
    "Job",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetStore",
    "Producer",
    "Queue",
    "Record",
    "RecordMetadata",
    "RunSummary",
    "SqlOffsets",
    "TopicPartition",
    "exactly_once",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
