"""Configs: which values are accepted, which one is in effect, and where it comes from."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from penstock.metadata.configs import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfigs,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    Definition,
    TopicSettings,
    effective,
    validate_broker_configs,
    validate_topic_configs,
)
from penstock.wire.errors import ErrorCode, KafkaError

DEFAULT = ConfigSource.DEFAULT_CONFIG
STATIC = ConfigSource.STATIC_BROKER_CONFIG
TABLES = [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()]


@pytest.mark.parametrize("definition", TABLES, ids=lambda each: each.name)
def test_every_default_is_a_valid_value(definition: Definition) -> None:
    """So a tool can set the value that it was shown. Each config also has a sentence that explains
    it."""
    text = definition.default_text()
    if text is not None and definition.name not in ("broker.id", "node.id"):
        assert definition.parse(text) == definition.default
    assert definition.doc.endswith(".")
    assert len(definition.doc) > 20


def test_the_typed_view_has_every_topic_config() -> None:
    """A config that is in the table and not in the settings would have no effect."""
    names = {field.name.replace("_", ".") for field in fields(TopicSettings)}
    assert names == set(TOPIC_CONFIGS)


def test_tools_find_the_configs_they_look_up() -> None:
    """Names that known tools look up on topics and brokers, with Kafka's defaults."""
    topic = BrokerConfigs().topic({})
    assert {name: topic[name].text for name in ("cleanup.policy", "retention.ms")} == {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
    }
    assert topic["max.message.bytes"].text == "1048588"
    assert topic["durability"].text == "fsync"
    broker = BrokerConfigs().broker()
    assert broker["inter.broker.protocol.version"].text == "3.9-IV0"
    assert broker["default.replication.factor"].text == "1"
    assert broker["log.retention.hours"].text == "168"
    assert broker["log.retention.ms"].text is None
    assert broker["offsets.topic.num.partitions"].value == 50
    assert broker["group.initial.rebalance.delay.ms"].value == 3000


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cleanup.policy", ["compact", "delete, compact", "", " "], ["shred", "delete,delete"]),
        ("compression.type", ["zstd", "producer", "uncompressed"], ["ZSTD", "brotli", ""]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18"]),
        ("compression.zstd.level", ["-131072", "22"], ["23"]),
        ("durability", ["fsync", "replicated"], ["maybe"]),
        ("encryption", ["none", "orders-key", "k.1_2"], ["", "a b", "../k", "-k", "k" * 101]),
        ("flush.messages", ["1"], ["0"]),
        ("leader.replication.throttled.replicas", ["", "*", "0:1,2:3"], ["x", "0:", "*,0:1"]),
        ("local.retention.bytes", ["-2", "-1", "5"], ["-3", "all"]),
        ("local.retention.ms", ["-2", "-1", "1000"], ["-3", "1h"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime"]),
        ("min.cleanable.dirty.ratio", ["0", "1.0", "5e-1"], ["-0.1", "1.1", "nan", "inf", "x"]),
        ("min.insync.replicas", ["1"], ["0", "1.5", "", "\u0661"]),
        ("preallocate", ["true", "False"], ["yes", "1"]),
        ("remote.log.copy.disable", ["false", "true"], ["on"]),
        ("remote.log.delete.on.disable", ["false", "true"], ["off"]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("retention.bytes", ["-1", "0"], ["-2"]),
        ("retention.ms", ["-1", " 7 ", "9223372036854775807"], ["-2", "9223372036854775808", "1s"]),
        ("segment.bytes", ["14", "2147483647"], ["13", "2147483648", "9" * 5000]),
        ("segment.ms", ["1"], ["0"]),
        ("unclean.leader.election.enable", ["TRUE"], ["on"]),
    ],
)
def test_values_are_validated(name: str, good: list[str], bad: list[str]) -> None:
    """The error for a bad value gives the config's name and a valid value."""
    for text in good:
        assert validate_topic_configs([(name, text)]) == {name: text.strip()}
    for text in bad:
        with pytest.raises(KafkaError, match=re.escape(name)) as caught:
            validate_topic_configs([(name, text)])
        assert caught.value.code is ErrorCode.INVALID_CONFIG
        assert re.search(r"set it|leave it out", caught.value.message)


def test_an_unknown_name_is_refused_with_a_suggestion_and_the_list() -> None:
    """Most unknown names are typing errors. The list shows all others what exists."""
    with pytest.raises(KafkaError) as caught:
        validate_topic_configs([("retention.millis", "1")])
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert "did you mean retention.ms?" in caught.value.message
    assert all(name in caught.value.message for name in TOPIC_CONFIGS)
    with pytest.raises(KafkaError, match="The known ones are"):
        validate_topic_configs([("zzz", "1")])


def test_duplicate_and_null_configs_are_refused() -> None:
    """Two values contradict each other. A config is deleted by leaving it out, not by null."""
    with pytest.raises(KafkaError) as twice:
        validate_topic_configs([("retention.ms", "1"), ("retention.ms", "2")])
    assert twice.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError) as null:
        validate_topic_configs([("retention.ms", None)])
    assert null.value.code is ErrorCode.INVALID_CONFIG


def test_configs_must_be_consistent() -> None:
    """The minimum compaction lag must not be above the maximum."""
    with pytest.raises(KafkaError, match="not be above the second"):
        validate_topic_configs([("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "9")])


def test_layers_are_searched_from_the_most_specific_to_the_default() -> None:
    """Topic, broker, all brokers, config file, default. Each overrides those below and lists them
    as synonyms."""
    layers = BrokerConfigs(
        static={"log.retention.ms": "4"},
        dynamic_default={"log.retention.ms": "3"},
        dynamic={"log.retention.ms": "2"},
    )
    value = layers.topic({"retention.ms": "1"})["retention.ms"]
    assert (value.value, value.text) == (1, "1")
    assert value.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert value.synonyms == (
        ConfigSynonym("retention.ms", "1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym("log.retention.ms", "2", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "4", STATIC),
        ConfigSynonym("log.retention.hours", "168", DEFAULT),
    )
    inherited = effective({}, layers)["retention.ms"]
    assert (inherited.value, inherited.source) == (2, ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert inherited.synonyms == value.synonyms[1:]


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.minutes": "2", "log.retention.hours": "1"}, 120_000),
        ({"log.retention.ms": "3", "log.retention.minutes": "2"}, 3),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_larger_units_are_used_where_the_smaller_ones_are_not_set(
    static: dict[str, str], expected: int
) -> None:
    """The finest unit that is set is in effect. -1 means no limit in each."""
    layers = BrokerConfigs(static)
    value = layers.topic({})["retention.ms"]
    assert (value.value, value.text, value.source) == (expected, str(expected), STATIC)
    assert layers.settings({}).retention_ms == expected


def test_a_larger_unit_is_validated_like_the_smaller_one() -> None:
    """A segment age of 0 hours is refused."""
    with pytest.raises(ValueError, match=r"log\.roll\.hours"):
        BrokerConfigs({"log.roll.hours": "0"})


def test_topics_without_overrides_share_what_they_inherit() -> None:
    """Ten thousand of them cost as much as one."""
    layers = BrokerConfigs()
    assert layers.topic({}) is layers.topic({})
    assert layers.settings({}) is layers.settings({})
    assert set(layers.topic({})) == set(TOPIC_CONFIGS)


def test_settings_are_typed() -> None:
    """Both overrides and inherited values."""
    settings = BrokerConfigs({"log.segment.bytes": "1000"}).settings(
        {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"}
    )
    assert settings.cleanup_policy == ("compact", "delete")
    assert (settings.compact, settings.delete) == (True, True)
    assert settings.min_cleanable_dirty_ratio == 0.25
    assert settings.segment_bytes == 1000
    assert settings.preallocate is False
    plain = BrokerConfigs().settings({})
    assert (plain.compact, plain.delete) == (False, True)


def test_an_override_from_a_newer_version_is_ignored() -> None:
    """It stays in the store. This version behaves as if it were not there."""
    assert set(BrokerConfigs().topic({"future.config": "x"})) == set(TOPIC_CONFIGS)


def test_broker_configs_are_described_for_tools() -> None:
    """With type, source, and whether the value can be changed while the broker runs."""
    layers = BrokerConfigs({"num.partitions": "3", "log.dirs": "/a, /b"})
    partitions = layers.broker()["num.partitions"]
    assert (partitions.name, partitions.text, partitions.source) == ("num.partitions", "3", STATIC)
    assert (partitions.config_type, partitions.read_only) == (ConfigType.INT, True)
    assert not partitions.is_sensitive
    assert partitions.documentation
    assert [synonym.source for synonym in partitions.synonyms] == [STATIC, DEFAULT]
    assert layers.broker()["log.dirs"].value == ("/a", "/b")
    assert not layers.broker()["log.retention.ms"].read_only
    assert layers.int_value("num.partitions") == 3
    assert layers.bool_value("auto.create.topics.enable") is True
    assert layers.text_value("inter.broker.protocol.version")


def test_reading_a_config_as_the_wrong_type_raises_type_error() -> None:
    """The message gives the actual value."""
    layers = BrokerConfigs()
    with pytest.raises(TypeError, match=r"log\.retention\.ms is None"):
        layers.int_value("log.retention.ms")
    with pytest.raises(TypeError, match=r"num\.partitions is 1"):
        layers.bool_value("num.partitions")
    with pytest.raises(TypeError, match=r"num\.partitions is 1"):
        layers.text_value("num.partitions")


def test_brokers_always_serve_classic_groups() -> None:
    """share and streams are in configs of Kafka, and change nothing."""
    name = "group.coordinator.rebalance.protocols"
    assert BrokerConfigs({}).value(name) == ("classic", "consumer")
    assert BrokerConfigs({name: "classic,consumer,streams,share"}).value(name)
    for wrong in ("consumer", "classic,other", "classic,classic"):
        with pytest.raises(ValueError, match=r"group\.coordinator\.rebalance\.protocols"):
            BrokerConfigs({name: wrong})


@pytest.mark.parametrize("static", [{"num.partition": "3"}, {"num.partitions": "0"}])
def test_the_config_file_is_validated_too(static: dict[str, str]) -> None:
    """The broker does not start with it, and says what is wrong."""
    with pytest.raises(ValueError, match=r"num\.partitions"):
        BrokerConfigs(static)


def test_only_dynamic_broker_configs_can_be_set_at_run_time() -> None:
    """For the others the error refers to the config file."""
    assert validate_broker_configs([("log.retention.ms", "5")]) == {"log.retention.ms": "5"}
    for name in ("num.partitions", "log.retention.hours"):
        with pytest.raises(KafkaError, match="config file") as caught:
            validate_broker_configs([(name, "5")])
        assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_secrets_are_not_shown() -> None:
    """Only the broker knows their values."""
    from penstock.metadata.configs import _shown

    secret = Definition("password", ConfigType.PASSWORD, None, "A secret.", sensitive=True)
    assert _shown(secret, "hunter2") is None
