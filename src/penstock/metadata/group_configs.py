"""Configs of single consumer and share groups, under Kafka's names (resource type GROUP).

A group without its own value has that of the broker: `group.consumer.session.timeout.ms` for
`consumer.session.timeout.ms`. A few configs of share groups have no such setting, and a default
instead. The overrides are in the metadata store, and take effect with the next heartbeat or fetch.
Groups of the classic protocol do not use them: there, members choose.

Brokers set bounds for those of consumer groups, such as `group.consumer.min.session.timeout.ms`. A
value beyond them is refused; one that was stored before they changed counts as the nearest that is
allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from penstock.metadata.broker_configs import BROKER_CONFIGS
from penstock.metadata.config_types import ConfigSource, Definition
from penstock.metadata.config_values import encode_configs
from penstock.metadata.configs import BrokerConfigs, ConfigSynonym, ConfigValue, unknown_name
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import GROUP_CONFIGS_PREFIX
from penstock.metadata.share_group_configs import OF_GROUPS_ONLY
from penstock.wire.errors import ErrorCode, KafkaError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
SHARE_SESSION_TIMEOUT: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT_INTERVAL: Final = "share.assignment.interval.ms"
SHARE_RECORD_LOCK: Final = "share.record.lock.duration.ms"
SHARE_DELIVERY_LIMIT: Final = "share.delivery.count.limit"
SHARE_RECORD_LOCKS: Final = "share.partition.max.record.locks"
_ID_CHARS_MAX: Final = 1_000


def _of_group(name: str) -> Definition:
    return replace(BROKER_CONFIGS[f"group.{name}"], name=name, dynamic=True)


WITH_BOUNDS: Final = {
    ASSIGNMENT_INTERVAL: "assignment.interval.ms",
    HEARTBEAT_INTERVAL: "heartbeat.interval.ms",
    SESSION_TIMEOUT: "session.timeout.ms",
}
"""Those for which settings of brokers have a smallest and a largest value, and how these end."""
_OF_BROKERS: Final = (
    *WITH_BOUNDS,
    SHARE_ASSIGNMENT_INTERVAL,
    SHARE_DELIVERY_LIMIT,
    SHARE_HEARTBEAT_INTERVAL,
    SHARE_RECORD_LOCK,
    SHARE_RECORD_LOCKS,
    SHARE_SESSION_TIMEOUT,
)
"""Those whose default is a setting of the broker."""

GROUP_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        **{name: _of_group(name) for name in _OF_BROKERS},
        **{each.name: each for each in OF_GROUPS_ONLY},
    }
)
_TOGETHER: Final = (
    (HEARTBEAT_INTERVAL, SESSION_TIMEOUT),
    (SHARE_HEARTBEAT_INTERVAL, SHARE_SESSION_TIMEOUT),
)
"""Of two configs, the first must be below the second."""


def group_bounds(broker: BrokerConfigs, name: str) -> tuple[int, int]:
    """Returns the smallest and the largest value that one of `WITH_BOUNDS` may have."""
    own_name = WITH_BOUNDS[name]
    low = broker.int_value(f"group.consumer.min.{own_name}")
    return low, broker.int_value(f"group.consumer.max.{own_name}")


def check_bounds(broker: BrokerConfigs) -> None:
    """Raises ValueError if a broker's own values for groups are beyond its bounds."""
    for name, own_name in WITH_BOUNDS.items():
        low, high = group_bounds(broker, name)
        value = broker.int_value(f"group.{name}")
        if low > high:
            raise ValueError(
                f"group.consumer.min.{own_name} is {low}, and group.consumer.max.{own_name} is "
                f"{high}: set the first to the second or less"
            )
        if not low <= value <= high:
            raise ValueError(
                f"group.{name} is {value}: set it between {low} and {high}, or change "
                f"group.consumer.min.{own_name} or group.consumer.max.{own_name}"
            )
    for lower, upper in _TOGETHER:
        _check_heartbeats(broker.int_value(f"group.{lower}"), broker.int_value(f"group.{upper}"))


def _check_heartbeats(interval_ms: int, timeout_ms: int) -> None:
    if interval_ms >= timeout_ms:
        raise ValueError(
            f"the heartbeat interval is {interval_ms} ms and the session timeout is {timeout_ms} "
            "ms: set the interval to less than the timeout"
        )


def group_config_key(group_id: str) -> str:
    return GROUP_CONFIGS_PREFIX + quote(group_id, safe="")


def group_values(broker: BrokerConfigs, overrides: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    """Returns every config as it applies to a group with these overrides."""
    return {name: _value(broker, each, overrides) for name, each in GROUP_CONFIGS.items()}


def _value(
    broker: BrokerConfigs, definition: Definition, overrides: Mapping[str, str]
) -> ConfigValue:
    below = broker.broker().get(f"group.{definition.name}") or _default(definition)
    text = overrides.get(definition.name)
    if text is None:
        return replace(below, definition=definition)
    source = ConfigSource.DYNAMIC_GROUP_CONFIG
    own = ConfigSynonym(definition.name, text, source)
    return ConfigValue(definition, definition.parse(text), text, source, (own, *below.synonyms))


def _default(definition: Definition) -> ConfigValue:
    text, source = definition.default_text(), ConfigSource.DEFAULT_CONFIG
    own = ConfigSynonym(definition.name, text, source)
    return ConfigValue(definition, definition.default, text, source, (own,))


def alter_group(
    image: ClusterImage,
    group_id: str,
    configs: Sequence[tuple[str, str | None]],
    broker: BrokerConfigs,
) -> Decision[Mapping[str, str]]:
    """Replaces all overrides of a group. The group need not exist yet. `broker` has the bounds."""
    if not group_id or len(group_id) > _ID_CHARS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The group id is empty or too long: give one of up to {_ID_CHARS_MAX} characters.",
        )
    overrides = MappingProxyType(_validated(configs, broker))
    if overrides == image.group_configs.get(group_id, {}):
        return Decision((), overrides)
    key = group_config_key(group_id)
    value = encode_configs(overrides) if overrides else None
    return Decision((Change(key, value, image.revision_of(key)),), overrides)


def _validated(configs: Sequence[tuple[str, str | None]], broker: BrokerConfigs) -> dict[str, str]:
    values: dict[str, str] = {}
    numbers = {name: broker.int_value(f"group.{name}") for name in _OF_BROKERS}
    for name, text in configs:
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, unknown_name("group", name, GROUP_CONFIGS))
        try:
            value = definition.parse(text or "")
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{error}.") from None
        values[name] = (text or "").strip()
        if name in numbers and isinstance(value, int):
            numbers[name] = value
            _require_bounds(broker, name, value)
    for lower, upper in _TOGETHER:
        try:
            _check_heartbeats(numbers[lower], numbers[upper])
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"In this group {error}.") from None
    return values


def _require_bounds(broker: BrokerConfigs, name: str, value: int) -> None:
    if name in WITH_BOUNDS:
        low, high = group_bounds(broker, name)
        if not low <= value <= high:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{name} is {value}: set it between {low} and {high}."
            )
