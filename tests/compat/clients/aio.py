"""aiokafka: the asyncio client, which uses old versions of the protocol throughout.

The adapter runs its event loop in a thread, as an application would; the tests are synchronous.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.structs import OffsetAndMetadata

from compat.clients.base import (
    CONSUMER,
    DEADLINE_S,
    PRODUCER,
    Client,
    ClusterInfo,
    Code,
    ConfigValue,
    Consumer,
    ConsumerOptions,
    GroupInfo,
    GroupMember,
    NoOffset,
    PartitionInfo,
    Placed,
    ProducerOptions,
    Received,
    Record,
    Refused,
)

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
DEFAULT_CONFIG = 5
Result = TypeVar("Result")


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except kafka_errors.NoOffsetForPartitionError as caught:
        raise NoOffset(caught) from caught
    except kafka_errors.BrokerResponseError as caught:
        raise Refused(caught.errno, caught) from caught


def check_code(code: int, message: object = "") -> None:
    if code:
        raise Refused(code, message)


class LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="aiokafka", daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, Result], within_s: float = DEADLINE_S) -> Result:
        async def bounded() -> Result:
            return await asyncio.wait_for(work, within_s)

        with refusals():
            return asyncio.run_coroutine_threadsafe(bounded(), self.loop).result(within_s + 5)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(120)
        self.loop.close()


class AioConsumer(Consumer):
    def __init__(self, topic: str, loop: LoopThread, config: dict[str, Any]) -> None:
        super().__init__(topic)
        self.loop = loop

        async def build() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(**config)

        self.consumer = loop.run(build())

    def start(self, partitions: Sequence[int] | None) -> None:
        rebalances = self.rebalances

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                rebalances.append(("revoked", frozenset(p.partition for p in revoked)))

            def on_partitions_assigned(self, assigned: Any) -> None:
                rebalances.append(("assigned", frozenset(p.partition for p in assigned)))

        async def begin() -> None:
            await self.consumer.start()
            if partitions is None:
                self.consumer.subscribe([self.topic], listener=Listener())
            else:
                self.consumer.assign([self._partition(p) for p in partitions])

        try:
            self.loop.run(begin())
        except BaseException:
            self.close()
            raise

    def fetch(self, timeout_s: float) -> list[Received]:
        polled = self.loop.run(self.consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [
            Received(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=tuple((name, value) for name, value in record.headers),
            )
            for records in polled.values()
            for record in records
        ]

    def _partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def assignment(self) -> frozenset[int]:
        return frozenset(p.partition for p in self.consumer.assignment())

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Some plain functions of the library must be called on its event loop."""

        async def call() -> None:
            function(*arguments)

        self.loop.run(call())

    def seek(self, partition: int, offset: int) -> None:
        self._call(self.consumer.seek, self._partition(partition), offset)

    def pause(self, *partitions: int) -> None:
        self._call(self.consumer.pause, *map(self._partition, partitions))

    def resume(self, *partitions: int) -> None:
        self._call(self.consumer.resume, *map(self._partition, partitions))

    def position(self, partition: int) -> int:
        position: int = self.loop.run(self.consumer.position(self._partition(partition)))
        return position

    def bounds(self, partition: int) -> tuple[int, int]:
        wanted = self._partition(partition)
        first = self.loop.run(self.consumer.beginning_offsets([wanted]))[wanted]
        end = self.loop.run(self.consumer.end_offsets([wanted]))[wanted]
        return first, end

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        wanted = self._partition(partition)
        found = self.loop.run(self.consumer.offsets_for_times({wanted: timestamp_ms}))
        return None if found[wanted] is None else found[wanted].offset

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {self._partition(p): OffsetAndMetadata(*entry) for p, entry in offsets.items()}
        self.loop.run(self.consumer.commit(wanted))

    def committed(self, partition: int) -> tuple[int, str] | None:
        """The library returns only the offset; the metadata is always empty here."""
        offset = self.loop.run(self.consumer.committed(self._partition(partition)))
        return None if offset is None else (offset, "")

    def shut(self) -> None:
        self.loop.run(self.consumer.stop())


