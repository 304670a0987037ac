"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.metadata.config_changes import ConfigOperation
from penstock.metadata.config_values import encode_configs
from penstock.metadata.configs import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigSource, ConfigType
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.keys import broker_config_key
from penstock.shares.offset_reset import parse_reset
from penstock.shares.settings import ShareSettings
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
Edit = tuple[str, ConfigOperation, str | None]
Described = DescribeConfigsResponse.Resource
SET, DELETE, APPEND, SUBTRACT = ConfigOperation


async def describe(
    harness: BrokerHarness,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
    broker: int = 0,
) -> Described:
    asked = DescribeConfigsRequest.Resource(kind, name, keys)
    request = DescribeConfigsRequest([asked], synonyms, documentation)
    response = await harness.ask(request, version, DescribeConfigsResponse, broker=broker)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def value_of(
    harness: BrokerHarness, kind: int, name: str, key: str
) -> tuple[str | None, int]:
    """Returns a config's value and its source."""
    (config,) = (await describe(harness, kind, name, [key])).configs
    return config.value, config.config_source


async def alter(
    harness: BrokerHarness,
    *resources: tuple[int, str, dict[str, str | None]],
    version: int = 2,
    validate_only: bool = False,
) -> list[tuple[str, int]]:
    request = AlterConfigsRequest(
        [
            AlterConfigsRequest.Resource(
                kind, name, [AlterConfigsRequest.Config(*item) for item in configs.items()]
            )
            for kind, name, configs in resources
        ],
        validate_only,
    )
    response = await harness.ask(request, version, AlterConfigsResponse)
    for answer in response.responses:
        assert (answer.error_message is None) == (answer.error_code == 0)
    return [(answer.resource_name, answer.error_code) for answer in response.responses]


