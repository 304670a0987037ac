"""Admin operations on topics, configs and the cluster, one coroutine each.

Functions that concern one thing raise `BrokerError`. Functions that concern several things return
an outcome for each, None on success, because a cluster may carry out some and refuse others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from penstock.client.address import Address
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, TopicNotFound, check, outcome
from penstock.metadata.config_types import ConfigSource
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataResponse,
)

_SET: Final = 0
_DELETE: Final = 1
BROKER_DEFAULT: Final = -1
"""For a new topic's partitions and replication factor: use the broker's configured default."""


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    id: int
    address: Address
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster's id, its controller and its brokers."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition, its leader and its replicas."""

    index: int
    leader: int
    """-1 if the partition has no leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def under_replicated(self) -> bool:
        return len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions."""

    name: str
    topic_id: str
    """In Kafka's notation: url-safe base64 without padding. Empty if the broker has no topic
    ids."""
    internal: bool
    partitions: tuple[PartitionInfo, ...]

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, for `Admin.create_topics`. The broker's defaults apply to what is not
    given.

    Example:
        created = admin.create_topics([NewTopic("refunds", partitions=3), NewTopic("returns")])
        print(sorted(created))
        #> ['refunds', 'returns']
    """

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created."""

    name: str
    topic_id: str
    partitions: int
    """-1 if the broker is too old to report it."""
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a topic or a broker, and where its value comes from."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None

    @property
    def is_default(self) -> bool:
        return self.source in (ConfigSource.DEFAULT_CONFIG, ConfigSource.UNKNOWN)


async def describe_cluster(cluster: Cluster) -> ClusterInfo:
    answer = await cluster.ask_any(DescribeClusterRequest(), DescribeClusterResponse)
    check(answer.error_code, answer.error_message, "DescribeCluster")
    brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
    return ClusterInfo(
        answer.cluster_id,
        answer.controller_id,
        tuple(
            BrokerInfo(broker.broker_id, Address(broker.host, broker.port), broker.rack)
            for broker in brokers
        ),
    )


async def list_topics(cluster: Cluster) -> list[TopicInfo]:
    """Returns all topics with their partitions, sorted by name."""
    answer = await cluster.metadata(None)
    found = [_topic_info(topic) for topic in answer.topics if topic.error_code == ErrorCode.NONE]
    return sorted(found, key=lambda topic: topic.name)


async def describe_topics(
    cluster: Cluster, names: Sequence[str]
) -> dict[str, TopicInfo | BrokerError]:
    answer = await cluster.metadata(names)
    found: dict[str, TopicInfo | BrokerError] = {}
    for topic in answer.topics:
        name = topic.name or ""
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            found[name] = TopicNotFound(name)
        elif topic.error_code != ErrorCode.NONE:
            found[name] = BrokerError(topic.error_code, subject=f"topic {name}")
        else:
            found[name] = _topic_info(topic)
    return {name: found.get(name, TopicNotFound(name)) for name in names}


def _topic_info(topic: MetadataResponse.Topic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        topic.name or "",
        topic_id_text(topic.topic_id),
        topic.is_internal,
        tuple(
            PartitionInfo(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for partition in partitions
        ),
    )


def topic_id_text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


async def create_topic(
    cluster: Cluster, topic: NewTopic, *, validate_only: bool = False
) -> CreatedTopic:
    created = (await create_topics(cluster, [topic], validate_only=validate_only))[topic.name]
    if isinstance(created, BrokerError):
        raise created
    return created


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> dict[str, CreatedTopic | BrokerError]:
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.Topic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    CreateTopicsRequest.Config(name, value) for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=broker_timeout_ms(cluster),
        validate_only=validate_only,
    )
    answer = await cluster.ask_controller(
        request, CreateTopicsResponse, lambda answer: [topic.error_code for topic in answer.topics]
    )
    for topic in topics:
        cluster.forget(topic.name)
    return {
        created.name: outcome(created.error_code, created.error_message)
        or CreatedTopic(
            created.name,
            topic_id_text(created.topic_id),
            created.num_partitions,
            created.replication_factor,
        )
        for created in answer.topics
    }


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, BrokerError | None]:
    request = DeleteTopicsRequest(timeout_ms=broker_timeout_ms(cluster))
    if (await cluster.controller_connection()).version_of(DeleteTopicsRequest) >= 6:
        request.topics = [DeleteTopicsRequest.Topic(name=name) for name in names]
    else:
        request.topic_names = list(names)
    answer = await cluster.ask_controller(
        request,
        DeleteTopicsResponse,
        lambda answer: [topic.error_code for topic in answer.responses],
    )
    for name in names:
        cluster.forget(name)
    return {
        topic.name or "": (
            TopicNotFound(topic.name or "")
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else outcome(topic.error_code, topic.error_message, f"topic {topic.name}")
        )
        for topic in answer.responses
    }


async def create_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Increases the topic to `total` partitions. The number of partitions can never be reduced."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.Topic(name=topic, count=total, assignments=None)],
        timeout_ms=broker_timeout_ms(cluster),
    )
    answer = await cluster.ask_controller(
        request,
        CreatePartitionsResponse,
        lambda answer: [topic.error_code for topic in answer.results],
    )
    cluster.forget(topic)
    result = answer.results[0]
    if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise TopicNotFound(topic)
    check(result.error_code, result.error_message)


async def describe_configs(
    cluster: Cluster, kind: ResourceType, name: str
) -> tuple[ConfigEntry, ...]:
    """Returns every config of a topic, or of the broker with this id, sorted by name, with
    defaults."""
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsRequest.Resource(kind, name, None)], include_documentation=True
    )
    if kind == ResourceType.BROKER:
        answer = await cluster.ask_broker(int(name), request, DescribeConfigsResponse)
    else:
        answer = await cluster.ask_any(request, DescribeConfigsResponse)
    result = answer.results[0]
    _check_resource(result.error_code, result.error_message, kind, name)
    entries = sorted(result.configs, key=lambda config: config.name)
    known = {int(source) for source in ConfigSource}
    return tuple(
        ConfigEntry(
            config.name,
            config.value,
            ConfigSource(config.config_source if config.config_source in known else 0),
            config.read_only,
            config.is_sensitive,
            config.documentation,
        )
        for config in entries
    )


async def alter_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    set_values: Mapping[str, str] | None = None,
    delete: Sequence[str] = (),
) -> None:
    """Sets some configs and resets others to their defaults. All other configs keep their
    values."""
    changes = [
        IncrementalAlterConfigsRequest.Config(key, _SET, value)
        for key, value in (set_values or {}).items()
    ]
    changes += [IncrementalAlterConfigsRequest.Config(key, _DELETE, None) for key in delete]
    request = IncrementalAlterConfigsRequest(
        resources=[IncrementalAlterConfigsRequest.Resource(kind, name, changes)]
    )
    answer = await cluster.ask_controller(
        request,
        IncrementalAlterConfigsResponse,
        lambda answer: [resource.error_code for resource in answer.responses],
        idempotent=True,
    )
    result = answer.responses[0]
    _check_resource(result.error_code, result.error_message, kind, name)


def _check_resource(code: int, message: str | None, kind: ResourceType, name: str) -> None:
    if kind == ResourceType.TOPIC and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise TopicNotFound(name)
    check(code, message)


def broker_timeout_ms(cluster: Cluster) -> int:
    """Returns the timeout to request from the broker.

    It is shorter than the client's own timeout, so that the broker reports a timeout first.
    """
    return int(cluster.config.connection.request_timeout_s * 900)
