"""Settings of consumer groups of the new protocol (KIP-848), under Kafka's names. They come from
the config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import INT_MAX, ConfigType, Definition, any_of, at_least

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_INT = ConfigType.INT
_LIST = ConfigType.LIST

CONSUMER_GROUP_CONFIGS: Final = (
    Definition(
        "group.coordinator.rebalance.protocols",
        _LIST,
        (CLASSIC,),
        "The protocols that groups may use. With consumer, brokers also serve the new protocol "
        "(KIP-848). It is not complete yet: a group cannot change its protocol while it has "
        "members.",
        any_of(CLASSIC, CONSUMER),
        dynamic=False,
    ),
    Definition(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "How long a member of a consumer group may stay away before it is removed.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of consumer groups send heartbeats.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.consumer.assignment.interval.ms",
        _INT,
        1_000,
        "At least this long passes between two assignments of a consumer group.",
        at_least(0),
        dynamic=False,
    ),
    Definition(
        "group.consumer.max.size",
        _INT,
        INT_MAX,
        "The most members that a consumer group may have.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.consumer.assignors",
        _LIST,
        ("uniform", "range"),
        "The assignors that members of consumer groups can choose. The first is the default. If "
        "the list is empty, both are offered.",
        any_of("uniform", "range"),
        dynamic=False,
    ),
    Definition(
        "group.consumer.regex.refresh.interval.ms",
        _INT,
        600_000,
        "How often the topics that match the regular expressions of a consumer group are looked "
        "for, if no topic was created.",
        at_least(10_000),
        dynamic=False,
    ),
)
