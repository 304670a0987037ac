"""DeleteRecords, DescribeProducers and DescribeLogDirs."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from broker.harness import NOW_MS, BrokerHarness, with_harness, with_harness_of
from penstock.records.record import Record, build_batch
from penstock.sim.disk.faults import DiskFaults
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)


async def delete(
    harness: BrokerHarness, topic: str, offset: int, index: int = 0, version: int = 2
) -> tuple[int, int]:
    """Returns the error code and the low watermark afterwards."""
    asked = DeleteRecordsRequest.Partition(index, offset)
    request = DeleteRecordsRequest([DeleteRecordsRequest.Topic(topic, [asked])], 30_000)
    response = await harness.ask(request, version, DeleteRecordsResponse)
    (answer,) = response.topics[0].partitions
    assert answer.partition_index == index
    return answer.error_code, answer.low_watermark


@with_harness
async def test_delete_records_raises_the_log_start_offset(harness: BrokerHarness) -> None:
    """A lower offset does not move it back."""
    await harness.create("orders")
    await harness.produce("orders", [b"a", b"b", b"c", b"d"])
    assert await delete(harness, "orders", 1, version=0) == (ErrorCode.NONE, 1)
    assert await delete(harness, "orders", 3, version=1) == (ErrorCode.NONE, 3)
    assert await delete(harness, "orders", 2, version=2) == (ErrorCode.NONE, 3)
    assert harness.hosted("orders").log.log_start_offset == 3


@with_harness
async def test_offset_minus_one_deletes_up_to_the_high_watermark(harness: BrokerHarness) -> None:
    """The next record gets the next offset."""
    await harness.create("orders")
    await harness.produce("orders", [b"a", b"b"])
    assert await delete(harness, "orders", -1) == (ErrorCode.NONE, 2)
    assert await harness.produce("orders", [b"c"]) == 2


@with_harness
async def test_offsets_above_the_high_watermark_are_out_of_range(harness: BrokerHarness) -> None:
    """Negative offsets other than -1 are out of range too."""
    await harness.create("orders")
    await harness.produce("orders", [b"a", b"b"])
    for offset in (3, -2):
        assert await delete(harness, "orders", offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert harness.hosted("orders").log.log_start_offset == 0


@with_harness
async def test_uncommitted_records_are_not_deleted(harness: BrokerHarness) -> None:
    """They are written but not synced. Their offset is out of range, and -1 stops before them."""
    await harness.create("orders", 2)
    for index, offset, answer in (
        (0, 2, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
        (1, -1, (ErrorCode.NONE, 1)),
    ):
        await harness.produce("orders", [b"a"], index)
        hosted = harness.hosted("orders", index)
        with patch.object(harness.broker.replicas.flusher, "request"):
            hosted.append_own(build_batch([Record(0, NOW_MS, None, b"b")]), NOW_MS)
        assert (hosted.high_watermark, hosted.log.end_offset) == (1, 2)
        assert await delete(harness, "orders", offset, index) == answer


@with_harness
async def test_segments_below_the_log_start_offset_are_removed(harness: BrokerHarness) -> None:
    """Their files are gone from the disk when the response is sent."""
    await harness.create("orders", configs={"segment.bytes": "200"})
    for _ in range(6):
        await harness.produce("orders", [bytes(150)])
    before = harness.disks[0].listdir("/broker-0/logs/orders-0")
    assert await delete(harness, "orders", 5) == (ErrorCode.NONE, 5)
    after = harness.disks[0].listdir("/broker-0/logs/orders-0")
    assert sum(name.endswith(".log") for name in before) == 6
    assert sum(name.endswith(".log") for name in after) == 1
    assert not [name for name in after if name.endswith(".deleted")]


@with_harness
async def test_compacted_and_internal_topics_keep_their_records(harness: BrokerHarness) -> None:
    """The errors are POLICY_VIOLATION, unless the cleanup policy also deletes, and
    INVALID_TOPIC_EXCEPTION for internal topics.
    """
    await harness.create("table", configs={"cleanup.policy": "compact"})
    await harness.create("both", configs={"cleanup.policy": "compact,delete"})
    await harness.create("__consumer_offsets")
    assert await delete(harness, "table", -1) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await delete(harness, "both", -1) == (ErrorCode.NONE, 0)
    answer = await delete(harness, "__consumer_offsets", -1)
    assert answer == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


@with_harness_of(brokers=2)
async def test_only_the_leader_deletes_records(harness: BrokerHarness) -> None:
    """The error distinguishes a wrong broker from an unknown partition."""
    await harness.create("orders", 2)
    led = {0: 0, 1: 1} if harness.broker.replicas.get("orders", 0) else {0: 1, 1: 0}
    assert await delete(harness, "orders", -1, led[0]) == (ErrorCode.NONE, 0)
    assert await delete(harness, "orders", -1, led[1]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(harness, "orders", -1, 2) == unknown
    assert await delete(harness, "none", -1) == unknown


@with_harness
async def test_delete_records_is_correct_during_concurrent_flushes(harness: BrokerHarness) -> None:
    """Records that are being flushed are either committed or not."""
    await harness.create("orders", configs={"segment.bytes": "300"})
    for start in range(0, 40, 4):
        offsets, deleted = await asyncio.gather(
            asyncio.gather(*(harness.produce("orders", [bytes(100)]) for _ in range(4))),
            delete(harness, "orders", -1),
        )
        assert offsets == [start, start + 1, start + 2, start + 3]
        assert deleted[0] == ErrorCode.NONE
        assert start <= deleted[1] <= start + 4
        assert harness.hosted("orders").log.log_start_offset == deleted[1]


@with_harness
async def test_a_disk_error_is_answered_with_a_storage_error(harness: BrokerHarness) -> None:
    """The log goes offline."""
    await harness.create("orders")
    await harness.produce("orders", [b"a"])
    harness.disks[0].set_faults(DiskFaults(fsync_eio=1.0))
    assert await delete(harness, "orders", 1) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    harness.disks[0].set_faults(DiskFaults())


@with_harness
async def test_describe_producers_returns_the_state_of_idempotent_producers(
    harness: BrokerHarness,
) -> None:
    """The last sequence number and timestamp of each producer. No transaction is open."""
    await harness.create("orders")
    await harness.produce("orders", [b"x"])
    batch = {"producer_id": 7, "producer_epoch": 2}
    await harness.produce("orders", [b"a", b"b"], **batch, base_sequence=0)
    await harness.produce("orders", [b"c"], **batch, base_sequence=2)
    topics = [
        DescribeProducersRequest.Topic("orders", [0, 1]),
        DescribeProducersRequest.Topic("none", [0]),
    ]
    response = await harness.ask(DescribeProducersRequest(topics), 0, DescribeProducersResponse)
    here, absent = response.topics[0].partitions
    assert (here.error_code, here.error_message) == (ErrorCode.NONE, None)
    (producer,) = here.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 2)
    assert producer.last_timestamp == NOW_MS
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    for unknown in (absent, response.topics[1].partitions[0]):
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.error_message
        assert unknown.active_producers == []


@with_harness_of(brokers=2)
async def test_only_brokers_with_a_replica_describe_producers(harness: BrokerHarness) -> None:
    """Other brokers answer NOT_LEADER_OR_FOLLOWER."""
    await harness.create("orders", 2)
    topics = [DescribeProducersRequest.Topic("orders", [0, 1])]
    response = await harness.ask(DescribeProducersRequest(topics), 0, DescribeProducersResponse)
    codes = sorted(each.error_code for each in response.topics[0].partitions)
    assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def log_dir(
    harness: BrokerHarness, topics: list[tuple[str, list[int]]] | None, version: int = 4
) -> DescribeLogDirsResponse.LogDir:
    asked = None
    if topics is not None:
        asked = [DescribeLogDirsRequest.Topic(*each) for each in topics]
    response = await harness.ask(DescribeLogDirsRequest(asked), version, DescribeLogDirsResponse)
    assert response.error_code == 0
    (directory,) = response.results
    return directory


def sizes(directory: DescribeLogDirsResponse.LogDir) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@with_harness
async def test_describe_log_dirs_returns_partition_sizes(harness: BrokerHarness) -> None:
    """For every partition, or for those in the request that this broker has."""
    await harness.create("orders", 2)
    await harness.create("empty")
    await harness.produce("orders", [bytes(1000)], 1)
    everything = sizes(await log_dir(harness, None))
    assert set(everything) == {("orders", 0), ("orders", 1), ("empty", 0)}
    assert everything["orders", 0] == 0
    assert everything["orders", 1] == harness.hosted("orders", 1).log.size > 1000
    some = await log_dir(harness, [("orders", [1, 5]), ("none", [0])])
    assert set(sizes(some)) == {("orders", 1)}
    assert await log_dir(harness, []) is not None
    assert sizes(await log_dir(harness, [])) == {}


@with_harness
async def test_describe_log_dirs_returns_the_path_and_the_disk_space(
    harness: BrokerHarness,
) -> None:
    """From version 4 on: the size of the disk and its free space. No replica lags or is moving."""
    await harness.create("orders")
    for version in range(1, 5):
        directory = await log_dir(harness, None, version)
        assert (directory.error_code, directory.log_dir) == (ErrorCode.NONE, "/broker-0/logs")
        free = harness.disks[0].free_bytes("/")
        assert directory.usable_bytes == (free if version >= 4 else -1)
        total = harness.disks[0].capacity_bytes
        assert directory.total_bytes == (total if version >= 4 else -1)
        assert free < total
        (partition,) = directory.topics[0].partitions
        assert (partition.offset_lag, partition.is_future_key) == (0, False)
