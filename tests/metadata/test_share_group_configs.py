"""Configs of share groups: names, bounds, and where a group begins to read."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from penstock.metadata.config_changes import ConfigEdit, ResourceType, incremental_alter_configs
from penstock.metadata.configs import BrokerConfigs, ConfigSource
from penstock.metadata.group_configs import GROUP_CONFIGS, group_values
from penstock.shares.offset_reset import parse_reset
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster

SET = 0


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("latest", True),
        (" Earliest ", True),
        ("by_duration:PT1H", True),
        ("by_duration:P2DT3H4M5.6S", True),
        ("by_duration:p1d", True),
        ("by_duration:P99999D", True),
        ("", False),
        ("none", False),
        ("by_duration", False),
        ("by_duration:", False),
        ("by_duration:P", False),
        ("by_duration:PT", False),
        ("PT1H", False),
        ("by_duration:-PT1H", False),
        ("by_duration:P1Y", False),
        ("by_duration:1h", False),
        ("by_duration:PT1Hx", False),
    ],
)
def test_a_group_begins_where_its_config_says(text: str, is_valid: bool) -> None:
    """The check of the config accepts what the leaders of partitions can read, and no more."""
    for read in (GROUP_CONFIGS["share.auto.offset.reset"].parse, parse_reset):
        with nullcontext() if is_valid else pytest.raises(ValueError, match="by_duration"):
            read(text)


def test_share_groups_have_kafkas_configs_with_its_defaults() -> None:
    values = group_values(BrokerConfigs(), {})
    shown = {name: each.text for name, each in values.items() if "consumer." not in name}
    assert shown == {
        "share.assignment.interval.ms": "1000",
        "share.auto.offset.reset": "latest",
        "share.delivery.count.limit": "5",
        "share.heartbeat.interval.ms": "5000",
        "share.isolation.level": "read_uncommitted",
        "share.partition.max.record.locks": "2000",
        "share.record.lock.duration.ms": "30000",
        "share.renew.acknowledge.enable": "true",
        "share.session.timeout.ms": "45000",
        "penstock.share.redelivery.backoff.ms": "0",
        "penstock.share.redelivery.backoff.max.ms": "300000",
        "errors.deadletterqueue.topic.name": "",
        "errors.deadletterqueue.copy.record.enable": "false",
    }
    assert {each.source for each in values.values()} == {ConfigSource.DEFAULT_CONFIG}
    assert all(definition.dynamic for definition in GROUP_CONFIGS.values())


def test_a_broker_provides_defaults_and_a_group_overrides_them() -> None:
    static = BrokerConfigs({"group.share.delivery.count.limit": "7"})
    (value,) = (group_values(static, {})["share.delivery.count.limit"],)
    assert (value.value, value.source) == (7, ConfigSource.STATIC_BROKER_CONFIG)
    overrides = {"share.delivery.count.limit": "9", "share.auto.offset.reset": "earliest"}
    values = group_values(static, overrides)
    assert values["share.delivery.count.limit"].value == 9
    reset = values["share.auto.offset.reset"]
    assert (reset.value, reset.source) == ("earliest", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [each.text for each in reset.synonyms] == ["earliest", "latest"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.delivery.count.limit", "1"),
        ("share.delivery.count.limit", "26"),
        ("share.record.lock.duration.ms", "99"),
        ("share.record.lock.duration.ms", "3600001"),
        ("share.partition.max.record.locks", "9"),
        ("share.partition.max.record.locks", "10001"),
        ("share.session.timeout.ms", "0"),
        ("share.heartbeat.interval.ms", "0"),
        ("share.assignment.interval.ms", "-1"),
        ("share.auto.offset.reset", "by_duration:soon"),
        ("share.isolation.level", "serializable"),
        ("share.renew.acknowledge.enable", "maybe"),
        ("penstock.share.redelivery.backoff.ms", "-1"),
        ("penstock.share.redelivery.backoff.max.ms", "2592000001"),
        ("errors.deadletterqueue.topic.name", "__consumer_offsets"),
        ("errors.deadletterqueue.topic.name", "no/topic"),
        ("share.no.such.config", "1"),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: str) -> None:
    cluster = Cluster()
    with pytest.raises(KafkaError) as caught:
        incremental_alter_configs(
            cluster.image, ResourceType.GROUP, "g", [ConfigEdit(name, SET, value)]
        )
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_the_heartbeat_interval_is_below_the_session_timeout() -> None:
    edits = [
        ConfigEdit("share.heartbeat.interval.ms", SET, "500"),
        ConfigEdit("share.session.timeout.ms", SET, "500"),
    ]
    with pytest.raises(KafkaError, match="less than the timeout") as caught:
        incremental_alter_configs(Cluster().image, ResourceType.GROUP, "g", edits)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
