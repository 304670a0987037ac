"""Tests the sync admin client with a real broker."""

from __future__ import annotations

import threading

import pytest

from penstock import Admin, BrokerError, NewTopic, OffsetAndMetadata, TopicPartition
from penstock.errors import Closed, TopicNotFound
from penstock.testing import Broker


def test_topics_groups_and_offsets(live_broker: Broker) -> None:
    """Topics, partitions, configs and committed offsets are created, changed, listed and deleted; a
    request for something that does not exist raises a clear error."""
    name = live_broker.new_name()
    group = live_broker.new_name("group")
    topic_partition = TopicPartition(name, 1)
    with Admin(live_broker.bootstrap) as admin:
        assert admin.create_topic(name, partitions=3).partitions == 3
        again = admin.create_topics([NewTopic(name)])[name]
        assert isinstance(again, BrokerError)
        admin.create_partitions(name, 4)
        assert len(admin.describe_topic(name).partitions) == 4
        assert name in [topic.name for topic in admin.list_topics()]
        admin.alter_configs(topic=name, set_values={"retention.ms": "1000"})
        assert admin.describe_configs(topic=name)["retention.ms"].value == "1000"
        assert admin.alter_group_offsets(
            group, {topic_partition: OffsetAndMetadata(0, "note")}
        ) == {topic_partition: None}
        assert admin.group_offsets(group) == {topic_partition: OffsetAndMetadata(0, "note")}
        admin.delete_group(group)
        latest = admin.list_offsets({topic_partition: "latest"})[topic_partition]
        assert latest is not None
        assert latest.offset == 0
        assert admin.describe_cluster().brokers
        admin.delete_topic(name)
        with pytest.raises(TopicNotFound):
            admin.describe_topic(name)


def test_it_connects_on_first_use_and_serves_many_threads(live_broker: Broker) -> None:
    """Threads may share one admin client. After `close`, calls raise `Closed`."""
    admin = Admin(live_broker.bootstrap)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(admin.describe_cluster().brokers)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [1, 1, 1, 1]
    admin.close()
    with pytest.raises(Closed):
        admin.list_topics()
