"""Decides AlterConfigs and IncrementalAlterConfigs requests.

The first replaces all overrides of a resource, the second edits single ones. Both result in a
complete set of overrides that is validated as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from penstock.metadata.broker_configs import DEFAULT_DURABILITY, broker_definition
from penstock.metadata.config_types import ConfigType, split_list, to_text
from penstock.metadata.config_values import encode_configs
from penstock.metadata.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfigs,
    ConfigValue,
    Definition,
    require_dynamic,
    unknown_name,
    validate_broker_configs,
    validate_topic_configs,
)
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.delay_topics import require_delay_target
from penstock.metadata.group_configs import GROUP_CONFIGS, alter_group, group_values
from penstock.metadata.image import ClusterImage
from penstock.metadata.keys import BROKER_ID_MAX, broker_config_key
from penstock.metadata.topic_keys import alteration
from penstock.wire.errors import ErrorCode, KafkaError

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


NO_CONFIGS: Final[Mapping[ResourceType, str]] = MappingProxyType(
    {
        ResourceType.CLIENT_METRICS: "Penstock collects no client metrics",
    }
)
"""Resources that tools may ask about but that have no configs here, and why."""


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_DELETE: Final = ConfigOperation.DELETE


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One edit of a config. `operation` is the number from the request. APPEND and SUBTRACT are for
    lists."""

    name: str
    operation: int
    value: str | None


def alter_configs(
    image: ClusterImage,
    resource_type: int,
    resource_name: str,
    configs: Sequence[tuple[str, str | None]],
    static: Mapping[str, str] = _NONE,
) -> Decision[Mapping[str, str]]:
    """Replaces all overrides of a resource. The result is the new overrides. A broker named ""
    means all brokers. `static` are the broker's own configs."""
    _require_values([name for name, text in configs if text is None])
    kind = _resource(resource_type, [name for name, _ in configs])
    if kind is ResourceType.TOPIC:
        return _write_topic(image, resource_name, configs)
    if kind is ResourceType.GROUP:
        broker = BrokerConfigs(static, image.default_broker_configs)
        return alter_group(image, resource_name, configs, broker)
    if kind in NO_CONFIGS:
        return Decision((), _NONE)
    return _write_broker(image, resource_name, configs)


def incremental_alter_configs(
    image: ClusterImage,
    resource_type: int,
    resource_name: str,
    edits: Sequence[ConfigEdit],
    static: Mapping[str, str] = _NONE,
) -> Decision[Mapping[str, str]]:
    """Edits single overrides. The result is all overrides afterwards.

    APPEND and SUBTRACT on a list without an override start from the inherited value. `static` are
    the broker's own configs.
    """
    kind = _resource(resource_type, [edit.name for edit in edits if edit.operation != _DELETE])
    if kind in NO_CONFIGS:
        return Decision((), _NONE)
    inherited: Callable[[str], ConfigValue | None]
    find: Callable[[str], Definition | None]
    if kind is ResourceType.TOPIC:
        overrides = dict(image.require_topic(resource_name).configs)
        inherited = BrokerConfigs(static, image.default_broker_configs).inherited
        table, find = TOPIC_CONFIGS, TOPIC_CONFIGS.get
    elif kind is ResourceType.GROUP:
        overrides = dict(image.group_configs.get(resource_name, _NONE))
        broker = BrokerConfigs(static, image.default_broker_configs)
        inherited = group_values(broker, _NONE).get
        table, find = GROUP_CONFIGS, GROUP_CONFIGS.get
    else:
        broker_id = _broker_id(resource_name)
        overrides = dict(_broker_overrides(image, broker_id))
        below = image.default_broker_configs if broker_id is not None else _NONE
        inherited = BrokerConfigs(static, below).broker_value
        table, find = BROKER_CONFIGS, broker_definition
    names = [edit.name for edit in edits]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The request changes {', '.join(twice)} more than once: name each only once.",
        )
    _require_values(
        [edit.name for edit in edits if edit.value is None and edit.operation != _DELETE]
    )
    for edit in edits:
        if edit.operation == _DELETE:
            # Accept any name: an override that does not exist is already deleted.
            overrides.pop(edit.name, None)
            continue
        definition, held = find(edit.name), inherited(edit.name)
        if definition is None or held is None:
            kind_name = kind.name.lower()
            raise KafkaError(ErrorCode.INVALID_CONFIG, unknown_name(kind_name, edit.name, table))
        if kind is ResourceType.BROKER:
            require_dynamic(edit.name)
        current = overrides.get(edit.name, to_text(held.value) or "")
        overrides[edit.name] = _edited(definition, edit, current)
    return alter_configs(image, resource_type, resource_name, list(overrides.items()), static)


