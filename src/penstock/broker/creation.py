"""Topics that come into being by being asked for."""

from __future__ import annotations

import logging

from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.services import Services
from penstock.metadata.topic_ids import new_id
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.txns.formats import TOPIC as TRANSACTIONS_TOPIC
from penstock.wire.errors import ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"

_log = logging.getLogger(__name__)


def topic_defaults(services: Services) -> TopicDefaults:
    configs = services.configs()
    return TopicDefaults(
        num_partitions=configs.int_value("num.partitions"),
        replication_factor=configs.int_value("default.replication.factor"),
    )


def create_missing(services: Services, name: str) -> None:
    """Have a topic created with the broker's defaults; nobody waits, and twice is once."""
    if name in services.creating:
        return
    services.creating.add(name)
    services.spawn(_create(services, TopicSpec(name)))


def create_offsets_topic(services: Services) -> None:
    """The topic that holds the groups' offsets, made when the first group needs it."""
    _create_compacted(services, OFFSETS_TOPIC, "offsets.topic", ("compression.type", "producer"))


def create_transactions_topic(services: Services) -> None:
    """The topic of the transaction coordinators, made when the first transaction needs it.

    One replica may always be missing, whatever `transaction.state.log.min.isr` says.
    """
    insync = services.configs().int_value("transaction.state.log.min.isr")
    replicas = _replicas_for(services, "transaction.state.log")
    _create_compacted(
        services,
        TRANSACTIONS_TOPIC,
        "transaction.state.log",
        ("compression.type", "uncompressed"),
        ("min.insync.replicas", str(max(1, min(insync, replicas - 1)))),
        ("unclean.leader.election.enable", "false"),
    )


def _replicas_for(services: Services, prefix: str) -> int:
    wanted = services.configs().int_value(f"{prefix}.replication.factor")
    image = services.image
    return max(1, min(wanted, len(image.living.keys() - image.cordoned)))


def _create_compacted(services: Services, name: str, prefix: str, *more: tuple[str, str]) -> None:
    if name in services.creating:
        return
    services.creating.add(name)
    configs = services.configs()
    spec = TopicSpec(
        name,
        configs.int_value(f"{prefix}.num.partitions"),
        _replicas_for(services, prefix),
        configs=(
            ("cleanup.policy", "compact"),
            ("segment.bytes", str(configs.int_value(f"{prefix}.segment.bytes"))),
            *more,
        ),
    )
    services.spawn(_create(services, spec))


async def _create(services: Services, spec: TopicSpec) -> None:
    try:
        topic_id = new_id(services.env.random.bytes)
        await services.controller.decide(
            lambda image: create_topic(
                image, spec, topic_id=topic_id, defaults=topic_defaults(services)
            )
        )
        await services.replicas.settled()
    except EXPECTED as error:
        if code_of(error) != ErrorCode.TOPIC_ALREADY_EXISTS:
            _log.warning("topic %s could not be created: %s", spec.name, error)
    finally:
        services.creating.discard(spec.name)
