"""Tests that dead letters are sent back exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from penstock import Consumer, Producer, Record, TopicPartition
from penstock.client.errors import ClientError
from penstock.client.processing import dead_letter_headers as names
from penstock.client.redrive import REDRIVEN, Redrive, Redriven, read_dead_letter
from penstock.testing import Broker

Raw = Record[Any, Any]


def letter(value: bytes, topic: str, error: str, partition: int = 1, *own: Any) -> dict[str, Any]:
    original: Raw = Record(topic, partition, 7, 1_700_000_000_000, b"k", value, tuple(own))
    return {
        "value": value,
        "key": b"k",
        "headers": names.dead_letter_headers(original, ValueError(error), attempts=1),
    }


def fill(broker: Broker, dead: str, letters: Iterable[dict[str, Any]]) -> None:
    with Producer(broker.bootstrap) as producer:
        for number, each in enumerate(letters):
            producer.send(dead, partition=number % 2, **each)


def read(broker: Broker, topic: str) -> list[Raw]:
    """Returns all records of the topic. Waits until every transaction has ended."""
    found: list[Raw] = []
    with (
        Consumer(broker.bootstrap, isolation_level="read_committed") as consumer,
        Consumer(broker.bootstrap) as every_consumer,
    ):
        every = [TopicPartition(topic, n) for n in range(consumer.partitions_for(topic))]
        ends = every_consumer.end_offsets(every)
        consumer.assign(every)
        consumer.seek_to_beginning(*every)
        while any(consumer.position(each) < end for each, end in ends.items()):
            found += consumer.poll(1_000)
    return found


def redrive(broker: Broker, dead: str, **options: Any) -> Redriven:
    return asyncio.run(Redrive(broker.bootstrap, dead, **options).run())


def test_a_dead_letter_goes_back_to_its_partition(live_broker: Broker) -> None:
    """With its own headers and its own time, and only once."""
    topic, dead = live_broker.new_topic(partitions=3), live_broker.new_topic(partitions=2)
    fill(live_broker, dead, [letter(b"one", topic, "bad", 2, ("trace", b"t1"))])
    first = redrive(live_broker, dead)
    again = redrive(live_broker, dead)
    (found,) = read(live_broker, topic)
    assert (first.sent[topic], again.read) == (1, 0)
    assert (found.value, found.key, found.partition) == (b"one", b"k", 2)
    assert (found.headers, found.timestamp) == (
        (("trace", b"t1"), (REDRIVEN, b"1")),
        1_700_000_000_000,
    )


def test_records_that_are_not_selected_stay_dead_letters(live_broker: Broker) -> None:
    topic, dead = live_broker.new_topic(partitions=3), live_broker.new_topic(partitions=2)
    fill(
        live_broker,
        dead,
        [
            letter(b"json", topic, "this is not JSON"),
            letter(b"age", topic, "the age is missing"),
            {"value": b"stray", "key": None, "headers": ()},
        ],
    )
    first = redrive(live_broker, dead, error="not json")
    assert (first.sent[topic], first.left, first.unknown) == (1, 1, 1)
    read(live_broker, dead)
    preview = asyncio.run(Redrive(live_broker.bootstrap, dead).preview())
    assert (preview.sent[topic], preview.unknown) == (1, 1)
    second = redrive(live_broker, dead)
    assert (second.sent[topic], second.left, second.unknown) == (1, 0, 1)
    assert sorted(each.value for each in read(live_broker, topic)) == [b"age", b"json"]
    other = live_broker.new_topic()
    assert redrive(live_broker, dead, to=other).sent == {other: 1}
    assert [each.value for each in read(live_broker, other)] == [b"stray"]


def test_a_limit_and_many_transactions(live_broker: Broker) -> None:
    topic, dead = live_broker.new_topic(partitions=3), live_broker.new_topic(partitions=2)
    fill(live_broker, dead, [letter(b"%d" % n, topic, "bad") for n in range(1_200)])
    assert redrive(live_broker, dead, limit=700).sent[topic] == 700
    seen: list[int] = []
    work = Redrive(live_broker.bootstrap, dead)
    done = asyncio.run(work.run(lambda result: seen.append(result.read)))
    assert (done.sent[topic], done.total >= 500, seen[-1]) == (500, True, 500)
    values = [each.value for each in read(live_broker, topic)]
    assert sorted(values) == sorted(b"%d" % n for n in range(1_200))


def test_an_interrupted_redrive_continues(live_broker: Broker) -> None:
    """It ends in the middle, by an error of its caller; what was not committed is sent again."""
    topic, dead = live_broker.new_topic(partitions=3), live_broker.new_topic(partitions=2)
    fill(live_broker, dead, [letter(b"%d" % n, topic, "bad") for n in range(1_200)])

    def interrupt(result: Redriven) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Redrive(live_broker.bootstrap, dead).run(interrupt))
    part = len(read(live_broker, topic))
    assert 0 < part < 1_200
    assert redrive(live_broker, dead).sent[topic] == 1_200 - part
    values = [each.value for each in read(live_broker, topic)]
    assert sorted(values) == sorted(b"%d" % n for n in range(1_200))


def test_two_redrives_at_once_send_nothing_twice(live_broker: Broker) -> None:
    topic, dead = live_broker.new_topic(partitions=3), live_broker.new_topic(partitions=2)
    fill(live_broker, dead, [letter(b"%d" % n, topic, "bad") for n in range(1_200)])

    async def both() -> list[Any]:
        works = [Redrive(live_broker.bootstrap, dead).run() for _ in range(2)]
        return await asyncio.gather(*works, return_exceptions=True)

    for outcome in asyncio.run(both()):
        assert isinstance(outcome, Redriven | ClientError)
    redrive(live_broker, dead)
    values = [each.value for each in read(live_broker, topic)]
    assert sorted(values) == sorted(b"%d" % n for n in range(1_200))


def test_dead_letters_of_share_groups_are_understood() -> None:
    """The names of KIP-1191. They are removed when a record is sent back."""
    headers = (
        ("own", b"1"),
        ("__dlq.errors.topic", b"jobs"),
        ("__dlq.errors.partition", b"2"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"workers"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"limit reached"),
    )
    found = read_dead_letter(Record("dead", 0, 0, 0, None, b"", headers))
    assert (found.topic, found.partition, found.error) == ("jobs", 2, "limit reached")
    assert found.headers == (("own", b"1"),)


@pytest.mark.parametrize("number", [b"", b"-1", b"\xff", b"1" * 40, "²".encode()])
def test_bad_headers_do_no_harm(number: bytes) -> None:
    headers = ((names.PARTITION, number), (names.TIMESTAMP, number), (REDRIVEN, number))
    found = read_dead_letter(Record("dead", 0, 0, 0, None, b"", headers))
    assert (found.topic, found.partition, found.timestamp, found.redriven) == ("", None, None, 0)
