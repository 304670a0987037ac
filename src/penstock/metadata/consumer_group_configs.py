"""Settings of consumer groups of the new protocol (KIP-848), under Kafka's names. They come from
the config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import INT_MAX, ConfigType, Definition, at_least

_INT = ConfigType.INT
_LIST = ConfigType.LIST

CONSUMER_GROUP_CONFIGS: Final = (
    # A name that Kafka does not have: a value that was copied from Kafka must not switch it on.
    Definition(
        "group.consumer.preview.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether brokers also serve consumer groups of the new protocol (KIP-848). It is not "
        "complete yet: a group cannot change its protocol while it has members. "
        "group.coordinator.rebalance.protocols has no effect before it is complete.",
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
        "At least this long passes between two assignments of a consumer group. A change while "
        "the broker runs is used after its next start.",
        at_least(0),
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
        "The assignors that members of consumer groups can choose: uniform, range. The first is "
        "the default. Others, such as classes of Java, are ignored; if none is left, both are "
        "offered.",
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
