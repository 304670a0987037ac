"""Reads the topics of deployed pipelines: follows them, or reads a range.

The follower reads with read_committed, so a change that was not committed is never seen. Its
position can be waited for. A wait for the high watermark also waits for the transactions that are
open at that moment, so it sees every change that was committed before the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final

from penstock.client.consumer import Consumer
from penstock.client.errors import ClientError
from penstock.client.model import Record
from penstock.ports import Clock
from penstock.spark.deployments import topics
from penstock.spark.deployments.catalog_errors import LOOKING, is_refusal, refusal
from penstock.spark.deployments.catalog_view import CatalogView
from penstock.spark.pipelines.errors import PipelineError
from penstock.topic_partition import TopicPartition

RawConsumer = Consumer[bytes | None, bytes | None]
RawRecord = Record[bytes | None, bytes | None]

FOLLOWED: Final = (TopicPartition(topics.DEFINITIONS, 0), TopicPartition(topics.STATUS, 0))
WAIT_S: Final = 60.0
_POLL_MS: Final = 1000
_WAITED_POLL_MS: Final = 20
_RETRY_S: Final = 1.0


class Follower:
    """Applies all records of DEFINITIONS and STATUS to a view, as they are written."""

    def __init__(self, consumer: RawConsumer, view: CatalogView, clock: Clock) -> None:
        self._consumer = consumer
        self._view = view
        self._clock = clock
        self._callbacks: list[Callable[[], None]] = []
        self._positions: dict[TopicPartition, int] = {}
        self._waiters = 0
        self._moved = asyncio.Event()
        self._failure: ClientError | None = None
        self._task: asyncio.Task[None] | None = None

    def add_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        await self._consumer.start()
        self._consumer.assign(FOLLOWED)
        self._task = asyncio.create_task(self._run(), name="follows deployed pipelines")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._consumer.close()

    async def reach(self, ends: Mapping[TopicPartition, int]) -> None:
        """Waits until everything before these offsets is applied."""
        self._waiters += 1
        self._consumer.wakeup()
        try:
            async with asyncio.timeout(WAIT_S):
                while any(self._positions.get(each, 0) < end for each, end in ends.items()):
                    self._check()
                    await self._moved.wait()
        except TimeoutError:
            raise PipelineError(
                f"the deployed pipelines could not be read within {WAIT_S:.0f} s: "
                "see penstock status, then try again"
            ) from self._failure
        finally:
            self._waiters -= 1

    def _check(self) -> None:
        if is_refusal(self._failure):
            raise refusal("view deployed pipelines", LOOKING, self._failure)
        if self._task is None:
            raise PipelineError("the catalog is closed")
        if self._task.done():
            self._task.result()  # Raises what ended it.

    async def _run(self) -> None:
        while True:
            try:
                polled = await self._consumer.poll(_WAITED_POLL_MS if self._waiters else _POLL_MS)
            except ClientError as error:
                self._failure = error
                self._wake()
                await self._clock.sleep(_RETRY_S)
                continue
            self._failure = None
            self._apply(polled)

    def _apply(self, records: Sequence[RawRecord]) -> None:
        for record in records:
            self._view.apply(record.topic, record.key, record.value)
        for partition, position in self._consumer.positions().items():
            self._positions[partition] = position.offset
        self._wake()
        if records:
            for callback in self._callbacks:
                callback()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


async def read_records(
    consumer: RawConsumer, topic: str, *, since_ms: int = 0, follow: bool = False
) -> AsyncGenerator[RawRecord, None]:
    """Reads the records since a time up to the current end; with `follow` without an end.

    The consumer is started and closed.
    """
    partition = TopicPartition(topic, 0)
    async with consumer:
        start = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        if since_ms:
            found = (await consumer.offsets_for_times({partition: since_ms}))[partition]
            start = end if found is None else found.offset
        consumer.assign([partition])
        consumer.seek(partition, start)
        position = start
        while follow or position < end:
            for record in await consumer.poll(_POLL_MS):
                if follow or record.offset < end:
                    yield record
            position = consumer.positions()[partition].offset