class AioClient(Client):
    name = "aiokafka"
    strategies = ("range", "roundrobin", "sticky")

    def sees(self, code: Code) -> int:
        """The library does not know newer codes, and loses their numbers."""
        seen: int = kafka_errors.for_code(code).errno
        return seen

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.loop = LoopThread()
        self.common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "client_id": "compat",
            "request_timeout_ms": int(DEADLINE_S * 1000),
            "retry_backoff_ms": 50,
        }

        async def build() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(**self.common)
            await admin.start()
            return admin

        self.admin = self.loop.run(build())

    def produce(
        self, topic: str, records: Sequence[Record], options: ProducerOptions = PRODUCER
    ) -> list[Placed]:
        async def send() -> list[Placed]:
            producer = AIOKafkaProducer(
                **self.common,
                compression_type=None if options.codec == "none" else options.codec,
                acks=options.acks,
                enable_idempotence=options.idempotent,
                linger_ms=options.linger_ms,
                max_batch_size=options.batch_bytes,
                max_request_size=options.request_bytes_max,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                results = await asyncio.gather(*futures, return_exceptions=True)
            finally:
                await producer.stop()
            placed = []
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                # With acks=0 the client does not learn where the record is stored.
                position = (-1, -1) if result is None else (result.partition, result.offset)
                placed.append(Placed(*position))
            return placed

        return self.loop.run(send())

    def _consumer_config(self, options: ConsumerOptions, group: str | None) -> dict[str, Any]:
        if options.isolation == "read_committed" and group is None:
            group = "compat-reader"  # the library accepts the isolation level with a group only
        return {
            **self.common,
            "client_id": options.client_id,
            "group_id": group,
            "group_instance_id": options.instance_id,
            "enable_auto_commit": False,
            "auto_offset_reset": options.reset,
            "isolation_level": options.isolation,
            "fetch_max_wait_ms": options.wait_ms_max,
            "fetch_min_bytes": options.bytes_min,
            "partition_assignment_strategy": [ASSIGNORS[options.strategy]],
            "session_timeout_ms": options.session_timeout_ms,
            "heartbeat_interval_ms": options.heartbeat_ms,
        }

    def reader(
        self,
        topic: str,
        partitions: Sequence[int] = (0,),
        options: ConsumerOptions = CONSUMER,
        group: str | None = None,
    ) -> Consumer:
        consumer = AioConsumer(topic, self.loop, self._consumer_config(options, group))
        consumer.start(partitions)
        return consumer

    def member(self, group: str, topic: str, options: ConsumerOptions = CONSUMER) -> Consumer:
        consumer = AioConsumer(topic, self.loop, self._consumer_config(options, group))
        consumer.start(None)
        return consumer

    def close(self) -> None:
        self.loop.run(self.admin.close())
        self.loop.close()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication, topic_configs=dict(configs or {}))
        response = self.loop.run(self.admin.create_topics([topic], validate_only=validate_only))
        for _, code, *message in response.topic_errors:
            check_code(code, message)

    def delete_topic(self, name: str) -> None:
        response = self.loop.run(self.admin.delete_topics([name]))
        for _, code in response.topic_error_codes:
            check_code(code)

    def list_topics(self) -> set[str]:
        return set(self.loop.run(self.admin.list_topics()))

    def describe_topic(self, name: str) -> dict[int, PartitionInfo]:
        """Checks the list first: this library's metadata requests always create missing topics."""
        if name not in self.list_topics():
            self.lacks("description of a topic that does not exist: it would create it")
        (found,) = self.loop.run(self.admin.describe_topics([name]))
        check_code(found["error_code"])
        return {
            partition["partition"]: PartitionInfo(
                leader=partition["leader"],
                replicas=tuple(partition["replicas"]),
                in_sync=tuple(partition["isr"]),
            )
            for partition in found["partitions"]
        }

    def create_partitions(self, topic: str, total: int) -> None:
        self.loop.run(self.admin.create_partitions({topic: NewPartitions(total)}))

    def describe_configs(
        self, kind: Literal["topic", "broker"], name: str
    ) -> dict[str, ConfigValue]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        (response,) = self.loop.run(self.admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = response.resources
        check_code(code, message)
        return {entry[0]: ConfigValue(entry[1], entry[3] == DEFAULT_CONFIG) for entry in entries}

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (response,) = self.loop.run(self.admin.alter_configs([resource]))
        for code, message, *_ in response.resources:
            check_code(code, message)

    def list_groups(self) -> set[str]:
        return {group for group, *_ in self.loop.run(self.admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupInfo:
        (response,) = self.loop.run(self.admin.describe_consumer_groups([group]))
        ((code, _, state, _, strategy, members, *_),) = response.groups
        check_code(code)
        return GroupInfo(
            state=state,
            strategy=strategy,
            members=tuple(
                GroupMember(
                    client_id=client_id,
                    instance_id=None,
                    partitions=frozenset(
                        p
                        for _, partitions in ConsumerProtocolMemberAssignment.decode(
                            assignment
                        ).assignment
                        for p in partitions
                    )
                    if assignment
                    else frozenset(),
                )
                for _, client_id, _, _, assignment in members
            ),
        )

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        found = self.loop.run(self.admin.list_consumer_group_offsets(group))
        return {p.partition: entry.offset for p, entry in found.items() if p.topic == topic}

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before)}
        low_watermark: int = self.loop.run(self.admin.delete_records(wanted))[
            TopicPartition(topic, partition)
        ]
        return low_watermark

    def describe_cluster(self) -> ClusterInfo:
        found = self.loop.run(self.admin.describe_cluster())
        return ClusterInfo(
            cluster_id=found["cluster_id"],
            controller=found["controller_id"],
            brokers={
                broker["node_id"]: f"{broker['host']}:{broker['port']}"
                for broker in found["brokers"]
            },
        )
