"""How topics of any size are stored: in one key, or divided into chunks of partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata import keys
from penstock.metadata.config_changes import ConfigEdit, ResourceType, incremental_alter_configs
from penstock.metadata.decisions import Change, Decision
from penstock.metadata.elections import elect_leaders
from penstock.metadata.image import ClusterImage
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.metadata.preferred import elect, hand_over, in_portions
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.topic_keys import CHUNK_PARTITIONS, divided
from penstock.metadata.topic_values import (
    decode_chunk,
    decode_topic,
    encode_chunk,
    encode_head,
    encode_topic,
)
from penstock.metadata.topics import (
    PARTITIONS_MAX,
    TopicDefaults,
    TopicSpec,
    create_partitions,
    create_topic,
    delete_topic,
)
from penstock.wire.errors import KafkaError

from .cluster import Cluster, Conflict

ETCD_BYTES_MAX = 1_572_864
ETCD_KEYS_MAX = 128
LARGE = 6_000


def commit(cluster: Cluster, decision: Decision[object]) -> None:
    """Commits as etcd would, within its limits."""
    size = sum(len(change.key) + len(change.value or b"") for change in decision.changes)
    # An upper bound for what etcd adds for each key, compare and guard.
    keys_in_all = 2 * len(decision.changes) + len(decision.guards)
    assert size + 200 * keys_in_all < ETCD_BYTES_MAX
    assert len(decision.changes) + len(decision.guards) + 1 <= ETCD_KEYS_MAX
    cluster.commit(decision)


def read_back(cluster: Cluster) -> None:
    """Checks that the image equals what a broker that starts now reads."""
    assert cluster.reloaded().topics == cluster.image.topics


def large() -> Cluster:
    cluster = Cluster(brokers=3)
    cluster.create("t", LARGE, 3)
    return cluster


def elect_all(cluster: Cluster) -> int:
    decisions = elect_leaders(cluster.image)
    for decision in decisions:
        commit(cluster, decision)
    read_back(cluster)
    return len(decisions)


def leaders(cluster: Cluster) -> set[int]:
    return {partition.leader for partition in cluster.image.topics["t"].partitions}


def test_a_small_topic_is_one_key() -> None:
    """In the format that every version reads."""
    cluster = Cluster(brokers=3)
    topic = cluster.create("t", 1000, 3)
    assert topic.chunk_partitions == 0
    value, _ = cluster.entries[keys.topic_key("t")]
    assert decode_topic(keys.topic_key("t"), value) == topic


def test_a_large_topic_is_created_in_one_commit_and_read_again() -> None:
    cluster = large()
    topic = cluster.image.topics["t"]
    assert len(topic.partitions) == LARGE
    assert topic.chunk_partitions == CHUNK_PARTITIONS
    assert len({revision for _, revision in cluster.entries.values()}) == 4
    assert cluster.reloaded().topics == {"t": topic}


def test_the_largest_topic_fits_one_commit() -> None:
    """So does its deletion, which leaves no keys behind."""
    cluster = Cluster(brokers=3)
    before = set(cluster.entries)
    topic = cluster.create("t", PARTITIONS_MAX, 3)
    size = sum(len(value) for value, _ in cluster.entries.values())
    assert size < ETCD_BYTES_MAX
    assert len(cluster.entries) < ETCD_KEYS_MAX
    commit(cluster, delete_topic(cluster.image, name=topic.name))
    assert set(cluster.entries) == before
    assert cluster.image.topics == {}
    assert cluster.image._chunks == {}


def test_a_topic_that_does_not_fit_one_commit_is_refused() -> None:
    """The error says what to do instead, and comes before much work was done."""
    cluster = Cluster(brokers=40)
    with pytest.raises(KafkaError, match="add the others later"):
        cluster.create("t", PARTITIONS_MAX, 40)
    long_ids = [keys.BROKER_ID_MAX - number for number in range(5)]
    for broker_id in long_ids:
        cluster.start(broker_id)
    spec = TopicSpec("t", assignments=[(n, long_ids) for n in range(PARTITIONS_MAX)])
    with pytest.raises(KafkaError, match="several steps"):
        create_topic(cluster.image, spec, topic_id=cluster.new_id(), defaults=TopicDefaults())


def test_elections_in_a_large_topic_stay_within_etcds_limits() -> None:
    """Also when every partition has a different state."""
    cluster = large()
    cluster.kill(0)
    assert elect_all(cluster) > 5
    assert leaders(cluster) == {1, 2}
    assert elect_leaders(cluster.image) == ()
    cluster.start(0)
    cluster.kill(1)
    cluster.start(1)
    elect_all(cluster)
    assert leaders(cluster) <= {0, 1, 2}
    cluster.kill(0, 1, 2)
    elect_all(cluster)
    assert leaders(cluster) == {NO_LEADER}


def test_a_large_topic_is_handed_over_in_portions() -> None:
    cluster = large()
    rounds = 0
    while (decision := hand_over(cluster.image, 0)).changes:
        commit(cluster, decision)
        rounds += 1
    assert rounds > 5
    assert decision.result == 0
    assert leaders(cluster) == {1, 2}
    for portion in in_portions(cluster.image, None):
        commit(cluster, elect(cluster.image, portion))


def test_a_change_writes_only_the_chunks_it_affects() -> None:
    """It is conditional on the head: meanwhile the topic may be deleted, or its configs changed."""
    cluster = large()
    cluster.kill(2)
    decision = elect_leaders(cluster.image)[0]
    assert len(decision.changes) == 2
    assert [guard.key for guard in decision.guards] == [keys.topic_key("t")]
    edit = ConfigEdit("retention.ms", 0, "1000")
    commit(cluster, incremental_alter_configs(cluster.image, ResourceType.TOPIC, "t", [edit]))
    with pytest.raises(Conflict):
        cluster.commit(decision)
    assert cluster.image.topics["t"].configs == {"retention.ms": "1000"}
    elect_all(cluster)


def test_a_durability_change_of_the_largest_topic_writes_only_its_head() -> None:
    """The head contains the revision of the change. It stays when chunks or other configs
    change."""
    cluster = Cluster(brokers=3)
    cluster.create("t", PARTITIONS_MAX, 3)
    for name, value in (("durability", "replicated"), ("durability", "fsync")):
        edit = ConfigEdit(name, 0, value)
        decision = incremental_alter_configs(cluster.image, ResourceType.TOPIC, "t", [edit])
        assert [change.key for change in decision.changes] == [keys.topic_key("t")]
        commit(cluster, decision)
        switched = cluster.revision
        assert cluster.image.topics["t"].synced_from == switched
    cluster.kill(2)
    elect_all(cluster)
    edit = ConfigEdit("retention.ms", 0, "1000")
    commit(cluster, incremental_alter_configs(cluster.image, ResourceType.TOPIC, "t", [edit]))
    assert cluster.image.topics["t"].synced_from == switched
    read_back(cluster)


def test_a_topic_that_grows_large_is_divided() -> None:
    """Later it grows by chunks. Every state on the way is complete."""
    cluster = Cluster(brokers=3)
    cluster.create("t", 700, 3)
    for count in (2_000, 2_001, 4_345):
        before = cluster.image.topics["t"].partitions
        commit(cluster, create_partitions(cluster.image, "t", count))
        topic = cluster.image.topics["t"]
        assert len(topic.partitions) == count
        assert topic.partitions[: len(before)] == before
        read_back(cluster)


def test_a_large_topic_of_an_earlier_version_is_divided_by_its_next_change() -> None:
    """It was stored in one key, however large."""
    cluster = Cluster(brokers=3)
    topic = cluster.create("t", 1, 3)
    old = replace(topic, partitions=topic.partitions * 4_000)
    key = keys.topic_key("t")
    change = Change(key, encode_topic(old), cluster.image.revision_of(key))
    cluster.commit(Decision((change,), None))
    assert cluster.image.topics["t"] == old
    cluster.kill(0)
    elect_all(cluster)
    assert leaders(cluster) == {1}
    assert cluster.image.topics["t"].chunk_partitions == CHUNK_PARTITIONS
    commit(cluster, delete_topic(cluster.image, name="t"))
    assert set(cluster.entries) == {"/penstock/brokers/1", "/penstock/brokers/2"}


def test_a_head_without_its_chunks_is_refused() -> None:
    """Continuing with half a topic would be worse than stopping."""
    cluster = large()
    missing = keys.chunk_key(cluster.image.topics["t"].topic_id, 3)
    entries = [(key, *entry) for key, entry in cluster.entries.items() if key != missing]
    with pytest.raises(MetadataInvalid, match="chunk 3"):
        ClusterImage().load(entries, cluster.revision)


def test_a_reload_reports_a_large_topic_once() -> None:
    """However many of its keys have changed meanwhile."""
    cluster = large()
    behind = cluster.reloaded()
    before = behind.topics["t"]
    cluster.kill(0)
    elect_all(cluster)
    entries = ((key, *entry) for key, entry in cluster.entries.items())
    changed = behind.load(entries, cluster.revision)
    (change,) = changed.topics
    assert (change.before, change.after) == (before, cluster.image.topics["t"])


def test_the_format_of_a_divided_topic_is_fixed() -> None:
    """Future versions must read stores written today: this text may change only with the
    version."""
    plain = Partition((1, 2), (1, 2), (), 1, 0, 0, 7, (7, 8))
    busy = Partition((1, 2), (2,), (1,), 2, 3, 4, 9, (8, 6), (2,), (1,))
    topic = Topic("t", b"\x01" * 16, (plain, busy), {"a.b": "c"}, 500)
    assert encode_head(topic) == (
        b'{"v":2,"id":"AQEBAQEBAQEBAQEBAQEBAQ","configs":{"a.b":"c"},"partitions":2,"chunk":500}'
    )
    assert encode_chunk(topic.partitions) == (
        b'{"v":1,"epochs":{"1":7,"2":8},"partitions":[[[1,2]],'
        b"[[1,2],2,3,4,9,[2],[1],[8,6],[2],[1]]]}"
    )
    assert keys.chunk_key(topic.topic_id, 3) == "/penstock/partitions/AQEBAQEBAQEBAQEBAQEBAQ/3"


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)))
    isr = tuple(draw(st.permutations(replicas)))[: draw(st.integers(0, len(replicas)))]
    rest = [each for each in replicas if each not in isr]
    eligible = tuple(rest[: draw(st.integers(0, len(rest)))])
    members = len(isr) + len(eligible)
    epochs = st.integers(-1, 5)
    noted = draw(st.lists(epochs, min_size=members, max_size=members))
    moved = draw(st.integers(0, len(replicas)))
    return Partition(
        replicas,
        isr,
        eligible,
        draw(st.sampled_from((NO_LEADER, *isr))),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 3)),
        draw(epochs),
        tuple(noted) if draw(st.booleans()) else (),
        replicas[:moved],
        replicas[moved:] if draw(st.booleans()) else (),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(partitions(), min_size=1, max_size=8))
def test_a_chunk_is_read_as_it_was_written(held: list[Partition]) -> None:
    key = keys.chunk_key(b"\x01" * 16, 0)
    assert decode_chunk(key, encode_chunk(held)) == tuple(held)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b'{"v":1,"epochs":{},"partitions":[]}', "list of partitions"),
        (b'{"v":1,"epochs":[],"partitions":[[[1]]]}', "list of partitions"),
        (b'{"v":1,"epochs":{"x":1},"partitions":[[[1]]]}', "epochs"),
        (b'{"v":1,"epochs":{},"partitions":[[]]}', "partition 0"),
        (b'{"v":1,"epochs":{},"partitions":[[[]]]}', "partition 0"),
        (b'{"v":1,"epochs":{},"partitions":[7]}', "partition 0"),
        (b'{"v":1,"epochs":{},"partitions":[[[1],null,null,null,null,3]]}', "broker ids"),
        (b'{"v":1,"epochs":{},"partitions":[[[1],2]]}', "leader"),
        (b'{"v":2,"epochs":{},"partitions":[[[1]]]}', "format version"),
    ],
)
def test_an_invalid_chunk_is_refused(value: bytes, problem: str) -> None:
    key = keys.chunk_key(b"\x01" * 16, 0)
    with pytest.raises(MetadataInvalid, match=problem):
        decode_chunk(key, value)


@pytest.mark.parametrize("key", ["/penstock/partitions/x/0", "/penstock/partitions/x"])
def test_an_invalid_chunk_key_is_refused(key: str) -> None:
    with pytest.raises(MetadataInvalid):
        ClusterImage().apply(key, b"", 1)


def test_many_replicas_make_smaller_chunks() -> None:
    """A chunk is limited in bytes, not only in partitions."""
    partition = Partition(tuple(range(100)), tuple(range(100)), (), 0, 0, 0, 1, (1,) * 100)
    topic = divided(Topic("t", b"\x01" * 16, (partition,) * 1000, {}))
    assert 1 < topic.chunk_partitions < 200
