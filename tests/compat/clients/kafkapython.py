"""kafka-python: the pure Python client, idempotent by default, with fetch sessions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

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
    NoOffset,
    PartitionInfo,
    Placed,
    ProducerOptions,
    Received,
    Record,
    Refused,
)

with warnings.catch_warnings():
    # It loads its own files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, codec
    from kafka import errors as kafka_errors
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.protocol.consumer import OffsetSpec
    from kafka.structs import OffsetAndMetadata

DEADLINE_MS = int(DEADLINE_S * 1000)
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
LIBRARIES = {"snappy": codec.has_snappy, "lz4": codec.has_lz4, "zstd": codec.has_zstd}


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except kafka_errors.NoOffsetForPartitionError as caught:
        raise NoOffset(caught) from caught
    except kafka_errors.BrokerResponseError as caught:
        raise Refused(caught.errno, caught) from caught


def check(error: Any) -> None:
    """Some responses contain the error as a class."""
    if error is not kafka_errors.NoError:
        raise Refused(error.errno, error.__name__)


def check_code(code: int, message: object = "") -> None:
    if code:
        raise Refused(code, message)


class KafkaPythonConsumer(Consumer):
    def __init__(self, topic: str, config: dict[str, Any]) -> None:
        super().__init__(topic)
        with refusals():
            self.consumer = KafkaConsumer(**config)

    def subscribe(self) -> None:
        rebalances = self.rebalances

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                rebalances.append(("assigned", frozenset(p.partition for p in assigned)))

            def on_partitions_revoked(self, revoked: Any) -> None:
                rebalances.append(("revoked", frozenset(p.partition for p in revoked)))

            def on_partitions_lost(self, lost: Any) -> None:
                rebalances.append(("lost", frozenset(p.partition for p in lost)))

        self.consumer.subscribe([self.topic], listener=Listener())
        # A group leader that does not know the topic yet assigns nothing. When its metadata
        # arrives, it joins again, and a poll that times out meanwhile can leave it without
        # heartbeats.
        self.consumer.topics()

    def fetch(self, timeout_s: float) -> list[Received]:
        with refusals():
            polled = self.consumer.poll(timeout_ms=int(timeout_s * 1000))
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

    def seek(self, partition: int, offset: int) -> None:
        self.consumer.seek(self._partition(partition), offset)

    def pause(self, *partitions: int) -> None:
        self.consumer.pause(*map(self._partition, partitions))

    def resume(self, *partitions: int) -> None:
        self.consumer.resume(*map(self._partition, partitions))

    def position(self, partition: int) -> int:
        with refusals():
            position: int = self.consumer.position(
                self._partition(partition), timeout_ms=DEADLINE_MS
            )
        return position

    def bounds(self, partition: int) -> tuple[int, int]:
        wanted = self._partition(partition)
        with refusals():
            first = self.consumer.beginning_offsets([wanted], timeout_ms=DEADLINE_MS)[wanted]
            end = self.consumer.end_offsets([wanted], timeout_ms=DEADLINE_MS)[wanted]
        return first, end

    def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        wanted = self._partition(partition)
        with refusals():
            found = self.consumer.offsets_for_times({wanted: timestamp_ms}, timeout_ms=DEADLINE_MS)
        return None if found[wanted] is None else found[wanted].offset

    def commit(self, offsets: Mapping[int, tuple[int, str]] | None = None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                self._partition(partition): OffsetAndMetadata(offset, metadata, -1)
                for partition, (offset, metadata) in offsets.items()
            }
        with refusals():
            self.consumer.commit(wanted, timeout_ms=DEADLINE_MS)

    def committed(self, partition: int) -> tuple[int, str] | None:
        with refusals():
            found = self.consumer.committed(
                self._partition(partition), metadata=True, timeout_ms=DEADLINE_MS
            )
        return None if found is None or found.offset < 0 else (found.offset, found.metadata or "")

    def shut(self) -> None:
        self.consumer.close(autocommit=False, timeout_ms=5000)


class KafkaPythonClient(Client):
    name = "kafka-python"
    strategies = ("range", "roundrobin", "sticky", "cooperative-sticky")
    sends_null_headers = False

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "client_id": "compat",
            "bootstrap_timeout_ms": DEADLINE_MS,
            "request_timeout_ms": DEADLINE_MS,
            "retry_backoff_ms": 50,
        }
        self.admin = KafkaAdminClient(**self.common)

    def check_codec(self, codec: str) -> None:
        if codec in LIBRARIES and not LIBRARIES[codec]():
            self.lacks(f"{codec} here: pip install 'kafka-python[snappy,lz4,zstd]'")

    def produce(
        self, topic: str, records: Sequence[Record], options: ProducerOptions = PRODUCER
    ) -> list[Placed]:
        producer = KafkaProducer(
            **self.common,
            compression_type=None if options.codec == "none" else options.codec,
            acks="all" if options.acks == -1 else options.acks,
            enable_idempotence=options.idempotent,
            linger_ms=options.linger_ms,
            batch_size=options.batch_bytes,
            max_request_size=options.request_bytes_max,
            delivery_timeout_ms=DEADLINE_MS + options.linger_ms,
        )
        try:
            with refusals():
                futures = [
                    producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                producer.flush(timeout=DEADLINE_S)
                results = [future.get(timeout=DEADLINE_S) for future in futures]
        finally:
            producer.close(timeout=5)
        return [Placed(result.partition, result.offset) for result in results]

    def _consumer_config(self, options: ConsumerOptions, group: str | None) -> dict[str, Any]:
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
            "allow_auto_create_topics": False,
        }

    def reader(
        self,
        topic: str,
        partitions: Sequence[int] = (0,),
        options: ConsumerOptions = CONSUMER,
        group: str | None = None,
    ) -> Consumer:
        consumer = KafkaPythonConsumer(topic, self._consumer_config(options, group))
        consumer.consumer.assign([TopicPartition(topic, p) for p in partitions])
        return consumer

    def member(self, group: str, topic: str, options: ConsumerOptions = CONSUMER) -> Consumer:
        consumer = KafkaPythonConsumer(topic, self._consumer_config(options, group))
        consumer.subscribe()
        return consumer

    def close(self) -> None:
        self.admin.close()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        request = {
            name: {
                "num_partitions": partitions,
                "replication_factor": replication,
                "configs": dict(configs or {}),
            }
        }
        with refusals():
            self.admin.create_topics(request, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with refusals():
            self.admin.delete_topics([name])

    def list_topics(self) -> set[str]:
        return set(self.admin.list_topics())

    def describe_topic(self, name: str) -> dict[int, PartitionInfo]:
        (found,) = self.admin.describe_topics([name])
        check_code(found["error_code"])
        return {
            partition["partition_index"]: PartitionInfo(
                leader=partition["leader_id"],
                replicas=tuple(partition["replica_nodes"]),
                in_sync=tuple(partition["isr_nodes"]),
            )
            for partition in found["partitions"]
        }

    def create_partitions(self, topic: str, total: int) -> None:
        with refusals():
            self.admin.create_partitions({topic: total})

    def describe_configs(
        self, kind: Literal["topic", "broker"], name: str
    ) -> dict[str, ConfigValue]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        found = self.admin.describe_configs([resource], config_filter="all")[kind][name]
        return {
            key: ConfigValue(entry["value"], entry["config_source"] == "DEFAULT_CONFIG")
            for key, entry in found.items()
        }

    def _alter(self, topic: str, configs: Mapping[str, Any], incremental: bool) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        found = self.admin.alter_configs(
            [resource], raise_on_unknown=False, incremental=incremental
        )
        outcome = found["topic"][topic]
        if outcome != "OK":
            # This library reports the code only inside the error text.
            raise Refused(int(outcome.partition("[Error ")[2].partition("]")[0]), outcome)

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        self.lacks("plain AlterConfigs: it always sends the other changed configs along")

    def alter_configs(
        self,
        topic: str,
        changes: Mapping[str, tuple[Literal["set", "delete", "append", "subtract"], str]],
    ) -> None:
        configs = {name: (operation.upper(), value) for name, (operation, value) in changes.items()}
        self._alter(topic, configs, incremental=True)

    def list_groups(self) -> set[str]:
        with refusals():
            return {group["group_id"] for group in self.admin.list_groups()}

    def describe_group(self, group: str) -> GroupInfo:
        found = self.admin.describe_groups([group])[group]
        return GroupInfo(
            state=found["group_state"],
            strategy=found["protocol_data"],
            members=tuple(self._group_member(member) for member in found["members"]),
        )

    @staticmethod
    def _group_member(member: Mapping[str, Any]) -> GroupMember:
        assignment = member["member_assignment"]
        owned = assignment["assigned_partitions"] if assignment else []
        return GroupMember(
            client_id=member["client_id"],
            instance_id=member["group_instance_id"],
            partitions=frozenset(p for topic in owned for p in topic["partitions"]),
        )

    def delete_group(self, group: str) -> None:
        outcome = self.admin.delete_groups([group])[group]
        if outcome != "OK":
            check(getattr(kafka_errors, outcome))

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        with refusals():
            found = self.admin.list_group_offsets(group)[group]
        return {p.partition: entry.offset for p, entry in found.items() if p.topic == topic}

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {
            TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1)
            for p, offset in offsets.items()
        }
        with refusals():
            for error in self.admin.alter_group_offsets(group, wanted).values():
                check(error)

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        wanted = [TopicPartition(topic, p) for p in partitions]
        with refusals():
            for error in self.admin.delete_group_offsets(group, wanted).values():
                check(error)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        wanted = TopicPartition(topic, partition)
        with refusals():
            low_watermark: int = self.admin.delete_records({wanted: before})[wanted][
                "low_watermark"
            ]
        return low_watermark

    def describe_cluster(self) -> ClusterInfo:
        with refusals():
            found = self.admin.describe_cluster()
        return ClusterInfo(
            cluster_id=found["cluster_id"],
            controller=found["controller_id"],
            brokers={
                broker["broker_id"]: f"{broker['host']}:{broker['port']}"
                for broker in found["brokers"]
            },
        )

    def max_timestamp_offset(self, topic: str, partition: int) -> int:
        wanted = TopicPartition(topic, partition)
        with refusals():
            found = self.admin.list_partition_offsets({wanted: OffsetSpec.MAX_TIMESTAMP})
        offset: int = found[wanted].offset
        return offset

    def log_sizes(self, topic: str) -> dict[int, int]:
        with refusals():
            found = self.admin.describe_log_dirs([topic])
        return {
            partition["partition_index"]: partition["partition_size"]
            for broker in found
            for directory in broker["log_dirs"]
            for entry in directory["topics"]
            if entry["name"] == topic
            for partition in entry["partitions"]
        }
