"""The settings of the coordinators, from the settings of the broker."""

from __future__ import annotations

from penstock.groups.config import GroupConfig
from penstock.metadata.configs import BrokerConfigs
from penstock.txns.config import TransactionConfig


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


def transaction_config(configs: BrokerConfigs) -> TransactionConfig:
    return TransactionConfig(
        timeout_max_ms=configs.int_value("transaction.max.timeout.ms"),
        id_expiration_ms=configs.int_value("transactional.id.expiration.ms"),
    )
