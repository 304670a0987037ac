"""confluent-kafka: librdkafka, the C client under most language bindings."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat.clients.base import (
    CONSUMER,
    DEADLINE_S,
    PRODUCER,
    Client,
    ClusterInfo,
    ConfigValue,
    Consumer,
    ConsumerOptions,
    GroupInfo,
    GroupMember,
    Headers,
    NoOffset,
    PartitionInfo,
    Placed,
    ProducerOptions,
    Received,
    Record,
    Refused,
)
from penstock.testing.slowness import patient

STATES = {
    ck.ConsumerGroupState.STABLE: "Stable",
    ck.ConsumerGroupState.EMPTY: "Empty",
    ck.ConsumerGroupState.DEAD: "Dead",
    ck.ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ck.ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
}


def refusal(error: ck.KafkaError) -> Exception:
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        return NoOffset(error.str())
    return Refused(error.code(), error.str())


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as caught:
        raise refusal(caught.args[0]) from caught


def _headers(message: ck.Message) -> Headers:
    pairs = message.headers() or []
    assert isinstance(pairs, list)
    return tuple((str(name), value) for name, value in pairs)  # type: ignore[misc]


def _received(message: ck.Message) -> Received:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Received(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
    )


class ConfluentConsumer(Consumer):
    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        super().__init__(topic)
        self.consumer = ck.Consumer(config)

    def subscribe(self) -> None:
        def note(what: str) -> Any:
            def on_event(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
                self.rebalances.append((what, frozenset(p.partition for p in partitions)))

            return on_event

        self.consumer.subscribe(
            [self.topic],
            on_assign=note("assigned"),
            on_revoke=note("revoked"),
            on_lost=note("lost"),
        )

    def fetch(self, timeout_s: float) -> list[Received]:
        with refusals():
            first = self.consumer.poll(timeout_s)
            messages = [] if first is None else [first, *self.consumer.consume(500, 0)]
        records = []
        for message in messages:
            if error := message.error():
                raise refusal(error)
            records.append(_received(message))
        return records

    def _partition(self, partition: int, offset: int = ck.OFFSET_INVALID) -> ck.TopicPartition:
        return ck.TopicPartition(self.topic, partition, offset)

    def assignment(self) -> frozenset[int]:
        return frozenset(p.partition for p in self.consumer.assignment())

    def seek(self, partition: int, offset: int) -> None:
        """librdkafka refuses to seek before the partition's fetcher has started."""
        deadline = time.monotonic() + patient(DEADLINE_S)
        while True:
            try:
                self.consumer.seek(self._partition(partition, offset))
            except ck.KafkaException as caught:
                if caught.args[0].code() != ck.KafkaError._STATE or time.monotonic() > deadline:
                    raise
                self.consumer.poll(0.05)
            else:
                return

    def pause(self, *partitions: int) -> None:
        self.consumer.pause([self._partition(p) for p in partitions])

    def resume(self, *partitions: int) -> None:
        self.consumer.resume([self._partition(p) for p in partitions])

    def position(self, partition: int) -> int:
        return self.consumer.position([self._partition(partition)])[0].offset

    def bounds(self, partition: int) -> tuple[int, int]:
        with refusals():
            found = self.consumer.get_watermark_offsets(self._partition(partition), DEADLINE_S)
        assert found is not None, "the broker did not tell the offsets in time"
        return found

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        with refusals():
            (found,) = self.consumer.offsets_for_times(
                [self._partition(partition, timestamp_ms)], DEADLINE_S
            )
        if found.error is not None:
            raise refusal(found.error)
        return None if found.offset == ck.OFFSET_END else found.offset

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        with refusals():
            if offsets is None:
                results = self.consumer.commit(asynchronous=False)
            else:
                wanted = [
                    ck.TopicPartition(self.topic, partition, offset, metadata)
                    for partition, (offset, metadata) in offsets.items()
                ]
                results = self.consumer.commit(offsets=wanted, asynchronous=False)
        for result in results or ():
            if result.error is not None:
                raise refusal(result.error)

    def committed(self, partition: int) -> tuple[int, str] | None:
        with refusals():
            (found,) = self.consumer.committed([self._partition(partition)], DEADLINE_S)
        if found.error is not None:
            raise refusal(found.error)
        return None if found.offset == ck.OFFSET_INVALID else (found.offset, found.metadata or "")

    def shut(self) -> None:
        self.consumer.close()


