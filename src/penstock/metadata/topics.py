"""Creates, grows and deletes topics.

Rules and error codes are Kafka's. In a new partition all assigned brokers are in sync and the first
of them is the leader, at leader epoch 0. The topic id is new each time, so an epoch of an earlier
topic of the same name means nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from penstock.metadata.config_values import NO_CONFIGS
from penstock.metadata.configs import validate_topic_configs
from penstock.metadata.decisions import Decision
from penstock.metadata.delay_topics import require_delay_target
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import Partition, Topic
from penstock.metadata.placement import place_replicas, ring
from penstock.metadata.topic_ids import RESERVED_IDS, ZERO_ID, to_text
from penstock.metadata.topic_keys import alteration, creation, deletion, divided
from penstock.wire.errors import ErrorCode, KafkaError

NAME_CHARACTERS_MAX: Final = 249
PARTITIONS_MAX: Final = 20_000
"""The maximum for one topic. It is created and deleted by one commit, which etcd limits
(`topic_keys`)."""
NEW_REPLICAS_MAX: Final = 100_000
"""The maximum that one request may create: the broker serves no other request in the meantime."""
USE_DEFAULT: Final = -1
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A request to create a topic; -1 means the cluster's default.

    `assignments` are pairs of a partition and its brokers. They replace the two numbers.
    """

    name: str
    num_partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    num_partitions: int = 1
    replication_factor: int = 1


def validate_topic_name(name: str) -> None:
    problem = None
    if not name:
        problem = "A topic name cannot be empty"
    elif name in (".", ".."):
        problem = f"A topic cannot be named '{name}'"
    elif len(name) > NAME_CHARACTERS_MAX:
        problem = f"The topic name has {len(name)} characters: use at most {NAME_CHARACTERS_MAX}"
    elif _NAME.fullmatch(name) is None:
        problem = f"The topic name {name!r} has characters other than a-z, A-Z, 0-9, '.', '_', '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{problem}.")


def create_topic(
    image: ClusterImage,
    spec: TopicSpec,
    *,
    topic_id: bytes,
    defaults: TopicDefaults,
    start_index: int = 0,
) -> Decision[Topic]:
    """Creates a topic. `start_index` is the position in the ring of brokers at which leaders begin;
    vary it by topic."""
    _require_free_name(image, spec.name)
    if topic_id in RESERVED_IDS or image.topic_by_id(topic_id) is not None:
        raise ValueError(f"the topic id {to_text(topic_id)} is already used: generate another one")
    if spec.assignments:
        assignments = _manual_assignments(image, spec)
    else:
        assignments = _placed_assignments(image, spec, defaults, start_index)
    configs = validate_topic_configs(spec.configs)
    require_delay_target(image, spec.name, configs, NO_CONFIGS)
    topic = Topic(
        spec.name,
        topic_id,
        tuple(_new_partition(image, replicas) for replicas in assignments),
        MappingProxyType(configs) if configs else NO_CONFIGS,
    )
    stored, changes = creation(topic)
    return Decision(changes, stored)


def delete_topic(
    image: ClusterImage, *, name: str | None = None, topic_id: bytes | None = None
) -> Decision[Topic]:
    """Deletes a topic by name or by id. Once this is committed, the name can be used again and the
    id is invalid."""
    has_id = topic_id is not None and topic_id != ZERO_ID
    if (name is not None) == has_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Name the topic to delete by its name or by its id, not by both.",
        )
    if name is not None:
        topic = image.require_topic(name)
    else:
        assert topic_id is not None
        topic = image.require_topic_id(topic_id)
    return Decision(deletion(image, topic), topic)


def create_partitions(
    image: ClusterImage,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
) -> Decision[Topic]:
    """Grows the topic to `count` partitions. `assignments` are the replicas of the new ones."""
    topic = image.require_topic(name)
    current = len(topic.partitions)
    if count <= current:
        problem = (
            f"Topic '{name}' already has {current} partition(s) and cannot be set to {count}: "
            "partitions can only be added."
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, problem)
    _require_partition_count(count)
    # Use the assigned replicas; not all of them need to be in sync at the moment.
    replication_factor = len(topic.partitions[0].replicas)
    if assignments is None:
        new = _continued(image, topic, count - current, replication_factor)
    else:
        new = _extra_assignments(image, assignments, count - current, replication_factor)
    grown = replace(
        topic,
        partitions=topic.partitions + tuple(_new_partition(image, replicas) for replicas in new),
    )
    made = alteration(image, topic, grown)
    return Decision(made.changes, divided(grown), made.guards)