def _require_values(without: Sequence[str]) -> None:
    """Refuses null values. As in Kafka, null is an invalid request, whatever the config is."""
    if without:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{', '.join(without)}: there is no value. Give one, or delete the override to use "
            "the default.",
        )


def _edited(definition: Definition, edit: ConfigEdit, current: str) -> str:
    """Returns the override after the edit."""
    try:
        operation = ConfigOperation(edit.operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{edit.operation} is not an operation on {edit.name}: use 0 (set), 1 (delete), 2 "
            "(append) or 3 (subtract).",
        ) from None
    given_text = edit.value or ""
    if operation is ConfigOperation.SET:
        return given_text
    if definition.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{edit.name} is not a list, so values cannot be appended or subtracted: set it "
            "instead.",
        )
    parts, given = split_list(current), split_list(given_text)
    if operation is ConfigOperation.APPEND:
        return ",".join((*parts, *(part for part in given if part not in parts)))
    return ",".join(part for part in parts if part not in given)


def _write_topic(
    image: ClusterImage, name: str, configs: Sequence[tuple[str, str | None]]
) -> Decision[Mapping[str, str]]:
    topic = image.require_topic(name)
    overrides = MappingProxyType(validate_topic_configs(configs))
    if overrides == topic.configs:
        return Decision((), overrides)
    require_delay_target(image, name, overrides, topic.configs)
    after = replace(topic, configs=overrides)
    if overrides.get("durability") != topic.configs.get("durability"):
        # Store the switch in the same commit: records counted before it may not have been synced
        # (`isr`).
        after = replace(after, synced_from=-1)
    made = alteration(image, topic, after)
    return Decision(made.changes, overrides, made.guards)


def _write_broker(
    image: ClusterImage, name: str, configs: Sequence[tuple[str, str | None]]
) -> Decision[Mapping[str, str]]:
    broker_id = _broker_id(name)
    overrides = MappingProxyType(validate_broker_configs(configs))
    before = _broker_overrides(image, broker_id)
    if overrides == before:
        return Decision((), overrides)
    synced_from = 0
    if broker_id is None:
        is_switch = overrides.get(DEFAULT_DURABILITY) != before.get(DEFAULT_DURABILITY)
        synced_from = -1 if is_switch else image.default_synced_from
    elif overrides.get(DEFAULT_DURABILITY) not in (None, before.get(DEFAULT_DURABILITY)):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{DEFAULT_DURABILITY} must be the same on all brokers, because elections depend on "
            "it. Set it for all brokers, with an empty broker name, or set durability on single "
            "topics.",
        )
    key = broker_config_key(broker_id)
    # Keep the revision of the switch when the last override is removed.
    value = encode_configs(overrides, synced_from) if overrides or synced_from else None
    return Decision((Change(key, value, image.revision_of(key)),), overrides)


def _broker_overrides(image: ClusterImage, broker_id: int | None) -> Mapping[str, str]:
    if broker_id is None:
        return image.default_broker_configs
    return image.broker_configs.get(broker_id, _NONE)


def _broker_id(name: str) -> int | None:
    if not name:
        return None
    if not (name.isascii() and name.isdigit()) or len(name) > 10 or int(name) > BROKER_ID_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"'{name}' is not a broker id: give the number of a broker, or an empty name for all "
            "brokers.",
        )
    return int(name)


def _resource(resource_type: int, names: Sequence[str]) -> ResourceType:
    """Returns the type of the resource. Raises if configs of these names cannot be set on it."""
    try:
        kind = ResourceType(resource_type)
    except ValueError:
        kind = None
    if kind is None or kind is ResourceType.BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Configs of resource type {resource_type} cannot be changed with this request: use "
            "2 for topics or 4 for brokers.",
        )
    if kind in NO_CONFIGS and names:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{', '.join(names)} cannot be set: {NO_CONFIGS[kind]}."
        )
    return kind