class ConfluentClient(Client):
    name = "confluent-kafka"
    strategies = ("range", "roundrobin", "cooperative-sticky")

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.common: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "compat",
            "topic.metadata.refresh.fast.interval.ms": 50,
            "broker.address.family": "v4",
        }
        self.admin = AdminClient(dict(self.common))

    def produce(
        self, topic: str, records: Sequence[Record], options: ProducerOptions = PRODUCER
    ) -> list[Placed]:
        producer = ck.Producer(
            {
                **self.common,
                "compression.type": options.codec,
                "acks": options.acks,
                "enable.idempotence": options.idempotent,
                "linger.ms": options.linger_ms,
                "batch.size": max(options.batch_bytes, options.request_bytes_max),
                "message.max.bytes": options.request_bytes_max,
                "message.timeout.ms": int(DEADLINE_S * 1000),
                "partitioner": "murmur2_random",
            }
        )
        placed: list[Placed | None] = [None] * len(records)
        failures: list[ck.KafkaError] = []

        def on_delivery(index: int) -> Any:
            def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
                if error is not None:
                    failures.append(error)
                    return
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                placed[index] = Placed(partition, -1 if offset is None else offset)

            return delivered

        for index, record in enumerate(records):
            extra: dict[str, Any] = {}
            if record.partition is not None:
                extra["partition"] = record.partition
            if record.timestamp_ms is not None:
                extra["timestamp"] = record.timestamp_ms
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                on_delivery=on_delivery(index),
                **extra,
            )
            producer.poll(0)
        left = producer.flush(DEADLINE_S + 5)
        assert not left, f"{left} records are neither acknowledged nor refused"
        if failures:
            raise refusal(failures[0])
        return [topic_partition for topic_partition in placed if topic_partition is not None]

    def _consumer_config(self, options: ConsumerOptions, group: str) -> dict[str, Any]:
        reset = {"earliest": "earliest", "latest": "latest", "none": "error"}[options.reset]
        config: dict[str, Any] = {
            **self.common,
            "client.id": options.client_id,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "isolation.level": options.isolation,
            "fetch.wait.max.ms": options.wait_ms_max,
            "fetch.min.bytes": options.bytes_min,
            "partition.assignment.strategy": options.strategy,
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": options.heartbeat_ms,
            "fetch.error.backoff.ms": 50,
        }
        if options.instance_id is not None:
            config["group.instance.id"] = options.instance_id
        return config

    def reader(
        self,
        topic: str,
        partitions: Sequence[int] = (0,),
        options: ConsumerOptions = CONSUMER,
        group: str | None = None,
    ) -> Consumer:
        """Without a group there are no committed offsets: start where the reset policy says."""
        consumer = ConfluentConsumer(
            topic, self._consumer_config(options, group or "compat-reader")
        )
        start = ck.OFFSET_STORED
        if group is None:
            start = {"earliest": ck.OFFSET_BEGINNING, "latest": ck.OFFSET_END}.get(
                options.reset, ck.OFFSET_STORED
            )
        consumer.consumer.assign([ck.TopicPartition(topic, p, start) for p in partitions])
        return consumer

    def member(self, group: str, topic: str, options: ConsumerOptions = CONSUMER) -> Consumer:
        consumer = ConfluentConsumer(topic, self._consumer_config(options, group))
        consumer.subscribe()
        return consumer

    def close(self) -> None:
        """The library has no other way to close an admin client."""
        del self.admin

    def _result(self, futures: Mapping[Any, Future[Any]]) -> Any:
        (future,) = futures.values()
        with refusals():
            return future.result(DEADLINE_S)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication, config=dict(configs or {}))
        self._result(self.admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        self._result(self.admin.delete_topics([name]))

    def list_topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=DEADLINE_S).topics)

    def describe_topic(self, name: str) -> dict[int, PartitionInfo]:
        found = self._result(self.admin.describe_topics(ck.TopicCollection([name])))
        return {
            partition.id: PartitionInfo(
                leader=-1 if partition.leader is None else partition.leader.id,
                replicas=tuple(node.id for node in partition.replicas),
                in_sync=tuple(node.id for node in partition.isr),
            )
            for partition in found.partitions
        }

    def create_partitions(self, topic: str, total: int) -> None:
        self._result(self.admin.create_partitions([NewPartitions(topic, total)]))

    def describe_configs(
        self, kind: Literal["topic", "broker"], name: str
    ) -> dict[str, ConfigValue]:
        resource = ConfigResource(ResourceType[kind.upper()], name)
        entries = self._result(self.admin.describe_configs([resource]))
        return {
            entry.name: ConfigValue(
                entry.value, entry.source == ConfigSource.DEFAULT_CONFIG.value or entry.is_default
            )
            for entry in entries.values()
        }

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=dict(configs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._result(self.admin.alter_configs([resource]))

    def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, tuple[Literal["set", "delete", "append", "subtract"], str]],
    ) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation.upper()])
            for name, (operation, value) in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._result(self.admin.incremental_alter_configs([resource]))

    def list_groups(self) -> set[str]:
        with refusals():
            found = self.admin.list_consumer_groups().result(DEADLINE_S)
        assert not found.errors, found.errors
        return {listing.group_id for listing in found.valid}

    def describe_group(self, group: str) -> GroupInfo:
        found = self._result(self.admin.describe_consumer_groups([group]))
        return GroupInfo(
            state=STATES[found.state],
            strategy=found.partition_assignor,
            members=tuple(
                GroupMember(
                    client_id=member.client_id,
                    instance_id=member.group_instance_id or None,
                    partitions=frozenset(p.partition for p in member.assignment.topic_partitions),
                )
                for member in found.members
            ),
        )

    def delete_group(self, group: str) -> None:
        self._result(self.admin.delete_consumer_groups([group]))

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        wanted = [ck.ConsumerGroupTopicPartitions(group)]
        found = self._result(self.admin.list_consumer_group_offsets(wanted))
        return {p.partition: p.offset for p in found.topic_partitions if p.topic == topic}

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = [ck.TopicPartition(topic, p, offset) for p, offset in offsets.items()]
        request = [ck.ConsumerGroupTopicPartitions(group, wanted)]
        found = self._result(self.admin.alter_consumer_group_offsets(request))
        for partition in found.topic_partitions:
            if partition.error is not None:
                raise refusal(partition.error)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = ck.TopicPartition(topic, partition, before)
        low_watermark: int = self._result(self.admin.delete_records([wanted])).low_watermark
        return low_watermark

    def describe_cluster(self) -> ClusterInfo:
        with refusals():
            found = self.admin.describe_cluster().result(DEADLINE_S)
        return ClusterInfo(
            cluster_id=found.cluster_id,
            controller=found.controller.id,
            brokers={node.id: f"{node.host}:{node.port}" for node in found.nodes},
        )

    def max_timestamp_offset(self, topic: str, partition: int) -> int:
        wanted = {ck.TopicPartition(topic, partition): OffsetSpec.max_timestamp()}  # type: ignore[no-untyped-call]
        offset: int = self._result(self.admin.list_offsets(wanted)).offset
        return offset
