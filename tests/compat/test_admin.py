"""Administration: topics, partitions, configs, groups, records, the cluster itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.clients.base import Client, Code, Consumer, Record, Refused, wait_until
from compat.conftest import TopicFactory

Keep = Callable[[Consumer], Consumer]
Name = Callable[[], str]


def test_a_topic_from_creation_to_deletion(client: Client, name: Name) -> None:
    """It is listed and described while it exists, and gone afterwards."""
    made = name()
    client.create_topic(made, 3)
    assert wait_until(lambda: made in client.list_topics())
    assert wait_until(lambda: all(p.leader >= 0 for p in client.describe_topic(made).values()))
    partitions = client.describe_topic(made)
    brokers = client.describe_cluster().brokers
    assert sorted(partitions) == [0, 1, 2]
    for partition in partitions.values():
        assert partition.leader in brokers
        assert partition.replicas == partition.in_sync == (partition.leader,)
    client.delete_topic(made)
    assert wait_until(lambda: made not in client.list_topics())
    with pytest.raises(Refused) as refused:
        client.delete_topic(made)
    assert refused.value.code == client.sees(Code.UNKNOWN_TOPIC_OR_PARTITION)


def test_a_deleted_topic_can_be_created_again(client: Client, name: Name, keep: Keep) -> None:
    """The new topic of the same name is empty and starts at offset 0."""
    made = name()
    for value in (b"first life", b"second life"):
        client.create_topic(made)
        assert wait_until(lambda: made in client.list_topics())
        assert client.produce(made, [Record(value)])[0].offset == 0
        reader = keep(client.reader(made))
        assert [r.value for r in reader.read(1)] == [value]
        reader.close()
        client.delete_topic(made)
        assert wait_until(lambda: made not in client.list_topics())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"partitions": 0}, Code.INVALID_PARTITIONS),
        ({"replication": 9}, Code.INVALID_REPLICATION_FACTOR),
        ({"configs": {"retention.ms": "soon"}}, Code.INVALID_CONFIG),
        ({"configs": {"no.such.config": "1"}}, Code.INVALID_CONFIG),
    ],
    ids=["no partitions", "too many replicas", "bad value", "unknown config"],
)
def test_a_bad_topic_is_refused(
    client: Client, name: Name, arguments: dict[str, int], code: Code
) -> None:
    """The error code says why, and nothing is created."""
    made = name()
    with pytest.raises(Refused) as refused:
        client.create_topic(made, **arguments)  # type: ignore[arg-type]
    assert refused.value.code == client.sees(code)
    assert made not in client.list_topics()


@pytest.mark.parametrize("bad", ["a b", "a/b", "ü", ".", "..", "x" * 250, "a:b"])
def test_a_bad_name_is_refused(client: Client, bad: str) -> None:
    """Allowed are letters, digits, dot, underscore and dash, at most 249, except "." and ".."."""
    with pytest.raises(Refused) as refused:
        client.create_topic(bad)
    assert refused.value.code == client.sees(Code.INVALID_TOPIC)


def test_a_topic_cannot_be_created_twice(client: Client, topic: TopicFactory) -> None:
    """The second creation is refused and changes nothing."""
    name = topic(2)
    with pytest.raises(Refused) as refused:
        client.create_topic(name, 5)
    assert refused.value.code == client.sees(Code.TOPIC_ALREADY_EXISTS)
    assert len(client.describe_topic(name)) == 2


def test_validate_only_creates_nothing(client: Client, name: Name) -> None:
    """Validation gives the same answer as a real creation, and creates nothing."""
    made = name()
    client.create_topic(made, validate_only=True)
    assert made not in client.list_topics()
    with pytest.raises(Refused):
        client.create_topic(made, replication=9, validate_only=True)


def test_an_unknown_topic_is_not_described(client: Client, name: Name) -> None:
    """Describing a topic does not create it."""
    made = name()
    with pytest.raises(Refused) as refused:
        client.describe_topic(made)
    assert refused.value.code == client.sees(Code.UNKNOWN_TOPIC_OR_PARTITION)
    assert made not in client.list_topics()


def test_partitions_are_added(client: Client, topic: TopicFactory, keep: Keep) -> None:
    """Old records stay where they are and new partitions can be used; the number never shrinks."""
    name = topic(2)
    client.produce(name, [Record(b"old", partition=1)])
    client.create_partitions(name, 4)
    assert wait_until(lambda: len(client.describe_topic(name)) == 4)
    client.produce(name, [Record(b"new", partition=3)])
    got = keep(client.reader(name, range(4))).read(2)
    assert {(r.partition, r.value) for r in got} == {(1, b"old"), (3, b"new")}
    for total in (4, 1):
        with pytest.raises(Refused) as refused:
            client.create_partitions(name, total)
        assert refused.value.code == client.sees(Code.INVALID_PARTITIONS)


def test_configs_are_described(client: Client, topic: TopicFactory) -> None:
    """All configs with their defaults; those given at creation are not marked as defaults."""
    name = topic(retention_ms="123456", cleanup_policy="compact")
    configs = client.describe_configs("topic", name)
    assert configs["retention.ms"].value == "123456"
    assert configs["cleanup.policy"].value == "compact"
    assert not configs["retention.ms"].is_default
    for key, default in {
        "segment.bytes": "1073741824",
        "retention.bytes": "-1",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": "1048588",
        "delete.retention.ms": "86400000",
    }.items():
        assert configs[key].value == default, key
        assert configs[key].is_default, key


def test_broker_configs_are_described(client: Client) -> None:
    """Tools read defaults from there."""
    broker = client.describe_cluster().controller
    configs = client.describe_configs("broker", str(broker))
    assert {"log.retention.ms", "num.partitions", "default.replication.factor"} <= set(configs)


def test_configs_are_changed_incrementally(client: Client, topic: TopicFactory) -> None:
    """Set, append, subtract and delete change only the configs that they name."""
    name = topic(retention_ms="1000000")

    def value(key: str) -> str | None:
        return client.describe_configs("topic", name)[key].value

    client.alter_configs(name, {"segment.bytes": ("set", "2097152")})
    assert wait_until(lambda: value("segment.bytes") == "2097152")
    assert value("retention.ms") == "1000000"
    client.alter_configs(name, {"cleanup.policy": ("append", "compact")})
    assert wait_until(lambda: value("cleanup.policy") in ("delete,compact", "compact,delete"))
    client.alter_configs(name, {"cleanup.policy": ("subtract", "delete")})
    assert wait_until(lambda: value("cleanup.policy") == "compact")
    client.alter_configs(name, {"retention.ms": ("delete", "")})
    assert wait_until(lambda: value("retention.ms") == "604800000")
    assert client.describe_configs("topic", name)["retention.ms"].is_default
    assert value("segment.bytes") == "2097152"
    for key, bad in {"segment.bytes": "many", "no.such.config": "1"}.items():
        with pytest.raises(Refused) as refused:
            client.alter_configs(name, {key: ("set", bad)})
        assert refused.value.code == client.sees(Code.INVALID_CONFIG)


def test_configs_are_replaced_as_a_whole(client: Client, topic: TopicFactory) -> None:
    """AlterConfigs resets configs that are not named to their defaults."""
    name = topic(retention_ms="1000000")
    client.replace_configs(name, {"segment.bytes": "2097152"})

    def both() -> tuple[str | None, str | None]:
        configs = client.describe_configs("topic", name)
        return configs["segment.bytes"].value, configs["retention.ms"].value

    assert wait_until(lambda: both() == ("2097152", "604800000")), both()


def test_a_changed_limit_takes_effect(client: Client, topic: TopicFactory) -> None:
    """max.message.bytes, lowered on a topic in use, refuses records that were accepted before."""
    name = topic()
    assert client.produce(name, [Record(b"x" * 5000)])[0].offset == 0
    client.alter_configs(name, {"max.message.bytes": ("set", "1000")})

    def is_refused() -> bool:
        try:
            client.produce(name, [Record(b"x" * 5000)])
        except Refused as refused:
            return refused.code == client.sees(Code.MESSAGE_TOO_LARGE)
        return False

    assert wait_until(is_refused)


def test_a_group_from_first_commit_to_deletion(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """It is listed and described while it exists, and cannot be deleted while it has members."""
    made, group = topic(2), name()
    member = keep(client.member(group, made))
    assert wait_until(lambda: member.assignment() == {0, 1}, member)
    assert wait_until(lambda: client.describe_group(group).state == "Stable", member)
    assert group in client.list_groups()
    info = client.describe_group(group)
    assert info.strategy == "range"
    assert [(m.client_id, m.partitions) for m in info.members] == [("compat", frozenset({0, 1}))]
    member.commit({0: (0, ""), 1: (0, "")})
    with pytest.raises(Refused) as refused:
        client.delete_group(group)
    assert refused.value.code == client.sees(Code.NON_EMPTY_GROUP)
    member.close()
    assert wait_until(lambda: client.describe_group(group).state == "Empty")
    assert client.describe_group(group).members == ()
    client.delete_group(group)
    assert group not in client.list_groups()
    assert client.group_offsets(group, made) == {}
    with pytest.raises(Refused) as refused:
        client.delete_group(group)
    assert refused.value.code == client.sees(Code.GROUP_ID_NOT_FOUND)


def test_group_offsets_are_altered(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """The offsets of an empty group are moved, and its next member starts there."""
    made, group = topic(2), name()
    client.produce(made, [Record(b"%d" % i, partition=i % 2) for i in range(20)])
    client.alter_group_offsets(group, made, {0: 4, 1: 9})
    assert client.group_offsets(group, made) == {0: 4, 1: 9}
    member = keep(client.member(group, made))
    assert wait_until(lambda: len(member.received) >= 7, member)
    assert {(r.partition, r.offset) for r in member.received} == {
        *((0, i) for i in range(4, 10)),
        (1, 9),
    }
    with pytest.raises(Refused) as refused:
        client.alter_group_offsets(group, made, {0: 0})
    assert refused.value.code == client.sees(Code.UNKNOWN_MEMBER_ID)


def test_group_offsets_are_deleted(
    client: Client, topic: TopicFactory, name: Name, keep: Keep
) -> None:
    """Only the named ones, and only if no member reads the topic."""
    made, group = topic(2), name()
    member = keep(client.member(group, made))
    assert wait_until(lambda: member.assignment() == {0, 1}, member)
    member.commit({0: (0, ""), 1: (0, "")})
    with pytest.raises(Refused) as refused:
        client.delete_group_offsets(group, made, [0])
    assert refused.value.code == client.sees(Code.GROUP_SUBSCRIBED_TO_TOPIC)
    member.close()
    assert wait_until(lambda: client.describe_group(group).state == "Empty")
    client.delete_group_offsets(group, made, [0])
    assert client.group_offsets(group, made) == {1: 0}


def test_records_cannot_be_deleted_beyond_the_end(client: Client, topic: TopicFactory) -> None:
    """The offset must not exceed the end of the partition."""
    name = topic()
    client.produce(name, [Record(b"only")])
    with pytest.raises(Refused) as refused:
        client.delete_records(name, 0, 100)
    assert refused.value.code == client.sees(Code.OFFSET_OUT_OF_RANGE)


def test_the_cluster_is_described(client: Client, broker: str) -> None:
    """Its id, its brokers with the addresses that clients use, and a controller among them."""
    cluster = client.describe_cluster()
    assert cluster.controller in cluster.brokers
    assert set(broker.split(",")) <= set(cluster.brokers.values())
    assert cluster.cluster_id
    assert client.describe_cluster() == cluster


def test_log_directories_are_described(client: Client, topic: TopicFactory) -> None:
    """Each partition with its size on disk."""
    name = topic(2)
    client.produce(name, [Record(b"x" * 1000, partition=1)])
    sizes = client.log_sizes(name)
    assert sizes[0] == 0
    assert 1000 < sizes[1] < 3000
