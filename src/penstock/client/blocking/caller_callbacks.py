"""Calls the user's objects on the thread that waits instead of the event loop's thread.

A plain method runs there. If a method returns a coroutine, it is awaited on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from penstock.client.blocking.caller_executor import CallerExecutor
from penstock.client.membership.listener import Listener
from penstock.client.model import RecordMetadata
from penstock.client.processing.stores import OffsetStore
from penstock.topic_partition import TopicPartition


async def on_caller(executor: CallerExecutor, function: Callable[..., Any], *args: Any) -> Any:
    result = await asyncio.get_running_loop().run_in_executor(executor, function, *args)
    return await result if inspect.isawaitable(result) else result


def wrapped(
    executor: CallerExecutor, function: Callable[..., Any]
) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any) -> Any:
        return await on_caller(executor, function, *args)

    return call


def listener_on_caller(executor: CallerExecutor, listener: object | None) -> Listener | None:
    if listener is None:
        return None
    given = Listener.of(listener)
    return Listener(
        *(
            None if callback is None else wrapped(executor, callback)
            for callback in (given.on_assigned, given.on_revoked, given.on_lost)
        )
    )


class StoreOnCaller:
    def __init__(self, executor: CallerExecutor, store: OffsetStore) -> None:
        self._executor = executor
        self._store = store

    async def load(
        self, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        found: Mapping[TopicPartition, int] = await on_caller(
            self._executor, self._store.load, topic_partitions
        )
        return found


class SyncProducer:
    """Lets an async loop use a sync producer, which has its own event loop."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Awaitable[RecordMetadata]:
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[RecordMetadata] = loop.create_future()

        def settle(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if delivered.done():
                return
            if error is not None:
                delivered.set_exception(error)
            elif metadata is not None:
                delivered.set_result(metadata)

        def on_delivery(metadata: RecordMetadata | None, error: Exception | None) -> None:
            loop.call_soon_threadsafe(settle, metadata, error)

        def send() -> None:
            self._producer.send(topic, value, key=key, headers=headers, on_delivery=on_delivery)

        await asyncio.to_thread(send)
        return delivered
