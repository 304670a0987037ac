"""ListOffsets: special timestamps, lookups by time, and what each version supports."""

from __future__ import annotations

import pytest

from broker.harness import NOW_MS, BrokerHarness, with_harness
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.sim.actors.bad_batches import bad_batch
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import ListOffsetsRequest, ListOffsetsResponse

Asked = ListOffsetsRequest.Partition
Told = tuple[int, int, int]


async def list_offsets(
    harness: BrokerHarness, version: int, *topics: tuple[str, list[Asked]]
) -> dict[tuple[str, int], ListOffsetsResponse.Partition]:
    request = ListOffsetsRequest(-1, 0, [ListOffsetsRequest.Topic(*topic) for topic in topics])
    response = await harness.ask(request, version, ListOffsetsResponse)
    told = [(topic.name, each) for topic in response.topics for each in topic.partitions]
    answers = {(name, each.partition_index): each for name, each in told}
    assert len(answers) == len(told), "a partition is answered twice"
    assert len(response.topics) == len({name for name, _ in answers})
    return answers


async def offset_at(
    harness: BrokerHarness, timestamp: int, version: int, topic: str = "orders"
) -> Told:
    answers = await list_offsets(harness, version, (topic, [Asked(0, -1, timestamp)]))
    answer = answers[topic, 0]
    return answer.error_code, answer.offset, answer.timestamp


UNSUPPORTED: Told = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


@with_harness
async def test_special_timestamps_are_supported_from_their_version_on(
    harness: BrokerHarness,
) -> None:
    """In lower versions the partition gets UNSUPPORTED_VERSION, as in Kafka. So do unknown negative
    timestamps.
    """
    await harness.create("orders")
    await harness.produce("orders", [b"a", b"b", b"c"])
    marks: dict[int, tuple[int, Told]] = {
        -1: (1, (0, 3, -1)),
        -2: (1, (0, 0, -1)),
        -3: (7, (0, 2, NOW_MS + 2)),
        -4: (8, (0, 0, -1)),
        -5: (9, (0, -1, -1)),
        -6: (99, UNSUPPORTED),
        -7: (99, UNSUPPORTED),
        -(2**63): (99, UNSUPPORTED),
    }
    for mark, (since, answer) in marks.items():
        for version in range(1, 11):
            told = await offset_at(harness, mark, version)
            assert told == (answer if version >= since else UNSUPPORTED), (mark, version)


@with_harness
async def test_an_unsupported_timestamp_is_refused_before_anything_else(
    harness: BrokerHarness,
) -> None:
    """Even for a partition that does not exist."""
    assert await offset_at(harness, -3, 6, "none") == UNSUPPORTED
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await offset_at(harness, -3, 7, "none") == unknown


@with_harness
async def test_an_empty_partition_has_offsets_and_a_leader_epoch(harness: BrokerHarness) -> None:
    """Latest and earliest are 0 in the leader's epoch. There is no newest record."""
    await harness.create("empty")
    for mark, offset, epoch in ((-1, 0, 0), (-2, 0, 0), (-3, -1, -1), (-4, 0, 0), (0, -1, -1)):
        answers = await list_offsets(harness, 10, ("empty", [Asked(0, -1, mark)]))
        answer = answers["empty", 0]
        assert (answer.error_code, answer.offset, answer.leader_epoch) == (0, offset, epoch)


@with_harness
async def test_a_partition_that_is_requested_twice_is_refused_once(harness: BrokerHarness) -> None:
    """In one entry or in two entries of the same topic. The other partitions are answered."""
    await harness.create("orders", 2)
    latest, other = Asked(0, -1, -1), Asked(1, -1, -1)
    for topics in (
        [("orders", [latest, latest, other])],
        [("orders", [latest]), ("orders", [other, latest])],
    ):
        answers = await list_offsets(harness, 9, *topics)
        assert answers["orders", 0].error_code == ErrorCode.INVALID_REQUEST
        assert answers["orders", 1].error_code == ErrorCode.NONE


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_lookup_by_time_finds_the_first_record_at_or_after_it(
    tmp_path: object, codec: int
) -> None:
    """Within a batch too, compressed or not."""

    @with_harness
    async def run_case(harness: BrokerHarness) -> None:
        await harness.create("orders")
        await harness.produce("orders", [b"x"] * 10, codec=codec)
        for at in (0, 4, 9):
            assert await offset_at(harness, NOW_MS + at, 1) == (0, at, NOW_MS + at)
        assert await offset_at(harness, 0, 1) == (0, 0, NOW_MS)
        assert await offset_at(harness, NOW_MS + 10, 1) == (0, -1, -1)

    run_case(tmp_path)  # type: ignore[arg-type]


@with_harness
async def test_a_batch_that_is_slow_to_decompress_is_opened_on_a_thread(
    harness: BrokerHarness,
) -> None:
    """The result is the same, also for the newest record and for several partitions."""
    await harness.create("orders", 2)
    for index in (0, 1):
        for start in (0, 100):
            records = [Record(at, NOW_MS + start + at, None, bytes(50_000)) for at in range(10)]
            harness.hosted("orders", index).append_own(
                build_batch(records, codec=Codec.ZSTD), NOW_MS
            )
        hosted = harness.hosted("orders", index)
        await harness.until(lambda hosted=hosted: hosted.high_watermark == 20)  # type: ignore[misc]
    asked = [
        ListOffsetsRequest.Partition(index, timestamp=timestamp)
        for index, timestamp in ((0, NOW_MS + 105), (1, -3))
    ]
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic("orders", asked)])
    response = await harness.ask(request, 7, ListOffsetsResponse)
    answers = response.topics[0].partitions
    assert [(each.offset, each.timestamp) for each in answers] == [
        (15, NOW_MS + 105),
        (19, NOW_MS + 109),
    ]
    assert all(each.error_code == 0 and each.leader_epoch == 0 for each in answers)
    assert harness.services.large_batches.opened == 2


@with_harness
async def test_a_lookup_by_time_finds_a_batch_that_cannot_be_decoded(
    harness: BrokerHarness,
) -> None:
    """An older version accepted it. The lookup returns its first offset, so that nothing is
    skipped.
    """
    await harness.create("orders")
    hosted = harness.hosted("orders")
    hosted.append_own(bad_batch("count_too_high", [Record(0, NOW_MS, b"k", b"v")]), NOW_MS)
    await harness.until(lambda: hosted.high_watermark == hosted.log.end_offset)
    asked = ListOffsetsRequest.Partition(0, timestamp=NOW_MS)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic("orders", [asked])])
    response = await harness.ask(request, 7, ListOffsetsResponse)
    answer = response.topics[0].partitions[0]
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, NOW_MS)
