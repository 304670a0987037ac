"""Configs of single consumer groups, under Kafka's names (resource type GROUP).

A group without its own value has that of the broker: `group.consumer.session.timeout.ms` for
`consumer.session.timeout.ms`. The overrides are in the metadata store, and take effect with the
next heartbeat. Groups of the classic protocol do not use them: there, members choose.
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
from penstock.wire.errors import ErrorCode, KafkaError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
_ID_CHARS_MAX: Final = 1_000


def _of_group(name: str) -> Definition:
    return replace(BROKER_CONFIGS[f"group.{name}"], name=name, dynamic=True)


GROUP_CONFIGS: Final[Mapping[str, Definition]] = MappingProxyType(
    {name: _of_group(name) for name in (ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT)}
)


def group_config_key(group_id: str) -> str:
    return GROUP_CONFIGS_PREFIX + quote(group_id, safe="")


def group_values(broker: BrokerConfigs, overrides: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    """Returns every config as it applies to a group with these overrides."""
    return {name: _value(broker, each, overrides) for name, each in GROUP_CONFIGS.items()}


def _value(
    broker: BrokerConfigs, definition: Definition, overrides: Mapping[str, str]
) -> ConfigValue:
    below = broker.broker()[f"group.{definition.name}"]
    text = overrides.get(definition.name)
    if text is None:
        return replace(below, definition=definition)
    source = ConfigSource.DYNAMIC_GROUP_CONFIG
    own = ConfigSynonym(definition.name, text, source)
    return ConfigValue(definition, definition.parse(text), text, source, (own, *below.synonyms))


def alter_group(
    image: ClusterImage, group_id: str, configs: Sequence[tuple[str, str | None]]
) -> Decision[Mapping[str, str]]:
    """Replaces all overrides of a group. The group need not exist yet."""
    if not group_id or len(group_id) > _ID_CHARS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The group id is empty or too long: give one of up to {_ID_CHARS_MAX} characters.",
        )
    overrides = MappingProxyType(_validated(configs))
    if overrides == image.group_configs.get(group_id, {}):
        return Decision((), overrides)
    key = group_config_key(group_id)
    value = encode_configs(overrides) if overrides else None
    return Decision((Change(key, value, image.revision_of(key)),), overrides)


def _validated(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, text in configs:
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, unknown_name("group", name, GROUP_CONFIGS))
        try:
            definition.parse(text or "")
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{error}.") from None
        values[name] = (text or "").strip()
    return values
