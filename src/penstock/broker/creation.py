"""Topics that come into being by being asked for."""

from __future__ import annotations

import logging

from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.services import Services
from penstock.metadata.decisions import Decision
from penstock.metadata.model import Topic
from penstock.metadata.topic_ids import new_id
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.wire.errors import ErrorCode, KafkaError

OFFSETS_TOPIC = "__consumer_offsets"

_log = logging.getLogger(__name__)


def topic_defaults(services: Services) -> TopicDefaults:
    configs = services.configs()
    return TopicDefaults(
        num_partitions=configs.int_value("num.partitions"),
        replication_factor=configs.int_value("default.replication.factor"),
    )


def single_replicas(decision: Decision[Topic]) -> Decision[Topic]:
    """Refuse what would not be kept: brokers do not replicate yet, and a follower that does not
    follow could be elected empty."""
    if any(len(partition.replicas) > 1 for partition in decision.result.partitions):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "brokers do not replicate to each other yet: use a replication factor of 1",
        )
    return decision


def create_missing(services: Services, name: str) -> None:
    """Have a topic created with the broker's defaults; nobody waits, and twice is once."""
    if name in services.creating:
        return
    services.creating.add(name)
    services.spawn(_create(services, TopicSpec(name)))


def create_offsets_topic(services: Services) -> None:
    """The topic that holds the groups' offsets, made when the first group needs it."""
    if OFFSETS_TOPIC in services.creating:
        return
    services.creating.add(OFFSETS_TOPIC)
    configs = services.configs()
    spec = TopicSpec(
        OFFSETS_TOPIC,
        configs.int_value("offsets.topic.num.partitions"),
        # One replica until brokers replicate: a follower that does not follow would hold up
        # every commit. offsets.topic.replication.factor takes effect with replication.
        1,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(configs.int_value("offsets.topic.segment.bytes"))),
        ),
    )
    services.spawn(_create(services, spec))


async def _create(services: Services, spec: TopicSpec) -> None:
    try:
        topic_id = new_id(services.env.random.bytes)
        await services.controller.decide(
            lambda image: single_replicas(
                create_topic(image, spec, topic_id=topic_id, defaults=topic_defaults(services))
            )
        )
        await services.replicas.settled()
    except EXPECTED as error:
        if code_of(error) != ErrorCode.TOPIC_ALREADY_EXISTS:
            _log.warning("topic %s could not be created: %s", spec.name, error)
    finally:
        services.creating.discard(spec.name)
