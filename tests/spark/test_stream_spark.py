"""Tests streaming queries with real Spark: triggers, checkpoints, progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock import Admin, Producer
from penstock.testing import Broker
from penstock.topic_partition import TopicPartition
from spark.conftest import Read
from spark.direct import Deadline
from spark.following import Followed


def write(producer: Producer[Any, Any], topic: str, count: int, partition: int = 0) -> None:
    for number in range(count):
        producer.send(topic, b"%d" % number, partition=partition)
    producer.flush()


def test_a_checkpointed_query_continues_where_it_stopped(
    broker: Broker,
    producer: Producer[Any, Any],
    admin: Admin,
    read_stream: Read,
    checkpoint: str,
) -> None:
    """Over several runs, in limited batches, in order, each record once. Then the group has no lag,
    and Spark shows the end of the log."""
    topic, group = broker.new_topic(partitions=2), broker.new_name("group")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "groupId": group}
    followed = Followed()
    for run in range(2):
        write(producer, topic, 5)
        write(producer, topic, 2, partition=1)
        query = followed.run(read_stream(topic, **options), checkpoint)
        assert followed.offsets(topic) == list(range(5 * run + 5))
        assert followed.offsets(topic, 1) == list(range(2 * run + 2))
        offsets = {
            topic_partition.partition: at.offset
            for topic_partition, at in admin.group_offsets(group).items()
        }
        assert offsets == {0: 5 * run + 5, 1: 2 * run + 2}
    assert all(len(batch) <= 5 for batch in followed.batches.values())
    reported = query.recentProgress[0]["sources"][0]
    assert json.loads(reported["latestOffset"]) == {topic: {"0": 10, "1": 4}}
    assert json.loads(reported["endOffset"])[topic]["0"] < 10


def test_partitions_and_topics_added_while_a_query_runs(
    broker: Broker,
    producer: Producer[Any, Any],
    admin: Admin,
    read_stream: Read,
    checkpoint: str,
) -> None:
    """A query by pattern with a processing-time trigger finds them. Its group's offsets
    follow without another batch."""
    prefix, group = broker.new_name("events"), broker.new_name("group")
    first = broker.new_topic(name=f"{prefix}-a")
    write(producer, first, 3)
    frame = read_stream(subscribePattern=f"{prefix}-.*", startingOffsets="earliest", groupId=group)
    followed = Followed()
    query = followed.start(frame, checkpoint, interval="100 milliseconds")
    followed.wait_for(3, query)
    admin.create_partitions(first, 2)
    write(producer, first, 2, partition=1)
    followed.wait_for(5, query)
    second = broker.new_topic(name=f"{prefix}-b")
    write(producer, second, 4)
    followed.wait_for(9, query)
    deadline = Deadline(60.0)
    expected = {(first, 0): 3, (first, 1): 2, (second, 0): 4}
    while {
        tuple(topic_partition): at.offset
        for topic_partition, at in admin.group_offsets(group).items()
    } != expected:
        deadline.check("the last batch's progress")
    query.stop()
    assert followed.offsets(first) == [0, 1, 2]
    assert followed.offsets(first, 1) == [0, 1]
    assert followed.offsets(second) == [0, 1, 2, 3]


def test_a_query_fails_when_records_were_deleted(
    broker: Broker,
    producer: Producer[Any, Any],
    admin: Admin,
    read_stream: Read,
    checkpoint: str,
) -> None:
    """In one line that says what to set. Then the same checkpoint continues
    with the remaining records."""
    topic = broker.new_topic()
    write(producer, topic, 3)
    followed = Followed()
    followed.run(read_stream(topic, startingOffsets="earliest"), checkpoint)
    write(producer, topic, 5)
    admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(StreamingQueryException) as raised:
        followed.run(read_stream(topic, startingOffsets="earliest"), checkpoint)
    first = str(raised.value).splitlines()[0]
    assert f"DataLoss: offsets 3 to 5 of {topic}-0 were deleted by retention" in first
    assert "set failOnDataLoss to false" in first
    followed.run(read_stream(topic, startingOffsets="earliest", failOnDataLoss="false"), checkpoint)
    assert followed.offsets(topic) == [0, 1, 2, 6, 7]
