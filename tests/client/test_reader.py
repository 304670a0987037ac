"""Records out of partitions: from any position, across whatever the cluster does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from client.fake_broker import DROP, FakeBroker
from client.fake_model import Log
from client.rig import with_cluster
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, NotKafka, TopicNotFound
from penstock.client.model import TopicPartition
from penstock.client.reader import Reader, ReaderConfig, Reset, decode_from
from penstock.records.record import ControlMarker, ControlType, Record, build_batch, control_batch
from penstock.wire.api import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import FetchResponse

PLACE = TopicPartition("orders", 0)
QUICK = ReaderConfig(max_wait_ms=20)


def batch(*numbers: int) -> bytearray:
    return build_batch(
        [Record(index, 1000 + number, None, b"%d" % number) for index, number in enumerate(numbers)]
    )


def read(
    fake: FakeBroker,
    positions: dict[TopicPartition, int],
    enough: int,
    check: Callable[[Reader], Any] = lambda reader: None,
    **waits: Any,
) -> dict[TopicPartition, list[int]]:
    """Read until there are so many records; by partition."""

    async def main(cluster: Cluster) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = {}
        async with Reader(cluster, positions, QUICK) as reader, asyncio.timeout(10):
            while sum(map(len, found.values())) < enough:
                for part in await reader.poll(5.0):
                    numbers = [int(record.value or b"") for record in part.records]
                    found.setdefault(part.place, []).extend(numbers)
            check(reader)
        return found

    return with_cluster(fake, main, **waits)


def test_all_records_are_read_in_order(fake: FakeBroker) -> None:
    """Of several partitions, each in its own order."""
    topic = fake.model.add_topic("orders", 2)
    topic.logs[0].append(batch(0, 1))
    topic.logs[0].append(batch(2))
    topic.logs[1].append(batch(10, 11))
    other = TopicPartition("orders", 1)
    assert read(fake, {PLACE: 0, other: 0}, 5) == {PLACE: [0, 1, 2], other: [10, 11]}


def test_reading_begins_in_the_middle_of_a_batch(fake: FakeBroker) -> None:
    """The broker sends the whole batch; what was not asked for is dropped."""
    fake.model.add_topic("orders").logs[0].append(batch(0, 1, 2, 3))
    assert read(fake, {PLACE: 2}, 2) == {PLACE: [2, 3]}


def test_new_records_are_waited_for(fake: FakeBroker) -> None:
    """`poll` returns nothing after its timeout, and the records once they are there."""
    log = fake.model.add_topic("orders").logs[0]

    async def main(cluster: Cluster) -> list[bytes | None]:
        async with Reader(cluster, {PLACE: 0}, QUICK) as reader:
            assert await reader.poll(0.05) == []
            log.append(batch(7))
            fetched = await reader.poll(5.0)
        return [record.value for part in fetched for record in part.records]

    assert with_cluster(fake, main) == [b"7"]


@pytest.mark.parametrize(
    "step",
    [DROP, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH],
)
def test_reading_goes_on_after_trouble(fake: FakeBroker, step: Any) -> None:
    """Nothing is lost, nothing comes twice."""
    log = fake.model.add_topic("orders").logs[0]
    for number in range(3):
        log.append(batch(number))
    fake.next(ApiKey.FETCH, step, step)
    assert read(fake, {PLACE: 0}, 3) == {PLACE: [0, 1, 2]}


def test_a_position_lost_to_retention_moves_to_the_oldest_record(fake: FakeBroker) -> None:
    """And the reader says so."""
    topic = fake.model.add_topic("orders")
    topic.logs[0] = Log(start=5)
    topic.logs[0].append(batch(5, 6))
    resets: list[Reset] = []
    assert read(fake, {PLACE: 1}, 2, lambda reader: resets.extend(reader.resets)) == {PLACE: [5, 6]}
    assert resets == [Reset(PLACE, 1, 5)]


def test_a_position_beyond_the_end_moves_to_the_end(fake: FakeBroker) -> None:
    """As when a topic was deleted and made anew under the same name."""
    log = fake.model.add_topic("orders").logs[0]
    log.append(batch(0, 1))

    async def main(cluster: Cluster) -> tuple[list[Reset], int]:
        async with Reader(cluster, {PLACE: 100}, QUICK) as reader:
            assert await reader.poll(0.2) == []
            return reader.resets, reader.positions[PLACE]

    assert with_cluster(fake, main) == ([Reset(PLACE, 100, 2)], 2)


def test_damaged_records_are_told_not_passed_over(fake: FakeBroker) -> None:
    """With the place, so that it can be looked into."""
    log = fake.model.add_topic("orders").logs[0]
    log.append(batch(0, 1))
    log.batches[0][-1] ^= 1
    with pytest.raises(NotKafka, match="orders-0 holds at offset 0 cannot be read"):
        read(fake, {PLACE: 0}, 1)


def test_records_that_came_are_returned_before_a_failure_is(fake: FakeBroker) -> None:
    """One partition's trouble does not swallow another's records."""
    topic = fake.model.add_topic("orders", 2)
    topic.logs[0].append(batch(0))
    bad = FetchResponse.Partition(1, ErrorCode.KAFKA_STORAGE_ERROR)
    good = FetchResponse.Partition(0, records=topic.logs[0].read(0))
    answer = FetchResponse(responses=[FetchResponse.Topic("orders", partitions=[good, bad])])
    fake.next(ApiKey.FETCH, answer)
    other = TopicPartition("orders", 1)
    topic.logs[1].append(batch(5))
    assert read(fake, {PLACE: 0, other: 0}, 2) == {PLACE: [0], other: [5]}


def test_a_topic_that_is_deleted_ends_the_reader(fake: FakeBroker) -> None:
    """There is nothing to wait for."""
    fake.model.add_topic("orders")

    async def main(cluster: Cluster) -> None:
        async with Reader(cluster, {PLACE: 0}, QUICK) as reader:
            assert await reader.poll(0.05) == []
            del fake.model.topics["orders"]
            await reader.poll(5.0)

    with pytest.raises(TopicNotFound):
        with_cluster(fake, main)


def test_a_refusal_ends_the_reader(fake: FakeBroker) -> None:
    """What cannot get better is not retried."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="not allowed"):
        read(fake, {PLACE: 0}, 1)


def test_trouble_that_lasts_ends_the_reader(fake: FakeBroker) -> None:
    """After the deadline, with the reason."""
    fake.model.add_topic("orders")
    fake.next(ApiKey.FETCH, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000)
    with pytest.raises(BrokerError, match="does not lead"):
        read(fake, {PLACE: 0}, 1, deadline_s=0.1)


def test_batches_are_decoded_up_to_where_they_were_cut() -> None:
    """A fetch may end anywhere; the position stays before what is missing."""
    log = Log()
    for number in range(3):
        log.append(batch(number))
    data = log.read(0)
    records, offset = decode_from(data[:-1], 0)
    assert ([record.offset for record in records], offset) == ([0, 1], 2)
    assert decode_from(data[:10], 0) == ([], 0)


def test_batches_without_records_move_the_position() -> None:
    """Compaction leaves empty batches, transactions leave control batches."""
    marker = control_batch(
        ControlMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp=5
    )
    empty = build_batch([], base_offset=1, last_offset_delta=8)
    records, offset = decode_from(bytes(marker) + bytes(empty), 0)
    assert (records, offset) == ([], 10)