def _require_free_name(image: ClusterImage, name: str) -> None:
    validate_topic_name(name)
    if name in image.topics:
        raise KafkaError(
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"Topic '{name}' already exists: use it, or choose another name.",
        )
    other = image.colliding_topic(name)
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with the existing topic '{other}': names must not differ "
            "only in '.' and '_', because they would share their metrics.",
        )


def _require_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic cannot have {count} partitions: ask for 1 to {PARTITIONS_MAX}, or for -1 "
            "to use the default.",
        )


def _require_replication_factor(image: ClusterImage, count: int, replication_factor: int) -> None:
    """Checks the replication factor of `count` new partitions."""
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor cannot be {replication_factor}: ask for 1 or more, or for "
            "-1 to use the default.",
        )
    if count * replication_factor > NEW_REPLICAS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{count} partitions with {replication_factor} replicas each are more than the "
            f"{NEW_REPLICAS_MAX} replicas that can be created in one step: ask for fewer "
            "partitions, and add the others later.",
        )
    taking = len(_racks(image))
    if replication_factor > taking:
        closed = len(image.brokers) - taking
        drained = f", and {closed} more are cordoned" if closed else ""
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor {replication_factor} cannot be met: {taking} broker(s) can "
            f"take replicas{drained}. Ask for fewer replicas or start more brokers.",
        )


def _placed_assignments(
    image: ClusterImage, spec: TopicSpec, defaults: TopicDefaults, start_index: int
) -> Sequence[tuple[int, ...]]:
    partitions, replication_factor = spec.num_partitions, spec.replication_factor
    if partitions == USE_DEFAULT:
        partitions = defaults.num_partitions
    if replication_factor == USE_DEFAULT:
        replication_factor = defaults.replication_factor
    _require_partition_count(partitions)
    _require_replication_factor(image, partitions, replication_factor)
    return place_replicas(_racks(image), partitions, replication_factor, start_index)


def _manual_assignments(image: ClusterImage, spec: TopicSpec) -> Sequence[tuple[int, ...]]:
    if spec.num_partitions != USE_DEFAULT or spec.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The request assigns the replicas itself: leave the number of partitions and the "
            "replication factor at -1.",
        )
    _require_partition_count(len(spec.assignments))
    by_partition = dict(spec.assignments)
    if sorted(by_partition) != list(range(len(spec.assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The assignments are for the partitions {sorted(p for p, _ in spec.assignments)}: "
            "assign every partition from 0 on once, without gaps.",
        )
    replication_factor = len(by_partition[0])
    return [
        _checked_replicas(image, partition, by_partition[partition], replication_factor)
        for partition in range(len(by_partition))
    ]


def _extra_assignments(
    image: ClusterImage,
    assignments: Sequence[Sequence[int]],
    count: int,
    replication_factor: int,
) -> Sequence[tuple[int, ...]]:
    if len(assignments) != count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count} partition(s) would be added, but {len(assignments)} are assigned: assign "
            "exactly the new ones.",
        )
    return [
        _checked_replicas(image, index, replicas, replication_factor)
        for index, replicas in enumerate(assignments)
    ]


def _checked_replicas(
    image: ClusterImage, index: int, replicas: Sequence[int], replication_factor: int
) -> tuple[int, ...]:
    problem = None
    unknown = [each for each in replicas if each not in image.brokers]
    if not replicas:
        problem = "has no replicas: name at least one broker"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice in {list(replicas)}"
    elif unknown:
        problem = (
            f"names the broker(s) {unknown}, which are not registered; the registered brokers "
            f"are {sorted(image.brokers)}"
        )
    elif len(replicas) != replication_factor:
        problem = (
            f"has {len(replicas)} replica(s), but the others have {replication_factor}: give all "
            "partitions the same number"
        )
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Assignment number {index} {problem}."
        )
    return tuple(replicas)


def _continued(
    image: ClusterImage, topic: Topic, count: int, replication_factor: int
) -> Sequence[tuple[int, ...]]:
    """Continues round the ring from the broker of partition 0, if that broker is still
    registered."""
    _require_replication_factor(image, count, replication_factor)
    racks = _racks(image)
    brokers = ring(racks)
    first = topic.partitions[0].replicas[0]
    start_index = brokers.index(first) if first in brokers else 0
    return place_replicas(racks, count, replication_factor, start_index, len(topic.partitions))


def _racks(image: ClusterImage) -> dict[int, str | None]:
    """Returns the brokers on which new partitions are placed, unless a request names others."""
    cordoned = image.cordoned
    return {each: broker.rack for each, broker in image.brokers.items() if each not in cordoned}


def _new_partition(image: ClusterImage, replicas: tuple[int, ...]) -> Partition:
    epochs = tuple(image.brokers[each].broker_epoch for each in replicas)
    return Partition(replicas, replicas, (), replicas[0], 0, 0, epochs[0], epochs)
