"""The image follows the store and reports what changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata import keys
from penstock.metadata.config_values import encode_configs
from penstock.metadata.image import BrokerChange, Changed, ClusterImage, TopicChange
from penstock.metadata.membership import claim_controller, create_cluster
from penstock.metadata.model import Partition, Topic
from penstock.metadata.producer_ids import allocate_producer_ids
from penstock.metadata.stored_fields import MetadataInvalid
from penstock.metadata.topic_values import encode_topic
from penstock.metadata.topics import delete_topic
from penstock.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster


def topic(name: str, number: int, **configs: str) -> Topic:
    partition = Partition((0,), (0,), (), 0, 0, 0, 1)
    return Topic(name, number.to_bytes(16, "big"), (partition,), configs)


def state(image: ClusterImage) -> tuple[object, ...]:
    return (
        image.cluster_id,
        image.revision,
        image.controller,
        image.controller_epoch,
        image.next_producer_id,
        dict(image.brokers),
        dict(image.topics),
        {each.topic_id: image.topic_by_id(each.topic_id) for each in image.topics.values()},
        {key: dict(value) for key, value in image.broker_configs.items()},
        dict(image.default_broker_configs),
        {name: image.revision_of(keys.topic_key(name)) for name in image.topics},
        {name: image.colliding_topic(name) for name in ("a.b", "a_b", "a-b", "c")},
    )


def test_a_topic_is_created_changed_and_deleted() -> None:
    """Each event contains the topic before and after the change."""
    image = ClusterImage()
    first, second = topic("t", 10), topic("t", 10, **{"retention.ms": "1"})
    changed = image.apply("/penstock/topics/t", encode_topic(first), 1)
    assert changed == Changed(topics=(TopicChange("t", None, first),))
    assert image.require_topic("t") == image.topic_by_id(first.topic_id) == first
    changed = image.apply("/penstock/topics/t", encode_topic(second), 2)
    assert changed.topics == (TopicChange("t", first, second),)
    assert image.revision_of("/penstock/topics/t") == 2
    changed = image.apply("/penstock/topics/t", None, 3)
    assert changed.topics == (TopicChange("t", second, None),)
    assert (dict(image.topics), image.topic_by_id(first.topic_id)) == ({}, None)
    assert (image.revision, image.revision_of("/penstock/topics/t")) == (3, 0)


def test_a_recreated_topic_is_found_only_by_its_new_id() -> None:
    """Also when the event of the deletion was missed."""
    image = ClusterImage()
    old, new = topic("t", 10), topic("t", 11)
    image.apply("/penstock/topics/t", encode_topic(old), 1)
    changed = image.apply("/penstock/topics/t", encode_topic(new), 3)
    assert changed.topics == (TopicChange("t", old, new),)
    assert image.topic_by_id(old.topic_id) is None
    assert image.require_topic_id(new.topic_id) == new


def test_unknown_topics_raise_kafkas_errors() -> None:
    """By name and by id, with a readable message."""
    image = ClusterImage()
    with pytest.raises(KafkaError, match="no topic 't'") as by_name:
        image.require_topic("t")
    with pytest.raises(KafkaError, match="AQEBAQEBAQEBAQEBAQEBAQ") as by_id:
        image.require_topic_id(b"\x01" * 16)
    assert by_name.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert by_id.value.code is ErrorCode.UNKNOWN_TOPIC_ID


def test_partitions_are_found_by_index() -> None:
    """An index that does not exist gives None."""
    image = Cluster(brokers=1).image
    assert image.partition("t", 0) is None
    cluster = Cluster(brokers=1)
    created = cluster.create("t", 2)
    assert cluster.image.partition("t", 1) == created.partitions[1]
    assert cluster.image.partition("t", 2) is None
    assert cluster.image.partition("t", -1) is None


def test_a_broker_epoch_is_the_revision_of_its_registration() -> None:
    """The event for a broker that left contains the broker as it was."""
    cluster = Cluster(brokers=2)
    before = cluster.image.brokers[1]
    assert before.broker_epoch == 2
    cluster.revision += 1
    changed = cluster.image.apply(keys.broker_key(1), None, cluster.revision)
    assert changed == Changed(brokers=(BrokerChange(1, before, None),))
    assert changed.broker_ids == (1,)
    assert list(cluster.image.brokers) == [0]


def test_an_old_event_changes_nothing() -> None:
    """An event may arrive twice, for example after a reload."""
    cluster = Cluster(brokers=1)
    cluster.create("t")
    key = keys.topic_key("t")
    value, revision = cluster.entries[key]
    cluster.create("u")
    before = state(cluster.image)
    assert not cluster.image.apply(key, value, revision)
    assert not cluster.image.apply(key, None, revision)
    assert state(cluster.image) == before


def test_a_value_that_cannot_be_decoded_leaves_the_image_unchanged() -> None:
    """The broker must stop and give the reason, without half a change in its image."""
    cluster = Cluster(brokers=1)
    cluster.create("t")
    before = state(cluster.image)
    for key in (keys.topic_key("t"), keys.broker_key(0), keys.CONTROLLER_KEY, keys.CLUSTER_KEY):
        with pytest.raises(MetadataInvalid):
            cluster.image.apply(key, b"{}", 99)
    assert state(cluster.image) == before


def test_two_topics_cannot_have_the_same_id() -> None:
    """A request by id could mean either."""
    image = ClusterImage()
    image.apply("/penstock/topics/a", encode_topic(topic("a", 10)), 1)
    with pytest.raises(MetadataInvalid, match="same id"):
        image.apply("/penstock/topics/b", encode_topic(topic("b", 10)), 2)


def test_keys_of_a_newer_version_are_ignored() -> None:
    """They raise the revision and change nothing else."""
    image = ClusterImage()
    assert not image.apply("/penstock/unknown/x", b"whatever", 5)
    assert image.revision == 5


def test_names_that_share_metrics_collide() -> None:
    """Metric names do not distinguish dots and underscores. A name does not collide with itself."""
    cluster = Cluster(brokers=1)
    cluster.create("a.b_c")
    assert cluster.image.colliding_topic("a_b.c") == "a.b_c"
    assert cluster.image.colliding_topic("a.b_c") is None
    assert cluster.image.colliding_topic("a-b_c") is None
    cluster.commit(delete_topic(cluster.image, name="a.b_c"))
    assert cluster.image.colliding_topic("a_b.c") is None


def test_other_keys_are_applied() -> None:
    """The cluster id, the controller and its epoch, broker configs, producer ids."""
    cluster = Cluster(brokers=1)
    assert cluster.commit(create_cluster(cluster.image, "the-cluster")) == "the-cluster"
    claim = claim_controller(cluster.image, 0)
    assert claim is not None
    cluster.commit(claim)
    cluster.commit(allocate_producer_ids(cluster.image, b"b" * 16))
    image = cluster.image
    assert image.cluster_id == "the-cluster"
    assert image.controller is not None
    assert (image.controller.broker_id, image.controller.epoch, image.controller_epoch) == (0, 1, 1)
    assert image.next_producer_id == 1000
    value = encode_configs({"log.retention.ms": "5"})
    assert image.apply(keys.broker_config_key(None), value, 50) == Changed(configs=True)
    assert image.apply(keys.broker_config_key(3), value, 51).configs
    assert image.default_broker_configs == {"log.retention.ms": "5"}
    assert image.broker_configs[3] == {"log.retention.ms": "5"}
    assert image.apply(keys.broker_config_key(3), None, 52).configs
    assert not image.broker_configs
    assert image.apply(keys.CONTROLLER_KEY, None, 53).controller
    assert cluster.image.controller is None
    assert image.controller_epoch == 1


def test_a_reload_reports_the_differences() -> None:
    """Created, changed, deleted and recreated topics, and no others."""
    cluster = Cluster(brokers=2)
    for name in ("same", "changed", "deleted", "recreated"):
        cluster.create(name)
    image = cluster.reloaded()
    old = dict(image.topics)
    cluster.commit(delete_topic(cluster.image, name="deleted"))
    cluster.commit(delete_topic(cluster.image, name="recreated"))
    cluster.create("recreated")
    cluster.create("created")
    grown = encode_topic(topic("changed", 77))
    cluster.revision += 1
    cluster.entries[keys.topic_key("changed")] = (grown, cluster.revision)
    cluster.kill(1)
    entries = ((key, *entry) for key, entry in cluster.entries.items())
    changed = image.load(entries, cluster.revision)
    assert sorted(changed.topic_names) == ["changed", "created", "deleted", "recreated"]
    by_name = {change.name: change for change in changed.topics}
    assert by_name["deleted"] == TopicChange("deleted", old["deleted"], None)
    assert by_name["created"].before is None
    recreated = by_name["recreated"]
    assert recreated.before is not None
    assert recreated.after is not None
    assert recreated.before.topic_id != recreated.after.topic_id
    assert changed.broker_ids == (1,)
    assert state(image) == state(cluster.reloaded())


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a.b", "a_b", "a-b", "c"]),
        st.integers(2, 200),
        st.booleans(),
    ),
    max_size=15,
    unique_by=lambda event: event[1],
)


@settings(max_examples=60, deadline=None)
@given(_EVENTS, st.integers(0, 15))
def test_events_and_reloads_lead_to_the_same_image(
    events: list[tuple[str, int, bool]], reload_at: int
) -> None:
    """Whether a broker saw every event, or was away and read everything again."""
    entries: dict[str, tuple[bytes, int]] = {}
    followed, late = ClusterImage(), ClusterImage()
    for revision, (name, number, is_put) in enumerate(events, start=1):
        key, value = keys.topic_key(name), encode_topic(topic(name, number))
        if is_put:
            entries[key] = (value, revision)
            followed.apply(key, value, revision)
        elif entries.pop(key, None):
            followed.apply(key, None, revision)
        else:
            # Nothing to delete, so another key changed at this revision.
            followed.apply("/penstock/other", b"", revision)
        if revision == reload_at:
            late.load(((key, *entry) for key, entry in entries.items()), revision)
    late.load(((key, *entry) for key, entry in entries.items()), len(events))
    fresh = ClusterImage()
    fresh.load(((key, *entry) for key, entry in entries.items()), len(events))
    assert state(followed) == state(late) == state(fresh)
