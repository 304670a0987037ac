"""The settings of consumer groups in the config file, and their bounds."""

from __future__ import annotations

import pytest

from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.coordinators.coordinator_settings import (
    consumer_group_config,
    group_settings,
)
from penstock.groups.config import MigrationPolicy
from penstock.metadata.configs import BrokerConfigs


@pytest.mark.parametrize(
    ("kafka", "words"),
    [
        ({"group.consumer.session.timeout.ms": "30000"}, "between 45000 and 60000"),
        ({"group.consumer.session.timeout.ms": "60001"}, "between 45000 and 60000"),
        ({"group.consumer.heartbeat.interval.ms": "100"}, "between 5000 and 15000"),
        ({"group.consumer.assignment.interval.ms": "15001"}, "between 0 and 15000"),
        ({"group.consumer.min.session.timeout.ms": "70000"}, "set the first to the second or less"),
        (
            {
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.session.timeout.ms": "5000",
            },
            "less than the timeout",
        ),
        ({"group.consumer.migration.policy": "sideways"}, "bidirectional"),
    ],
)
def test_a_broker_with_impossible_settings_does_not_start(
    kafka: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig(broker_id=1, kafka=tuple(kafka.items()))


def test_the_bounds_can_be_changed() -> None:
    kafka = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": "50",
    }
    config = BrokerConfig(broker_id=1, kafka=tuple(kafka.items()))
    settings = consumer_group_config(BrokerConfigs(dict(config.kafka))).settings
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (1_000, 50)


def test_the_settings_reach_the_coordinator() -> None:
    config = consumer_group_config(BrokerConfigs({"group.consumer.migration.policy": "upgrade"}))
    assert config.migration_policy is MigrationPolicy.UPGRADE
    assert consumer_group_config(BrokerConfigs()).migration_policy is MigrationPolicy.BIDIRECTIONAL


def test_a_value_that_was_changed_while_the_broker_ran_keeps_the_bounds() -> None:
    changed = BrokerConfigs({}, {"group.consumer.assignment.interval.ms": "99000"})
    assert consumer_group_config(changed).settings.assignment_interval_ms == 15_000


def test_a_stored_value_beyond_the_bounds_counts_as_the_nearest() -> None:
    """It was stored before the bounds changed."""
    config = consumer_group_config(BrokerConfigs())
    low = group_settings(config, {"consumer.session.timeout.ms": "1000"})
    assert low.session_timeout_ms == 45_000
    high = group_settings(config, {"consumer.heartbeat.interval.ms": "20000"})
    assert high.heartbeat_interval_ms == 15_000
