"""Settings of consumer groups of the new protocol (KIP-848), under Kafka's names. They come from
the config file."""

from __future__ import annotations

from typing import Final

from penstock.metadata.config_types import (
    INT_MAX,
    ConfigType,
    Definition,
    Value,
    any_of,
    at_least,
    one_of,
)

_INT = ConfigType.INT
_LIST = ConfigType.LIST


REBALANCE_PROTOCOLS: Final = "group.coordinator.rebalance.protocols"
_known_protocols: Final = any_of("classic", "consumer", "share", "streams")


def _protocols(value: Value) -> str | None:
    if isinstance(value, tuple) and "classic" not in value:
        return "add classic: brokers cannot stop serving classic groups"
    return _known_protocols(value)


def _bounds(name: str, least: int, most: int) -> tuple[Definition, Definition]:
    each = (("min", "smallest", least), ("max", "largest", most))
    low, high = (
        Definition(
            f"group.consumer.{prefix}.{name}",
            _INT,
            default,
            f"The {word} value that group.consumer.{name}, and consumer.{name} of a group, may "
            "have.",
            at_least(0),
            dynamic=False,
        )
        for prefix, word, default in each
    )
    return low, high


CONSUMER_GROUP_CONFIGS: Final = (
    Definition(
        REBALANCE_PROTOCOLS,
        _LIST,
        ("classic", "consumer"),
        "The protocols of groups that brokers serve. classic is always one of them. Without "
        "consumer, the APIs of consumer groups of the new protocol (KIP-848) are not advertised. "
        "share and streams, which Kafka has too, change nothing: group.share.enable turns share "
        "groups on and off.",
        _protocols,
        dynamic=False,
    ),
    Definition(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "How long a member of a consumer group may send no heartbeat before it is removed.",
        at_least(1),
        dynamic=False,
    ),
    *_bounds("session.timeout.ms", 45_000, 60_000),
    Definition(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of consumer groups send heartbeats.",
        at_least(1),
        dynamic=False,
    ),
    *_bounds("heartbeat.interval.ms", 5_000, 15_000),
    Definition(
        "group.consumer.assignment.interval.ms",
        _INT,
        1_000,
        "At least this long passes between two assignments of a consumer group. A change while "
        "the broker runs is used after its next start.",
        at_least(0),
    ),
    *_bounds("assignment.interval.ms", 0, 15_000),
    Definition(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Which groups with members may change their protocol. upgrade: a classic group becomes a "
        "consumer group when the first member of the new protocol joins it. downgrade: a consumer "
        "group becomes a classic group when the last such member leaves it. bidirectional: both. "
        "disabled: none.",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        dynamic=False,
    ),
    Definition(
        "group.consumer.max.size",
        _INT,
        INT_MAX,
        "The maximum number of members of a consumer group.",
        at_least(1),
        dynamic=False,
    ),
    Definition(
        "group.consumer.assignors",
        _LIST,
        ("uniform", "range"),
        "The assignors that members of consumer groups can choose: uniform, range. The first is "
        "the default. Others, such as Java classes, are ignored; if none is left, both are "
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