async def edit(
    harness: BrokerHarness,
    *resources: tuple[int, str, list[Edit]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[str, int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        [
            IncrementalAlterConfigsRequest.Resource(
                kind, name, [IncrementalAlterConfigsRequest.Config(*each) for each in edits]
            )
            for kind, name, edits in resources
        ],
        validate_only,
    )
    response = await harness.ask(request, version, IncrementalAlterConfigsResponse)
    return [
        (each.resource_name, each.error_code, each.error_message) for each in response.responses
    ]


@with_harness
async def test_describing_a_topic_returns_every_topic_config(harness: BrokerHarness) -> None:
    """Whether it is set or not: tools read cleanup.policy of topics that never set it."""
    await harness.create("orders", configs={"retention.ms": "1000"})
    for version in range(1, 5):
        result = await describe(harness, TOPIC, "orders", version=version)
        assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
        configs = {config.name: config for config in result.configs}
        assert set(configs) == set(TOPIC_CONFIGS)
        retention, policy = configs["retention.ms"], configs["cleanup.policy"]
        assert (retention.value, policy.value) == ("1000", "delete")
        assert retention.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert policy.config_source == ConfigSource.DEFAULT_CONFIG
        assert not retention.read_only
        assert retention.synonyms == []
        assert retention.documentation is None or version < 3
        assert retention.config_type == (ConfigType.LONG if version >= 3 else 0)


@with_harness_of(kafka={"log.retention.ms": "5000"})
async def test_synonyms_are_listed_by_precedence(harness: BrokerHarness) -> None:
    """They show where a value could come from, strongest first. They are sent only if asked for."""
    await harness.create("orders", configs={"retention.ms": "1000"})
    result = await describe(harness, TOPIC, "orders", ["retention.ms"], synonyms=True)
    synonyms = [(each.name, each.value, each.source) for each in result.configs[0].synonyms]
    assert synonyms == [
        ("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "5000", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]


@with_harness
async def test_documentation_is_included_on_request(harness: BrokerHarness) -> None:
    await harness.create("orders")
    result = await describe(harness, TOPIC, "orders", ["retention.ms"], documentation=True)
    assert result.configs[0].documentation == TOPIC_CONFIGS["retention.ms"].doc


@with_harness
async def test_configs_can_be_selected_by_name(harness: BrokerHarness) -> None:
    """Unknown names are left out. An empty list selects all configs, as in Kafka."""
    await harness.create("orders")
    keys = ["segment.ms", "no.such.key", "retention.ms", "segment.ms"]
    result = await describe(harness, TOPIC, "orders", keys)
    assert [config.name for config in result.configs] == ["segment.ms", "retention.ms"]
    assert len((await describe(harness, TOPIC, "orders", [])).configs) == len(TOPIC_CONFIGS)


@with_harness_of(brokers=2, kafka={"num.partitions": "3"})
async def test_a_broker_describes_all_its_own_configs(harness: BrokerHarness) -> None:
    """Settings that only the config file can set are read-only. A request for another broker's
    configs is refused.
    """
    result = await describe(harness, BROKER, "1", broker=1)
    configs = {config.name: config for config in result.configs}
    assert set(configs) == set(BROKER_CONFIGS)
    partitions = configs["num.partitions"]
    assert (partitions.value, partitions.read_only) == ("3", True)
    assert partitions.config_source == ConfigSource.STATIC_BROKER_CONFIG
    assert not configs["log.retention.ms"].read_only
    assert configs["inter.broker.protocol.version"].value
    other = await describe(harness, BROKER, "1", broker=0)
    assert (other.error_code, other.configs) == (ErrorCode.INVALID_REQUEST, [])
    assert "broker 0" in (other.error_message or "")


@with_harness
async def test_resources_that_cannot_be_described_get_an_error_and_a_message(
    harness: BrokerHarness,
) -> None:
    for kind, name, code in (
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "zero", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
    ):
        result = await describe(harness, kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message


@with_harness
async def test_alter_configs_replaces_all_overrides(harness: BrokerHarness) -> None:
    """What the request leaves out goes back to its default, in every version."""
    await harness.create("orders", configs={"retention.ms": "1000"})
    for version in range(3):
        configs: dict[str, str | None] = {"segment.ms": f"{version + 1}000"}
        assert await alter(harness, (TOPIC, "orders", configs), version=version) == [("orders", 0)]
        assert harness.broker.cluster.image.topics["orders"].configs == configs
    assert (await value_of(harness, TOPIC, "orders", "retention.ms"))[0] == "604800000"


@with_harness
async def test_a_config_change_is_in_effect_when_it_is_answered(harness: BrokerHarness) -> None:
    """The partitions of the broker that answered already use it."""
    await harness.create("orders")
    await alter(harness, (TOPIC, "orders", {"max.message.bytes": "77"}))
    assert harness.hosted("orders").settings.max_message_bytes == 77
    await edit(harness, (BROKER, "", [("log.retention.ms", SET, "88")]))
    assert harness.hosted("orders").settings.retention_ms == 88
    assert harness.hosted("orders").log.config.retention_ms == 88


@with_harness
async def test_incremental_changes_leave_other_configs_alone(harness: BrokerHarness) -> None:
    """Set, delete and append in one request for one topic, then subtract."""
    await harness.create("orders", configs={"retention.ms": "1000", "segment.ms": "2000"})
    edits: list[Edit] = [
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
        ("flush.ms", SET, "3"),
    ]
    assert await edit(harness, (TOPIC, "orders", edits), version=0) == [("orders", 0, None)]
    topic = harness.broker.cluster.image.topics["orders"]
    assert topic.configs == {
        "segment.ms": "2000",
        "cleanup.policy": "delete,compact",
        "flush.ms": "3",
    }
    await edit(harness, (TOPIC, "orders", [("cleanup.policy", SUBTRACT, "delete")]))
    assert (await value_of(harness, TOPIC, "orders", "cleanup.policy"))[0] == "compact"


@with_harness_of(kafka={"log.cleanup.policy": "compact"})
async def test_appending_to_a_list_starts_from_the_inherited_value(harness: BrokerHarness) -> None:
    """The value may come from the broker's config file."""
    await harness.create("orders")
    await edit(harness, (TOPIC, "orders", [("cleanup.policy", APPEND, "delete")]))
    assert (await value_of(harness, TOPIC, "orders", "cleanup.policy"))[0] == "compact,delete"


@with_harness
async def test_dynamic_broker_configs_apply_to_one_broker_or_to_all(harness: BrokerHarness) -> None:
    """The empty name stands for all brokers. A value for one broker overrides the value for all."""
    await harness.create("orders")
    key = "log.retention.ms"
    assert await edit(harness, (BROKER, "", [(key, SET, "11")])) == [("", 0, None)]
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert await value_of(harness, BROKER, "0", key) == ("11", source)
    assert await value_of(harness, TOPIC, "orders", "retention.ms") == ("11", source)
    defaults = await describe(harness, BROKER, "")
    assert [(each.name, each.value) for each in defaults.configs] == [(key, "11")]
    assert await alter(harness, (BROKER, "0", {key: "22"})) == [("0", 0)]
    own = ConfigSource.DYNAMIC_BROKER_CONFIG
    assert await value_of(harness, BROKER, "0", key) == ("22", own)
    assert await value_of(harness, TOPIC, "orders", "retention.ms") == ("22", own)


@with_harness
async def test_a_null_value_is_an_invalid_request(harness: BrokerHarness) -> None:
    """For topics and brokers the error is INVALID_REQUEST. For a new topic's config it is
    INVALID_CONFIG.
    """
    await harness.create("orders")
    for version in range(3):
        for kind, name, key in ((TOPIC, "orders", "retention.ms"), (BROKER, "0", "no.such")):
            answers = await alter(harness, (kind, name, {key: None}), version=version)
            assert answers == [(name, ErrorCode.INVALID_REQUEST)]
    asked = CreateTopicsRequest.Topic(
        "new", 1, 1, configs=[CreateTopicsRequest.Config("retention.ms", None)]
    )
    created = await harness.ask(CreateTopicsRequest([asked]), 7, CreateTopicsResponse)
    assert created.topics[0].error_code == ErrorCode.INVALID_CONFIG


@with_harness
async def test_tiered_storage_configs_are_accepted_but_cannot_enable_it(
    harness: BrokerHarness,
) -> None:
    """A topic that is copied from Kafka with all its configs can be created."""
    tiered = {
        "local.retention.ms": "-2",
        "local.retention.bytes": "-2",
        "remote.storage.enable": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
    }
    await harness.create("copied", configs=tiered)
    for key, value in tiered.items():
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert await value_of(harness, TOPIC, "copied", key) == (value, source)
    await harness.create("plain")
    for key, value in tiered.items():
        assert await value_of(harness, TOPIC, "plain", key) == (value, ConfigSource.DEFAULT_CONFIG)
    switch_on: Edit = ("remote.storage.enable", SET, "true")
    ((_, code, words),) = await edit(harness, (TOPIC, "plain", [switch_on]))
    assert code == ErrorCode.INVALID_CONFIG
    assert "Penstock has no tiered storage" in (words or "")


@with_harness
async def test_durability_can_be_set_for_all_brokers_only(harness: BrokerHarness) -> None:
    """An earlier version accepted a value for one broker. Such a stored value has no effect."""
    replicated: Edit = ("log.durability", SET, "replicated")
    ((_, code, words),) = await edit(harness, (BROKER, "0", [replicated]))
    assert code == ErrorCode.INVALID_CONFIG
    assert "for all brokers" in (words or "")
    left = Change(broker_config_key(0), encode_configs({"log.durability": "replicated"}), 0)
    await harness.broker.controller.decide(lambda image: Decision((left,), None))
    assert 0 in harness.broker.cluster.image.broker_configs
    assert harness.broker.configs().value("log.durability") == "fsync"
    ((_, code, _),) = await edit(harness, (BROKER, "", [replicated]))
    assert code == ErrorCode.NONE
    await harness.until(lambda: harness.broker.configs().value("log.durability") == "replicated")


@with_harness_of(kafka={"log.retention.check.interval.ms": "1"})
async def test_without_a_cleanup_policy_nothing_is_cleaned_up(harness: BrokerHarness) -> None:
    """An empty list means neither retention nor compaction, as in Kafka 4."""
    configs = {"retention.ms": "1", "segment.bytes": "100", "cleanup.policy": ""}
    await harness.create("kept", configs=configs)
    await harness.create("cleaned", configs={**configs, "cleanup.policy": "delete"})
    for topic in ("kept", "cleaned"):
        for _ in range(3):
            await harness.produce(topic, [bytes(100)])
    settings = harness.hosted("kept").settings
    assert (settings.delete, settings.compact) == (False, False)
    assert (await value_of(harness, TOPIC, "kept", "cleanup.policy"))[0] == ""
    await harness.until(lambda: harness.hosted("cleaned").log.log_start_offset == 3)
    assert harness.hosted("kept").log.log_start_offset == 0
    await edit(harness, (TOPIC, "kept", [("cleanup.policy", APPEND, "delete")]))
    await harness.until(lambda: harness.hosted("kept").log.log_start_offset == 3)


@with_harness
async def test_each_resource_succeeds_or_fails_on_its_own(harness: BrokerHarness) -> None:
    """An invalid resource does not keep the others from being changed."""
    await harness.create("good")
    await harness.create("bad")
    good: dict[str, str | None] = {"segment.ms": "1000"}
    answers = await alter(
        harness,
        (TOPIC, "good", good),
        (TOPIC, "bad", {"segment.mss": "1"}),
        (TOPIC, "none", good),
        (BROKER, "0", {"num.partitions": "3"}),
        (BROKER, "7", {"log.retention.ms": "1"}),
        (BROKER, "seven", {"log.retention.ms": "1"}),
        (BROKER_LOGGER, "0", {}),
    )
    assert answers == [
        ("good", ErrorCode.NONE),
        ("bad", ErrorCode.INVALID_CONFIG),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("0", ErrorCode.INVALID_REQUEST),
        ("7", ErrorCode.INVALID_REQUEST),
        ("seven", ErrorCode.INVALID_REQUEST),
        ("0", ErrorCode.INVALID_REQUEST),
    ]
    assert harness.broker.cluster.image.topics["good"].configs == good


@with_harness
async def test_errors_of_incremental_changes_have_messages(harness: BrokerHarness) -> None:
    """For an unknown name the message lists the known ones. For an invalid value it describes valid
    ones.
    """
    await harness.create("orders")
    for wrong, code, words in (
        (("retention", SET, "1"), ErrorCode.INVALID_CONFIG, "The known ones are: "),
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG, "whole number"),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "not a list"),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "no value"),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "not an operation"),
    ):
        ((_, got, message),) = await edit(harness, (TOPIC, "orders", [wrong]))  # type: ignore[list-item]
        assert got == code
        assert words in (message or "")
    assert not harness.broker.cluster.image.topics["orders"].configs


@with_harness
async def test_a_resource_named_twice_is_refused(harness: BrokerHarness) -> None:
    """Both occurrences are refused, even if they change different configs. A config that is named
    twice is refused too.
    """
    await harness.create("orders")
    one: dict[str, str | None] = {"segment.ms": "1000"}
    twice = await alter(harness, (TOPIC, "orders", one), (TOPIC, "orders", {"flush.ms": "1"}))
    assert twice == [("orders", ErrorCode.INVALID_REQUEST)] * 2
    edits: list[Edit] = [("segment.ms", SET, "1000"), ("segment.ms", DELETE, None)]
    ((_, code, _),) = await edit(harness, (TOPIC, "orders", edits))
    assert code == ErrorCode.INVALID_REQUEST
    assert not harness.broker.cluster.image.topics["orders"].configs


@with_harness
async def test_validate_only_changes_nothing(harness: BrokerHarness) -> None:
    """The response has the same errors as a real change."""
    await harness.create("orders")
    for configs, code in (({"segment.ms": "1000"}, 0), ({"segment.ms": "x"}, 40)):
        asked = (TOPIC, "orders", dict[str, str | None](configs))
        assert await alter(harness, asked, validate_only=True) == [("orders", code)]
        edits: list[Edit] = [(name, SET, value) for name, value in configs.items()]
        ((_, got, _),) = await edit(harness, (TOPIC, "orders", edits), validate_only=True)
        assert got == code
    assert not harness.broker.cluster.image.topics["orders"].configs


@with_harness
async def test_kafka_settings_without_effect_are_shown_if_they_are_set_or_requested(
    harness: BrokerHarness,
) -> None:
    """Their documentation says that they have no effect."""
    threads, throttle = "num.io.threads", "replica.alter.log.dirs.io.max.bytes.per.second"
    assert threads not in {each.name for each in (await describe(harness, BROKER, "0")).configs}
    asked = await describe(harness, BROKER, "0", [threads, "no.such.key"], documentation=True)
    (config,) = asked.configs
    assert (config.name, config.value) == (threads, None)
    assert "No effect in Penstock" in (config.documentation or "")
    edits: list[Edit] = [(threads, SET, "4"), (throttle, DELETE, None), ("no.such", DELETE, None)]
    assert await edit(harness, (BROKER, "0", edits)) == [("0", 0, None)]
    shown = {each.name: each.value for each in (await describe(harness, BROKER, "0")).configs}
    assert shown[threads] == "4"
    assert throttle not in shown


@with_harness
async def test_a_cluster_wide_min_insync_replicas_is_shown_for_topics(
    harness: BrokerHarness,
) -> None:
    """As in Kafka 4.1 and later, its source is the dynamic default of all brokers."""
    await harness.create("orders")
    assert await value_of(harness, TOPIC, "orders", "min.insync.replicas") == ("1", 5)
    await edit(harness, (BROKER, "", [("min.insync.replicas", SET, "2")]))
    assert await value_of(harness, TOPIC, "orders", "min.insync.replicas") == ("2", 3)
    (config,) = (
        await describe(harness, TOPIC, "orders", ["min.insync.replicas"], synonyms=True)
    ).configs
    assert [(each.value, each.source) for each in config.synonyms] == [("2", 3), ("1", 5)]


@with_harness
async def test_client_metrics_have_no_configs(harness: BrokerHarness) -> None:
    answer = await describe(harness, CLIENT_METRICS, "mine")
    assert (answer.error_code, answer.configs) == (0, [])


@with_harness
async def test_groups_have_configs_of_their_own(harness: BrokerHarness) -> None:
    name = "consumer.session.timeout.ms"
    answer = await describe(harness, GROUP, "mine")
    names = [each.name for each in answer.configs]
    assert [each for each in names if each.startswith("consumer.")] == [
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
        name,
    ]
    assert len(names) == 16
    assert await value_of(harness, GROUP, "mine", name) == ("45000", 5)
    await edit(harness, (GROUP, "mine", [(name, SET, "50000")]))
    assert await value_of(harness, GROUP, "mine", name) == ("50000", 8)
    assert await value_of(harness, GROUP, "other", name) == ("45000", 5)


@with_harness_of(kafka={"group.share.delivery.count.limit": "7"})
async def test_share_groups_have_configs_of_their_own(harness: BrokerHarness) -> None:
    """The leaders of partitions use them from the next fetch on."""
    settings_of = harness.services.groups.share_settings_of
    assert (settings_of("jobs").delivery_limit, settings_of("jobs").record_lock_ms) == (7, 30_000)
    changes = {
        "share.delivery.count.limit": "3",
        "share.record.lock.duration.ms": "1500",
        "share.partition.max.record.locks": "100",
        "share.renew.acknowledge.enable": "false",
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": "by_duration:PT1M",
        "penstock.share.redelivery.backoff.ms": "20",
        "penstock.share.redelivery.backoff.max.ms": "80",
        "errors.deadletterqueue.topic.name": "dlq.jobs",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    await edit(harness, (GROUP, "jobs", [(name, SET, text) for name, text in changes.items()]))
    found = settings_of("jobs")
    assert found is settings_of("jobs")
    assert found == ShareSettings(
        record_lock_ms=1500,
        delivery_limit=3,
        in_flight_max=100,
        renew_enabled=False,
        read_committed=True,
        offset_reset=parse_reset("by_duration:PT1M"),
        backoff_ms=20,
        backoff_max_ms=80,
        dead_letter_topic="dlq.jobs",
        copies_records=True,
    )
    assert settings_of("other").delivery_limit == 7
    await edit(harness, (GROUP, "jobs", [(name, DELETE, None) for name in changes]))
    assert settings_of("jobs") == settings_of("other")
