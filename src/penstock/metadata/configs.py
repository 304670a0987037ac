"""Effective configs: the value that applies to a topic or a broker, and its source.

The layers of a topic config, in order of precedence: the topic's own override, the broker's dynamic
configs, the dynamic defaults of all brokers, the broker's config file, the default in the table.
Below the topic, the config is looked up by its broker names (`log.retention.ms`, then `.minutes`,
then `.hours`).

`BrokerConfigs` holds one broker's layers and is immutable: create a new one when they change. The
values that topics inherit are computed once, so a topic without overrides costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from penstock.metadata.broker_configs import BROKER_CONFIGS, broker_definition
from penstock.metadata.config_types import (
    ConfigSource,
    ConfigType,
    Definition,
    Synonym,
    Value,
    to_text,
)
from penstock.metadata.topic_configs import TOPIC_CONFIGS
from penstock.wire.errors import ErrorCode, KafkaError

__all__ = [
    "BROKER_CONFIGS",
    "TOPIC_CONFIGS",
    "BrokerConfigs",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConfigValue",
    "Definition",
    "TopicSettings",
    "effective",
    "validate_broker_configs",
    "validate_topic_configs",
]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A possible source of a value. The first one in a list is where the value comes from."""

    name: str
    text: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """An effective value. `text` is what DescribeConfigs shows: None for values that are unset or
    secret."""

    definition: Definition
    value: Value
    text: str | None
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def config_type(self) -> ConfigType:
        return self.definition.type

    @property
    def read_only(self) -> bool:
        return not self.definition.dynamic

    @property
    def is_sensitive(self) -> bool:
        return self.definition.sensitive

    @property
    def documentation(self) -> str:
        return self.definition.documentation


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The effective topic configs, typed. Each field is a config's name with underscores."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    durability: str
    encryption: str
    errors_deadletterqueue_group_enable: bool
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    penstock_dedup_window_ms: int
    penstock_delay_target: str
    penstock_priority_levels: int
    penstock_queue_length_max: int
    penstock_queue_length_policy: str
    penstock_timed_records: bool
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy


_SETTINGS: Final = tuple((each.name, each.name.replace("_", ".")) for each in fields(TopicSettings))


