"""AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import pytest

from penstock.metadata.config_changes import (
    ConfigEdit,
    ConfigOperation,
    ResourceType,
    alter_configs,
    incremental_alter_configs,
)
from penstock.metadata.configs import BrokerConfigs, ConfigSource
from penstock.metadata.group_configs import group_values
from penstock.metadata.keys import broker_config_key
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(brokers=1)
    cluster.create("t", retention_ms="5", segment_bytes="1000")
    return cluster


def edit(cluster: Cluster, *edits: ConfigEdit, **static: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in static.items()}
    decision = incremental_alter_configs(cluster.image, TOPIC, "t", edits, named)
    cluster.commit(decision)
    assert cluster.image.topics["t"].configs == decision.result
    return dict(decision.result)


def test_alter_configs_replaces_all_overrides(cluster: Cluster) -> None:
    """Configs that are not named return to their defaults. Partitions and topic id stay."""
    before = cluster.image.topics["t"]
    cluster.commit(alter_configs(cluster.image, TOPIC, "t", [("retention.bytes", "9")]))
    after = cluster.image.topics["t"]
    assert after.configs == {"retention.bytes": "9"}
    assert (after.partitions, after.topic_id) == (before.partitions, before.topic_id)
    cluster.commit(alter_configs(cluster.image, TOPIC, "t", []))
    assert not cluster.image.topics["t"].configs


@pytest.mark.parametrize("name", ["retention.ms", "retention.m"])
@pytest.mark.parametrize(("kind", "resource"), [(TOPIC, "t"), (BROKER, ""), (BROKER, "0")])
def test_a_null_value_is_an_invalid_request(
    cluster: Cluster, kind: ResourceType, resource: str, name: str
) -> None:
    """Whether or not the config exists: INVALID_REQUEST, as in Kafka."""
    with pytest.raises(KafkaError, match=name) as caught:
        alter_configs(cluster.image, kind, resource, [("flush.ms", "1"), (name, None)])
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_edits_leave_other_configs_alone(cluster: Cluster) -> None:
    """Setting, deleting, and deleting a config that is not set."""
    after = edit(
        cluster,
        ConfigEdit("retention.ms", DELETE, None),
        ConfigEdit("retention.bytes", DELETE, None),
        ConfigEdit("flush.ms", SET, "7"),
    )
    assert after == {"segment.bytes": "1000", "flush.ms": "7"}


def test_lists_are_appended_to_and_subtracted_from(cluster: Cluster) -> None:
    """Starting from the value that the topic inherits. A value that is already in the list is not
    added."""
    policy = "cleanup.policy"
    assert edit(cluster, ConfigEdit(policy, APPEND, "compact"))[policy] == "delete,compact"
    assert edit(cluster, ConfigEdit(policy, APPEND, "compact"))[policy] == "delete,compact"
    assert edit(cluster, ConfigEdit(policy, SUBTRACT, "delete"))[policy] == "compact"
    assert edit(cluster, ConfigEdit(policy, SUBTRACT, "compact"))[policy] == ""


def test_lists_start_from_the_brokers_default(cluster: Cluster) -> None:
    """The default may come from the config file."""
    append = ConfigEdit("cleanup.policy", APPEND, "delete")
    after = edit(cluster, append, log_cleanup_policy="compact")
    assert after["cleanup.policy"] == "compact,delete"


@pytest.mark.parametrize(
    ("edits", "code"),
    [
        ([ConfigEdit("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigEdit("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigEdit("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG),
        ([ConfigEdit("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ([ConfigEdit("retention.m", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigEdit("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([ConfigEdit("retention.m", SET, None)], ErrorCode.INVALID_REQUEST),
        ([ConfigEdit("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ([ConfigEdit("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        (
            [ConfigEdit("retention.ms", SET, "1"), ConfigEdit("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_invalid_edits_are_refused(
    cluster: Cluster, edits: list[ConfigEdit], code: ErrorCode
) -> None:
    """All or nothing: one bad edit makes the whole request fail."""
    with pytest.raises(KafkaError) as caught:
        incremental_alter_configs(
            cluster.image, TOPIC, "t", [ConfigEdit("flush.ms", SET, "1"), *edits]
        )
    assert caught.value.code is code


def test_deleting_an_unknown_config_succeeds(cluster: Cluster) -> None:
    """An override that does not exist counts as deleted, whatever its name. Kafka's tools delete
    everything that they might have set."""
    for kind, name in ((TOPIC, "t"), (BROKER, "0"), (BROKER, "")):
        unknown = [ConfigEdit("no.such.key", DELETE, None), ConfigEdit("node.id", DELETE, None)]
        assert incremental_alter_configs(cluster.image, kind, name, unknown).changes == ()


def test_brokers_accept_configs_that_only_kafka_has(cluster: Cluster) -> None:
    """They are stored and have no effect. A config that Kafka cannot change at runtime is refused
    here too, and so is an unknown name."""
    throttle = "replica.alter.log.dirs.io.max.bytes.per.second"
    edits = [
        ConfigEdit(throttle, SET, "1000"),
        ConfigEdit("config.providers", APPEND, "a"),
        ConfigEdit("listener.name.internal.ssl.keymanager.algorithm", SET, "x"),
    ]
    cluster.commit(incremental_alter_configs(cluster.image, BROKER, "0", edits))
    stored = cluster.image.broker_configs[0]
    assert stored.keys() == {edit.name for edit in edits}
    shown = BrokerConfigs(dynamic=stored).broker()
    assert (shown[throttle].value, shown[throttle].source) == (
        1000,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
    )
    secret = "listener.name.internal.scram-sha-256.sasl.jaas.config"
    assert BrokerConfigs(static={secret: "secret"}).broker()[secret].text is None
    assert "No effect in Penstock" in shown[throttle].documentation
    for edit, code in (
        (ConfigEdit("socket.listen.backlog.size", SET, "4"), ErrorCode.INVALID_REQUEST),
        (ConfigEdit("ssl.cipher.suites", SET, "a"), ErrorCode.INVALID_REQUEST),
        (ConfigEdit(secret, SET, "a"), ErrorCode.INVALID_REQUEST),
        (ConfigEdit("no.such.key", SET, "4"), ErrorCode.INVALID_CONFIG),
        (ConfigEdit(throttle, SET, "fast"), ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaError) as caught:
            incremental_alter_configs(cluster.image, BROKER, "0", [edit])
        assert caught.value.code is code


def test_a_broker_config_that_a_newer_version_stored_is_ignored() -> None:
    assert "from.the.future" not in BrokerConfigs(dynamic={"from.the.future": "1"}).broker()
    with pytest.raises(ValueError, match="no broker config"):
        BrokerConfigs(static={"from.the.future": "1"})


def test_client_metrics_have_no_configs(cluster: Cluster) -> None:
    kind = ResourceType.CLIENT_METRICS
    edit = ConfigEdit("interval.ms", DELETE, None)
    assert incremental_alter_configs(cluster.image, kind, "g", [edit]).changes == ()
    with pytest.raises(KafkaError) as caught:
        edit = ConfigEdit("interval.ms", SET, "1000")
        incremental_alter_configs(cluster.image, kind, "g", [edit])
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_groups_have_configs_of_their_own(cluster: Cluster) -> None:
    """Any group id can have them, also before the group exists."""
    kind, name, group_id = ResourceType.GROUP, "consumer.session.timeout.ms", "a/group %2F"
    edit = ConfigEdit(name, SET, " 50000 ")
    cluster.commit(incremental_alter_configs(cluster.image, kind, group_id, [edit]))
    assert cluster.image.group_configs == {group_id: {name: "50000"}}
    assert incremental_alter_configs(cluster.image, kind, group_id, [edit]).changes == ()
    values = group_values(BrokerConfigs(), cluster.image.group_configs[group_id])
    assert (values[name].value, values[name].source) == (50_000, ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert values["consumer.heartbeat.interval.ms"].value == 5_000
    static = BrokerConfigs({"group.consumer.heartbeat.interval.ms": "700"})
    assert group_values(static, {})["consumer.heartbeat.interval.ms"].value == 700
    gone = ConfigEdit(name, DELETE, None)
    cluster.commit(incremental_alter_configs(cluster.image, kind, group_id, [gone]))
    assert cluster.image.group_configs == {}


@pytest.mark.parametrize(
    ("group_id", "edit", "code"),
    [
        ("g", ConfigEdit("retention.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
        ("g", ConfigEdit("consumer.session.timeout.ms", SET, "0"), ErrorCode.INVALID_CONFIG),
        ("g", ConfigEdit("consumer.session.timeout.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("g", ConfigEdit("consumer.session.timeout.ms", SET, None), ErrorCode.INVALID_REQUEST),
        ("g", ConfigEdit("consumer.session.timeout.ms", 2, "1"), ErrorCode.INVALID_CONFIG),
        ("", ConfigEdit("consumer.session.timeout.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (
            "g" * 1001,
            ConfigEdit("consumer.session.timeout.ms", SET, "1"),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_impossible_configs_of_groups_are_refused(
    cluster: Cluster, group_id: str, edit: ConfigEdit, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        incremental_alter_configs(cluster.image, ResourceType.GROUP, group_id, [edit])
    assert caught.value.code is code


def test_edits_that_change_nothing_commit_nothing(cluster: Cluster) -> None:
    """The response is the same, and there is no new revision."""
    same = ConfigEdit("retention.ms", SET, "5")
    decision = incremental_alter_configs(cluster.image, TOPIC, "t", [same])
    assert decision.changes == ()
    assert decision.result == {"retention.ms": "5", "segment.bytes": "1000"}


def test_brokers_have_their_own_and_common_configs(cluster: Cluster) -> None:
    """An empty name stands for all brokers. A key without overrides is deleted."""
    cluster.commit(alter_configs(cluster.image, BROKER, "", [("log.retention.ms", "5")]))
    cluster.commit(alter_configs(cluster.image, BROKER, "3", [("log.retention.ms", "6")]))
    assert cluster.image.default_broker_configs == {"log.retention.ms": "5"}
    assert cluster.image.broker_configs == {3: {"log.retention.ms": "6"}}
    append = [ConfigEdit("log.cleanup.policy", APPEND, "compact")]
    cluster.commit(incremental_alter_configs(cluster.image, BROKER, "3", append))
    assert cluster.image.broker_configs[3]["log.cleanup.policy"] == "delete,compact"
    cluster.commit(alter_configs(cluster.image, BROKER, "3", []))
    assert broker_config_key(3) not in cluster.entries
    assert alter_configs(cluster.image, BROKER, "3", []).changes == ()


def test_resources_that_cannot_be_altered_are_refused(cluster: Cluster) -> None:
    """Unknown topics, other resource types, broker names that are not numbers, read-only
    configs."""
    read_only = ("num.partitions", "3")
    for resource_type, name, config, code in (
        (2, "u", ("retention.ms", "5"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (8, "t", ("retention.ms", "5"), ErrorCode.INVALID_REQUEST),
        (4, "x", ("log.retention.ms", "5"), ErrorCode.INVALID_REQUEST),
        (4, "-1", ("log.retention.ms", "5"), ErrorCode.INVALID_REQUEST),
        (4, "3", read_only, ErrorCode.INVALID_REQUEST),
        (4, "3", ("retention.ms", "5"), ErrorCode.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaError) as caught:
            alter_configs(cluster.image, resource_type, name, [config])
        assert caught.value.code is code
        with pytest.raises(KafkaError) as caught:
            incremental_alter_configs(
                cluster.image, resource_type, name, [ConfigEdit(config[0], SET, config[1])]
            )
        assert caught.value.code is code


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("consumer.session.timeout.ms", ("44999", "60001"), ("45000", "60000")),
        ("consumer.heartbeat.interval.ms", ("4999", "15001"), ("5000", "15000")),
        ("consumer.assignment.interval.ms", ("-1", "15001"), ("0", "15000")),
    ],
)
def test_configs_of_groups_have_the_bounds_that_brokers_set(
    cluster: Cluster, name: str, refused: tuple[str, ...], accepted: tuple[str, ...]
) -> None:
    for text in refused:
        edit = ConfigEdit(name, SET, text)
        with pytest.raises(KafkaError) as caught:
            incremental_alter_configs(cluster.image, ResourceType.GROUP, "g", [edit])
        assert caught.value.code is ErrorCode.INVALID_CONFIG
    for text in accepted:
        edit = ConfigEdit(name, SET, text)
        incremental_alter_configs(cluster.image, ResourceType.GROUP, "g", [edit])
    other = name.removeprefix("consumer.")
    static = {f"group.consumer.max.{other}": "70000"}
    edit = ConfigEdit(name, SET, "44999" if "session" not in name else "70000")
    incremental_alter_configs(cluster.image, ResourceType.GROUP, "g", [edit], static)


def test_a_group_sends_heartbeats_more_often_than_its_sessions_end(cluster: Cluster) -> None:
    edits = [
        ConfigEdit("consumer.session.timeout.ms", SET, "45000"),
        ConfigEdit("consumer.heartbeat.interval.ms", SET, "45000"),
    ]
    static = {"group.consumer.max.heartbeat.interval.ms": "60000"}
    with pytest.raises(KafkaError) as caught:
        incremental_alter_configs(cluster.image, ResourceType.GROUP, "g", edits, static)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert "less than the timeout" in (caught.value.message or "")
