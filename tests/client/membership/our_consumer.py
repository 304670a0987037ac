"""Penstock's consumer behind the interface of the third-party clients (`compat.clients.base`).

Used in mixed groups. Its event loop runs on its own thread, as if in its own process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from compat.clients.base import CONSUMER, DEADLINE_S, Consumer, ConsumerOptions, Received
from penstock.client.consumer import Consumer as AsyncConsumer
from penstock.client.membership.listener import Listener
from penstock.client.model import OffsetAndMetadata
from penstock.topic_partition import TopicPartition

T = TypeVar("T")


class OurConsumer(Consumer):
    def __init__(
        self, bootstrap: str, group: str, topic: str, options: ConsumerOptions = CONSUMER
    ) -> None:
        super().__init__(topic)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._consumer = self._run(self._open(bootstrap, group, options))

    async def _open(
        self, bootstrap: str, group: str, options: ConsumerOptions
    ) -> AsyncConsumer[Any, Any]:
        def note(what: str) -> Any:
            return lambda topic_partitions: self.rebalances.append(
                (what, frozenset(topic_partition.partition for topic_partition in topic_partitions))
            )

        consumer = AsyncConsumer(
            bootstrap,
            topics=[self.topic],
            listener=Listener(note("assigned"), note("revoked"), note("lost")),
            group_id=group,
            group_instance_id=options.instance_id,
            client_id="ours",
            enable_auto_commit=False,
            auto_offset_reset=options.reset,
            fetch_max_wait_ms=options.wait_ms_max,
            partition_assignment_strategy=[options.strategy],
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            allow_auto_create_topics=False,
        )
        await consumer.start()
        return consumer

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def fetch(self, timeout_s: float) -> list[Received]:
        records = self._run(self._consumer.poll(timeout_ms=int(timeout_s * 1000)))
        return [
            Received(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
            for r in records
        ]

    def assignment(self) -> frozenset[int]:
        return frozenset(
            topic_partition.partition for topic_partition in self._consumer.assignment()
        )

    def seek(self, partition: int, offset: int) -> None:
        self._loop.call_soon_threadsafe(
            self._consumer.seek, self._topic_partition(partition), offset
        )

    def pause(self, *partitions: int) -> None:
        self._loop.call_soon_threadsafe(
            self._consumer.pause, *map(self._topic_partition, partitions)
        )

    def resume(self, *partitions: int) -> None:
        self._loop.call_soon_threadsafe(
            self._consumer.resume, *map(self._topic_partition, partitions)
        )

    def position(self, partition: int) -> int:
        return self._run(self._consumer.position(self._topic_partition(partition)))

    def bounds(self, partition: int) -> tuple[int, int]:
        topic_partition = self._topic_partition(partition)
        first = self._run(self._consumer.beginning_offsets([topic_partition]))
        last = self._run(self._consumer.end_offsets([topic_partition]))
        return first[topic_partition], last[topic_partition]

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        topic_partition = self._topic_partition(partition)
        found = self._run(self._consumer.offsets_for_times({topic_partition: timestamp_ms}))[
            topic_partition
        ]
        return None if found is None else found.offset

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        given = None
        if offsets is not None:
            given = {
                self._topic_partition(p): OffsetAndMetadata(*pair) for p, pair in offsets.items()
            }
        self._run(self._consumer.commit(given))

    def committed(self, partition: int) -> tuple[int, str] | None:
        topic_partition = self._topic_partition(partition)
        found = self._run(self._consumer.committed(topic_partition))[topic_partition]
        return None if found is None else (found.offset, found.metadata)

    def shut(self) -> None:
        self._run(self._consumer.close(timeout_s=5.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _topic_partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)