class BrokerConfigs:
    """The config layers of one broker. Raises `ValueError` for an invalid name or value.

    An unknown dynamic config is ignored, because a newer version may have stored it.
    """

    def __init__(
        self,
        static: Mapping[str, str] = _NONE,
        dynamic_default: Mapping[str, str] = _NONE,
        dynamic: Mapping[str, str] = _NONE,
    ) -> None:
        layers = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, dynamic),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, dynamic_default),
            (ConfigSource.STATIC_BROKER_CONFIG, static),
        )
        self._layers: list[tuple[ConfigSource, dict[str, tuple[str, Value]]]] = []
        for source, texts in layers:
            parsed: dict[str, tuple[str, Value]] = {}
            for name, text in texts.items():
                definition = broker_definition(name)
                if definition is not None:
                    parsed[name] = (text, definition.parse(text))
                elif source is ConfigSource.STATIC_BROKER_CONFIG:
                    raise ValueError(unknown_name("broker", name, BROKER_CONFIGS))
            self._layers.append((source, parsed))

    def topic(self, overrides: Mapping[str, str]) -> Mapping[str, ConfigValue]:
        """Returns every topic config as it applies to a topic with these overrides."""
        if not overrides:
            return self._inherited
        values = dict(self._inherited)
        for name, text in overrides.items():
            # A name that only a newer version knows stays in the store and is ignored here.
            if name in TOPIC_CONFIGS:
                values[name] = self._overridden(TOPIC_CONFIGS[name], text)
        return MappingProxyType(values)

    def inherited(self, name: str) -> ConfigValue | None:
        """Returns one topic config as it applies to a topic without overrides. This is cheaper than
        `topic`, which returns all of them."""
        definition = TOPIC_CONFIGS.get(name)
        return None if definition is None else self._inherit(definition)

    def settings(self, overrides: Mapping[str, str]) -> TopicSettings:
        return _settings(self.topic(overrides)) if overrides else self._inherited_settings

    def broker(self) -> Mapping[str, ConfigValue]:
        """Returns every broker config that applies here. Configs without effect are included only
        if they are set."""
        return self._own

    def broker_value(self, name: str) -> ConfigValue | None:
        """Returns one broker config by its name; None for a name that Kafka does not know
        either."""
        held = self._own.get(name)
        definition = broker_definition(name) if held is None else None
        return held if definition is None else _strongest(definition, [])

    def value(self, name: str) -> Value:
        return self._own[name].value

    def int_value(self, name: str) -> int:
        value = self.value(name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, not a whole number")
        return value

    def bool_value(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not true or false")
        return value

    def text_value(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not a string")
        return value

    @cached_property
    def _inherited(self) -> Mapping[str, ConfigValue]:
        return MappingProxyType({name: self._inherit(each) for name, each in TOPIC_CONFIGS.items()})

    @cached_property
    def _inherited_settings(self) -> TopicSettings:
        return _settings(self._inherited)

    @cached_property
    def _own(self) -> Mapping[str, ConfigValue]:
        definitions = dict(BROKER_CONFIGS)
        for name in sorted({name for _, layer in self._layers for name in layer}):
            definition = broker_definition(name)
            if definition is not None:
                definitions[name] = definition
        return MappingProxyType(
            {
                name: _strongest(each, list(self._candidates(each, (Synonym(name),))))
                for name, each in definitions.items()
            }
        )

    def _inherit(self, definition: Definition) -> ConfigValue:
        return _strongest(definition, list(self._candidates(definition, definition.synonyms)))

    def _overridden(self, definition: Definition, text: str) -> ConfigValue:
        value = definition.parse(text)
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        own = ConfigSynonym(definition.name, _shown(definition, text), source)
        below = self._inherited[definition.name].synonyms
        return ConfigValue(definition, value, own.text, source, (own, *below))

    def _candidates(
        self, definition: Definition, names: Sequence[Synonym]
    ) -> Iterator[tuple[ConfigSynonym, Value]]:
        for source, layer in self._layers:
            for synonym in names:
                if synonym.name in layer:
                    text, value = layer[synonym.name]
                    found = ConfigSynonym(synonym.name, _shown(definition, text), source)
                    yield found, synonym.scaled(value)
        # The last name is the one that has the default: log.retention.hours=168.
        if names and definition.default is not None:
            text_or_none = BROKER_CONFIGS[names[-1].name].default_text()
            found = ConfigSynonym(
                names[-1].name, _shown(definition, text_or_none), ConfigSource.DEFAULT_CONFIG
            )
            yield found, definition.default


def effective(overrides: Mapping[str, str], broker: BrokerConfigs) -> Mapping[str, ConfigValue]:
    """Returns every topic config as it applies to a topic with these overrides on this broker."""
    return broker.topic(overrides)


def validate_topic_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Returns the overrides in the form in which they are stored. Raises `KafkaError` if one is
    invalid, alone or in combination."""
    values = _validated("topic", configs, TOPIC_CONFIGS.get)
    least, most = (
        TOPIC_CONFIGS[name].parse(values[name]) if name in values else TOPIC_CONFIGS[name].default
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms is {least}, but max.compaction.lag.ms is {most}: the first "
            "must not be above the second.",
        )
    return values


def validate_broker_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Returns dynamic broker configs in the form in which they are stored. Refuses those that only
    the config file can set."""
    values = _validated("broker", configs, broker_definition)
    for name in values:
        require_dynamic(name)
    return values


def require_dynamic(name: str) -> None:
    definition = broker_definition(name)
    if definition is not None and not definition.dynamic:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name} cannot be changed while the broker runs: set it in the broker's config "
            "file and restart the broker.",
        )


def unknown_name(kind: str, name: str, table: Mapping[str, Definition]) -> str:
    nearest = get_close_matches(name, table, n=1)
    hint = f" did you mean {nearest[0]}?" if nearest else ""
    return f"There is no {kind} config '{name}':{hint} The known ones are: {', '.join(table)}."


def _validated(
    kind: str,
    configs: Sequence[tuple[str, str | None]],
    find: Callable[[str], Definition | None],
) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, text in configs:
        definition = find(name)
        if definition is None:
            table = TOPIC_CONFIGS if kind == "topic" else BROKER_CONFIGS
            raise KafkaError(ErrorCode.INVALID_CONFIG, unknown_name(kind, name, table))
        if name in values:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"The request sets {name} twice: name it only once."
            )
        if text is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} has no value: give one, or leave it out to use the default.",
            )
        try:
            definition.parse(text)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{error}.") from None
        values[name] = text.strip()
    return values


def _strongest(
    definition: Definition, candidates: list[tuple[ConfigSynonym, Value]]
) -> ConfigValue:
    if not candidates:
        default = definition.default
        text = _shown(definition, to_text(default))
        return ConfigValue(definition, default, text, ConfigSource.DEFAULT_CONFIG, ())
    synonyms = tuple(synonym for synonym, _ in candidates)
    first, value = candidates[0]
    text = _shown(definition, to_text(value))
    return ConfigValue(definition, value, text, first.source, synonyms)


def _shown(definition: Definition, text: str | None) -> str | None:
    return None if definition.sensitive else text


def _settings(values: Mapping[str, ConfigValue]) -> TopicSettings:
    typed: dict[str, Any] = {field: values[name].value for field, name in _SETTINGS}
    return TopicSettings(**typed)
