"""The settings of the coordinators, from the settings of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.groups.config import ConsumerGroupConfig, ConsumerGroupSettings, GroupConfig
from penstock.groups.consumer.assignors import ASSIGNORS
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.group_configs import (
    ASSIGNMENT_INTERVAL,
    GROUP_CONFIGS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
)
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
    return ConsumerGroupConfig(
        settings=ConsumerGroupSettings(
            configs.int_value("group.consumer.session.timeout.ms"),
            configs.int_value("group.consumer.heartbeat.interval.ms"),
            configs.int_value("group.consumer.assignment.interval.ms"),
        ),
        group_size_max=configs.int_value("group.consumer.max.size"),
        assignors=tuple(assignors or ASSIGNORS),
        regex_refresh_interval_ms=configs.int_value("group.consumer.regex.refresh.interval.ms"),
    )


def group_settings(
    config: ConsumerGroupConfig, overrides: Mapping[str, str]
) -> ConsumerGroupSettings:
    """Returns the settings of a consumer group with these overrides."""
    settings = config.settings
    for name, field in _GROUP_FIELDS.items():
        value = None if name not in overrides else GROUP_CONFIGS[name].parse(overrides[name])
        if isinstance(value, int):
            settings = replace(settings, **{field: value})
    return settings


def serves_consumer_groups(configs: BrokerConfigs) -> bool:
    """Returns whether this broker serves the new protocol of consumer groups."""
    return configs.value("group.consumer.preview.enable") is True


def transaction_config(configs: BrokerConfigs) -> TransactionConfig:
    return TransactionConfig(
        timeout_max_ms=configs.int_value("transaction.max.timeout.ms"),
        id_expiration_ms=configs.int_value("transactional.id.expiration.ms"),
    )
