"""The settings of the coordinators, from the settings of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupSettings,
    GroupConfig,
    MigrationPolicy,
)
from penstock.groups.consumer.assignors import ASSIGNORS
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.group_configs import (
    ASSIGNMENT_INTERVAL,
    GROUP_CONFIGS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    group_bounds,
)
from penstock.shares.state_shard import StateConfig
from penstock.txns.config import TransactionConfig

_GROUP_FIELDS: Final = {
    SESSION_TIMEOUT: "session_timeout_ms",
    HEARTBEAT_INTERVAL: "heartbeat_interval_ms",
    ASSIGNMENT_INTERVAL: "assignment_interval_ms",
}


def group_config(configs: BrokerConfigs) -> GroupConfig:
    return GroupConfig(
        initial_rebalance_delay_ms=configs.int_value("group.initial.rebalance.delay.ms"),
        session_timeout_min_ms=configs.int_value("group.min.session.timeout.ms"),
        session_timeout_max_ms=configs.int_value("group.max.session.timeout.ms"),
        group_size_max=configs.int_value("group.max.size"),
        append_timeout_ms=configs.int_value("offsets.commit.timeout.ms"),
        offset_metadata_max=configs.int_value("offset.metadata.max.bytes"),
        offsets_retention_ms=configs.int_value("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=configs.int_value(
            "offsets.retention.check.interval.ms"
        ),
    )


def consumer_group_config(configs: BrokerConfigs) -> ConsumerGroupConfig:
    named = configs.value("group.consumer.assignors")
    assignors = [name for name in named if name in ASSIGNORS] if isinstance(named, tuple) else []
    bounds = {field: group_bounds(configs, name) for name, field in _GROUP_FIELDS.items()}
    own = {
        field: _within(bounds[field], configs.int_value(f"group.{name}"))
        for name, field in _GROUP_FIELDS.items()
    }
    return ConsumerGroupConfig(
        settings=ConsumerGroupSettings(**own),
        group_size_max=configs.int_value("group.consumer.max.size"),
        assignors=tuple(assignors or ASSIGNORS),
        regex_refresh_interval_ms=configs.int_value("group.consumer.regex.refresh.interval.ms"),
        migration_policy=MigrationPolicy(configs.text_value("group.consumer.migration.policy")),
        bounds=bounds,
    )


def _within(bounds: tuple[int, int], value: int) -> int:
    """Returns the nearest value that is allowed."""
    low, high = bounds
    return min(max(value, low), high)


def group_settings(
    config: ConsumerGroupConfig, overrides: Mapping[str, str]
) -> ConsumerGroupSettings:
    """Returns the settings of a consumer group with these overrides."""
    settings = config.settings
    for name, field in _GROUP_FIELDS.items():
        value = None if name not in overrides else GROUP_CONFIGS[name].parse(overrides[name])
        if isinstance(value, int):
            allowed = _within(config.bounds.get(field, (value, value)), value)
            settings = replace(settings, **{field: allowed})
    return settings


def serves_consumer_groups(configs: BrokerConfigs) -> bool:
    """Returns whether this broker serves the new protocol of consumer groups."""
    protocols = configs.value("group.coordinator.rebalance.protocols")
    return isinstance(protocols, tuple) and "consumer" in protocols


def share_state_config(configs: BrokerConfigs) -> StateConfig:
    return StateConfig(
        snapshot_after=configs.int_value("share.coordinator.snapshot.update.records.per.snapshot"),
        append_timeout_ms=configs.int_value("share.coordinator.write.timeout.ms"),
    )


def serves_share_groups(configs: BrokerConfigs) -> bool:
    """Returns whether this broker serves share groups."""
    return configs.bool_value("group.share.enable")


def transaction_config(configs: BrokerConfigs) -> TransactionConfig:
    return TransactionConfig(
        timeout_max_ms=configs.int_value("transaction.max.timeout.ms"),
        id_expiration_ms=configs.int_value("transactional.id.expiration.ms"),
    )
