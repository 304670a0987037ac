"""Tests batch reads from a real broker: which records, and in how many pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from penstock import Admin, Producer
from penstock.client.errors import OptionError
from penstock.spark.log_view import DataLoss
from penstock.testing import Broker
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition
from spark.direct import Deadline, batch_reader, offsets_of, read_all, rows_of

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def ten(broker: Broker, producer: Producer[Any, Any]) -> str:
    """Two partitions with ten records each, one second apart."""
    topic = broker.new_topic(partitions=2)
    for number in range(20):
        partition, offset = number % 2, number // 2
        producer.send(
            topic,
            key=b"k%d" % number,
            value=b"v%d" % number,
            partition=partition,
            timestamp_ms=T0 + offset * 1000,
        )
    producer.flush()
    return topic


def both(topic: str, first: range, second: range) -> dict[tuple[str, int], list[int]]:
    return {
        (topic, number): list(numbers)
        for number, numbers in enumerate((first, second))
        if len(numbers)
    }


def each(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({}, range(10), range(10)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10), range(10)),
        ({"startingOffsets": "LATEST"}, range(0), range(0)),
        ({"startingOffsets": (3, 7)}, range(3, 10), range(7, 10)),
        ({"startingOffsets": (-2, -1)}, range(10), range(0)),
        ({"endingOffsets": (4, -1)}, range(4), range(10)),
        ({"startingOffsets": (5, 5), "endingOffsets": (5, 6)}, range(0), range(5, 6)),
        ({"startingTimestamp": T0 + 3000}, range(3, 10), range(3, 10)),
        ({"startingTimestamp": T0 + 3001}, range(4, 10), range(4, 10)),
        ({"endingTimestamp": T0 + 3000}, range(3), range(3)),
        ({"endingTimestamp": T0 + 99_000}, range(10), range(10)),
        ({"startingOffsetsByTimestamp": (T0, T0 + 8000)}, range(10), range(8, 10)),
        ({"endingOffsetsByTimestamp": (T0, T0 + 8000)}, range(0), range(8)),
        (
            {
                "startingTimestamp": T0 + 99_000,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            range(0),
            range(0),
        ),
    ],
)
def test_bounds_mean_the_same_as_in_sparks_kafka_source(
    broker: Broker, ten: str, options: Mapping[str, Any], first: range, second: range
) -> None:
    """For every way to specify the beginning and the end of a read."""
    given = {
        name: each(ten, *value) if isinstance(value, tuple) else str(value)
        for name, value in options.items()
    }
    assert offsets_of(read_all(broker.bootstrap, ten, **given)) == both(ten, first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": str(T0 + 99_000)}, "startingOffsetsByTimestampStrategy to latest"),
        ({"startingOffsets": '{"TOPIC": {"0": 1}}'}, "TOPIC-1 are missing"),
        ({"startingOffsets": '{"TOPIC": {"0": 1, "1": 1, "2": 1}}'}, "TOPIC-2 do not exist"),
        ({"endingOffsetsByTimestamp": '{"other": {"0": 1}}'}, "are missing"),
        ({"subscribe": "TOPIC, nowhere"}, "topic nowhere does not exist: create it with"),
        ({"assign": '{"TOPIC": [0, 2]}'}, "partition 2 of TOPIC, which only has partitions 0 to 1"),
    ],
)
def test_invalid_bounds_are_refused(
    broker: Broker, ten: str, options: dict[str, str], message: str
) -> None:
    """When the read is planned, with advice."""
    given = {name: value.replace("TOPIC", ten) for name, value in options.items()}
    if not {"subscribe", "assign"} & set(given):
        given["subscribe"] = ten
    with pytest.raises(OptionError, match=re.escape(message.replace("TOPIC", ten))):
        read_all(broker.bootstrap, **given)


def test_assign_and_pattern(broker: Broker, producer: Producer[Any, Any], ten: str) -> None:
    """Some partitions of a topic, and all topics whose complete name matches."""
    assigned = read_all(broker.bootstrap, assign=json.dumps({ten: [1]}))
    assert offsets_of(assigned) == {(ten, 1): list(range(10))}
    prefix = broker.new_name("pattern")
    names = [broker.new_topic(name=f"{prefix}{end}") for end in (".a", ".b", ".ab")]
    for name in names:
        producer.send(name, b"x").result(patient(120))
    matched = read_all(broker.bootstrap, subscribePattern=f"{prefix}[.][ab]")
    assert offsets_of(matched) == {(names[0], 0): [0], (names[1], 0): [0]}
    assert read_all(broker.bootstrap, subscribePattern=prefix) == []


def test_a_read_may_be_split_into_more_partitions(broker: Broker, ten: str) -> None:
    """More Spark partitions than the topic has, if requested; each record is in one of them."""
    whole = both(ten, range(10), range(10))
    for options, count in (
        ({}, 2),
        ({"minPartitions": "5"}, 5),
        ({"minPartitions": "1"}, 2),
        ({"maxRecordsPerPartition": "3"}, 8),
        ({"minPartitions": "100"}, 20),
    ):
        reader = batch_reader(broker.bootstrap, ten, **options)
        pieces = reader.partitions()
        assert len(pieces) == count
        assert offsets_of(rows_of(reader, pieces)) == whole


# -- data loss -------------------------------------------------------------------------------------


@pytest.fixture
def cut(broker: Broker, producer: Producer[Any, Any], admin: Admin) -> str:
    """Ten records, of which the first four are deleted."""
    topic = broker.new_topic()
    for number in range(10):
        producer.send(topic, value=b"%d" % number)
    producer.flush()
    admin.delete_records({TopicPartition(topic, 0): 4})
    return topic


def test_records_deleted_before_planning(broker: Broker, cut: str) -> None:
    """A read from the beginning starts at the log start offset. Requesting
    deleted offsets is data loss."""
    left = {(cut, 0): list(range(4, 10))}
    assert offsets_of(read_all(broker.bootstrap, cut)) == left
    asked = json.dumps({cut: {"0": 1}})
    with pytest.raises(DataLoss, match=r"offsets 1 to 3 of .* were deleted.*failOnDataLoss"):
        read_all(broker.bootstrap, cut, startingOffsets=asked)
    found = read_all(broker.bootstrap, cut, startingOffsets=asked, failOnDataLoss="false")
    assert offsets_of(found) == left


def test_offsets_beyond_the_end_are_data_loss(broker: Broker, cut: str) -> None:
    """Offsets that were never written are reported as such and not waited for."""
    for name in ("startingOffsets", "endingOffsets"):
        asked = {name: json.dumps({cut: {"0": 50}})}
        with pytest.raises(DataLoss, match=f"{name} has 50 for .* which ends at 10"):
            read_all(broker.bootstrap, cut, **asked)
    found = read_all(broker.bootstrap, cut, **asked, failOnDataLoss="false")
    assert offsets_of(found) == {(cut, 0): list(range(4, 10))}


@pytest.mark.parametrize("before", [7, 10])
def test_records_deleted_between_planning_and_reading(
    broker: Broker, cut: str, admin: Admin, before: int
) -> None:
    """The task notices. It reads the rest or fails the job, depending on `failOnDataLoss`."""
    strict = batch_reader(broker.bootstrap, cut)
    lenient = batch_reader(broker.bootstrap, cut, failOnDataLoss="false")
    pieces = strict.partitions()
    admin.delete_records({TopicPartition(cut, 0): before})
    with pytest.raises(DataLoss, match=r"does not hold offset 4.*failOnDataLoss"):
        rows_of(strict, pieces)
    left = [row["offset"] for row in rows_of(lenient, pieces)]
    assert left == list(range(before, 10))


def test_a_topic_deleted_between_planning_and_reading(
    broker: Broker, cut: str, admin: Admin
) -> None:
    """Reading does not create the topic again."""
    strict = batch_reader(broker.bootstrap, cut)
    lenient = batch_reader(broker.bootstrap, cut, failOnDataLoss="false")
    pieces = strict.partitions()
    admin.delete_topic(cut)
    with pytest.raises(DataLoss, match=f"{cut} does not exist.*failOnDataLoss"):
        rows_of(strict, pieces)
    assert rows_of(lenient, pieces) == []
    assert cut not in [topic.name for topic in admin.list_topics()]


def test_a_topic_recreated_between_planning_and_reading(
    broker: Broker, cut: str, admin: Admin, producer: Producer[Any, Any]
) -> None:
    """The new log is shorter than planned: this is data loss, and the task does not wait for
    more."""
    strict = batch_reader(broker.bootstrap, cut)
    lenient = batch_reader(broker.bootstrap, cut, failOnDataLoss="false")
    pieces = strict.partitions()
    admin.delete_topic(cut)
    broker.new_topic(name=cut)
    with Producer(broker.bootstrap) as fresh:
        for _ in range(6):
            fresh.send(cut, value=b"new")
    with pytest.raises(DataLoss, match="its log goes from 0 to 6"):
        rows_of(strict, pieces)
    assert [row["offset"] for row in rows_of(lenient, pieces)] == [4, 5]


def test_a_compacted_topic_has_gaps() -> None:
    """Offsets removed by compaction are skipped, also at the end of a span. A span without
    any record returns nothing."""
    settings = {"log.cleaner.backoff.ms": "50"}
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.ms": "50",
    }
    with Broker(settings) as own, Producer(own.bootstrap) as producer:
        topic = own.new_topic(configs=configs)
        for number in range(50):
            producer.send(topic, value=b"%d" % number, key=b"%d" % (number % 2 if number else 9))
        producer.flush()
        offsets = list(range(50))
        deadline = Deadline(30.0)
        while any(0 < offset < 48 for offset in offsets):
            deadline.check("compaction")
            # One more record rolls the segment, so that the records before it can be compacted.
            producer.send(topic, value=b"roll", key=b"0").result(patient(120))
            offsets = [row["offset"] for row in read_all(own.bootstrap, topic)]
        pieces = batch_reader(own.bootstrap, topic, maxRecordsPerPartition="5")
        found = [row["offset"] for row in rows_of(pieces, pieces.partitions())]
        assert found[0] == 0
        assert found[1] >= 48
        ending = json.dumps({topic: {"0": 30}})
        assert offsets_of(read_all(own.bootstrap, topic, endingOffsets=ending)) == {(topic, 0): [0]}
