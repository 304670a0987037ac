"""Creates topics automatically: topics that clients ask for, and the internal topics."""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.context import RequestContext, Services
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.metadata.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from penstock.metadata.topic_ids import new_id
from penstock.metadata.topics import TopicDefaults, TopicSpec, create_topic
from penstock.wire.errors import ErrorCode

SHARE_STATE_CONFIGS: Final = (
    ("cleanup.policy", "delete"),
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
)
"""Without these, states of share groups would be lost."""
_log = logging.getLogger(__name__)


def topic_defaults(services: Services) -> TopicDefaults:
    configs = services.configs()
    return TopicDefaults(
        num_partitions=configs.int_value("num.partitions"),
        replication_factor=configs.int_value("default.replication.factor"),
    )


def create_missing(context: RequestContext, name: str) -> None:
    """Starts the creation of a topic with the broker's defaults, and does not wait for it.

    Does nothing if the topic is being created already, or the client is over its quota: it will ask
    again."""
    services, meter = context.services, context.meter
    if name in services.creating:
        return
    partitions = topic_defaults(services).num_partitions
    if meter is not None and not meter.admit_mutations(partitions):
        return
    services.creating.add(name)
    services.spawn(_create(services, TopicSpec(name)))


def create_offsets_topic(services: Services) -> str | None:
    """Starts the creation of the topic for groups' offsets, when the first group needs it.

    The topic is created only if it can have `offsets.topic.replication.factor` replicas (KIP-115).
    If it were created with fewer, it would keep that number. Returns the reason if there are too
    few brokers, and None otherwise.
    """
    return _create_internal(
        services,
        OFFSETS_TOPIC,
        "offsets.topic",
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
    )


def create_transactions_topic(services: Services) -> str | None:
    """Starts the creation of the transaction coordinators' topic, when a transaction needs it.

    It is created with `transaction.state.log.replication.factor` replicas or not at all, and the
    result is the same as for the offsets topic. `min.insync.replicas` is always less than the
    number of replicas (but at least 1), even if `transaction.state.log.min.isr` is larger, so that
    one replica may fail.
    """
    configs = services.configs()
    insync = configs.int_value("transaction.state.log.min.isr")
    replicas = configs.int_value("transaction.state.log.replication.factor")
    return _create_internal(
        services,
        TRANSACTIONS_TOPIC,
        "transaction.state.log",
        ("cleanup.policy", "compact"),
        ("compression.type", "uncompressed"),
        ("min.insync.replicas", str(max(1, min(insync, replicas - 1)))),
        ("unclean.leader.election.enable", "false"),
    )


def create_share_state_topic(services: Services) -> str | None:
    """Starts the creation of the share coordinators' topic, when a share group needs it.

    It is created with `share.coordinator.state.topic.replication.factor` replicas or not at all,
    and `min.insync.replicas` is chosen as for transactions. Its records are kept until the share
    coordinator deletes them: compaction would remove deltas, and an age means nothing for a state.
    """
    configs = services.configs()
    insync = configs.int_value("share.coordinator.state.topic.min.isr")
    replicas = configs.int_value("share.coordinator.state.topic.replication.factor")
    return _create_internal(
        services,
        SHARE_STATE_TOPIC,
        "share.coordinator.state.topic",
        *SHARE_STATE_CONFIGS,
        ("compression.type", "uncompressed"),
        ("min.insync.replicas", str(max(1, min(insync, replicas - 1)))),
        ("unclean.leader.election.enable", "false"),
    )


def _lacks_brokers(services: Services, name: str, prefix: str) -> str | None:
    setting = f"{prefix}.replication.factor"
    wanted = services.configs().int_value(setting)
    image = services.image
    usable = len(image.living.keys() - image.cordoned)
    if usable >= wanted:
        services.short_of_brokers.discard(name)
        return None
    reason = (
        f"{name} cannot be created yet: it needs {wanted} brokers, and {usable} can host a replica "
        f"now; start more brokers, or lower {setting}"
    )
    if name not in services.short_of_brokers:
        services.short_of_brokers.add(name)
        _log.warning("%s", reason)
    return reason


def _create_internal(
    services: Services, name: str, prefix: str, *more: tuple[str, str]
) -> str | None:
    if name in services.creating:
        return None
    reason = _lacks_brokers(services, name, prefix)
    if reason is not None:
        return reason
    services.creating.add(name)
    configs = services.configs()
    spec = TopicSpec(
        name,
        configs.int_value(f"{prefix}.num.partitions"),
        configs.int_value(f"{prefix}.replication.factor"),
        configs=(
            ("segment.bytes", str(configs.int_value(f"{prefix}.segment.bytes"))),
            *more,
        ),
    )
    services.spawn(_create(services, spec))
    return None


async def _create(services: Services, spec: TopicSpec) -> None:
    try:
        topic_id = new_id(services.env.random.bytes)
        await services.controller.decide(
            lambda image: create_topic(
                image, spec, topic_id=topic_id, defaults=topic_defaults(services)
            )
        )
        await services.replicas.settled()
    except EXPECTED_ERRORS as error:
        if code_of(error) != ErrorCode.TOPIC_ALREADY_EXISTS:
            _log.warning("topic %s could not be created: %s", spec.name, error)
    finally:
        services.creating.discard(spec.name)
