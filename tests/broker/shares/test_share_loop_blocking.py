"""No share fetch or share acknowledgement blocks the event loop for long, however large it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from broker.harness import BrokerHarness, open_harness
from broker.loop_blocking import at_best, check, counted_executor, occupation, piece_of_work_s
from broker.shares.share_client import GROUP, ON, Member, queue, ranges, with_state
from penstock.records.batch import Codec
from penstock.records.record import Record, build_batch
from penstock.shares.sessions import PARTITIONS_MAX
from penstock.shares.state_port import SharePartitionId
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchResponse,
)

NAMED = 20_000
BATCH = 60_000
TOO_MANY = 49_000
HOUR_MS = 3_600_000
LIMITS = {"penstock.queue.length.max": "1", "penstock.queue.length.policy": "drop-oldest"}


def check_in_harness(folder: Path, case: Callable[[BrokerHarness, bytes], Awaitable[None]]) -> None:
    async def run_case(own: Path) -> None:
        with counted_executor():
            async with asyncio.timeout(patient(100.0)), open_harness(own, kafka=ON) as harness:
                _, topic_id = await queue(harness)
                await case(harness, topic_id)

    at_best(run_case, folder)


async def timed_queue(harness: BrokerHarness, configs: dict[str, str]) -> bytes:
    """Creates a topic with timed records that the group reads from the start."""
    configs = {"penstock.timed.records": "true"} | configs
    topic_id = await harness.create("timed", configs=configs)
    with_state(harness).begin(SharePartitionId(GROUP, topic_id, 0), 0)
    return topic_id


def acknowledgement(
    topic_id: bytes,
    epoch: int,
    partitions: list[ShareAcknowledgeRequest.Partition],
) -> ShareAcknowledgeRequest:
    topic = ShareAcknowledgeRequest.Topic(topic_id, partitions)
    return ShareAcknowledgeRequest(GROUP, "anna", epoch, False, [topic])


def test_a_partition_may_be_named_many_times(tmp_path: Path) -> None:
    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        await harness.produce("orders", [b"a"])
        anna = Member(harness, topic_id)
        await anna.fetch()
        assert await anna.acknowledge((0, 0, 2)) is ErrorCode.NONE
        partitions = [
            ShareAcknowledgeRequest.Partition(
                0, [ShareAcknowledgeRequest.AcknowledgementBatch(at, at, [1])]
            )
            for at in range(NAMED)
        ]
        request = acknowledgement(topic_id, anna.epoch, partitions)
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareAcknowledgeResponse)
        check(meter, before_s)
        assert answer.error_code == 0
        (part,) = answer.responses[0].partitions
        assert part.error_code == ErrorCode.INVALID_REQUEST

    check_in_harness(tmp_path, case)


def test_the_acknowledgements_of_a_large_batch_are_bounded(tmp_path: Path) -> None:
    """One batch with more records than a share partition may have in flight, acknowledged in the
    most expensive way."""

    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        now, hosted = harness.services.wall_ms(), harness.hosted("orders")
        hosted.append_own(build_batch([Record(at, now, None, None) for at in range(BATCH)]), now)
        anna = Member(harness, topic_id)
        ((first, last, _),) = ranges(await anna.fetch(max_records=BATCH))
        types = [1 + (at & 1) for at in range(last - first + 1)]
        batch = ShareAcknowledgeRequest.AcknowledgementBatch(first, last, types)
        partition = ShareAcknowledgeRequest.Partition(0, [batch])
        request = acknowledgement(topic_id, anna.epoch, [partition])
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareAcknowledgeResponse)
        check(meter, before_s)
        (part,) = answer.responses[0].partitions
        assert part.error_code == 0

    check_in_harness(tmp_path, case)


def test_every_record_of_a_batch_has_a_time_of_its_own(tmp_path: Path) -> None:
    """A small batch makes a mark for each of its records. A fetch visits only some of them."""

    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        topic_id = await timed_queue(harness, {})
        now, hosted = harness.services.wall_ms(), harness.hosted("timed")
        records = [
            Record(at, now, None, b"x", (("penstock-expires-at", b"%d" % (now + HOUR_MS + at)),))
            for at in range(BATCH)
        ]
        hosted.append_own(build_batch(records, codec=Codec.ZSTD), now)
        anna = Member(harness, topic_id)
        assert ranges(await anna.fetch(max_records=100)) == [(0, 99, 1)]
        request = Member(harness, topic_id, "ben").fetch_request()
        request.max_records = 100
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareFetchResponse)
        check(meter, before_s)
        assert ranges(answer.responses[0].partitions[0]) == [(100, 199, 1)]

    check_in_harness(tmp_path, case)


def test_scheduled_records_between_those_that_are_dropped(tmp_path: Path) -> None:
    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        topic_id = await timed_queue(harness, LIMITS)
        now, hosted = harness.services.wall_ms(), harness.hosted("timed")
        later = (("penstock-deliver-at", b"%d" % (now + HOUR_MS)),)
        records = [Record(at, now, None, b"x", later if at % 2 else ()) for at in range(BATCH)]
        hosted.append_own(build_batch(records, codec=Codec.ZSTD), now)
        hosted.append_own(build_batch([Record(0, now, None, b"last")]), now)
        ben = Member(harness, topic_id, "ben")
        assert ranges(await ben.fetch(max_wait_ms=0)) == []
        scans = harness.broker.shares.scans
        request = Member(harness, topic_id).fetch_request()
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareFetchResponse)
        assert scans.scanned >= BATCH
        check(meter, before_s)
        assert ranges(answer.responses[0].partitions[0]) == [(BATCH, BATCH, 1)]

    check_in_harness(tmp_path, case)


def test_a_session_of_many_partitions(tmp_path: Path) -> None:
    """All of them have errors."""

    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        await Member(harness, topic_id, "ben").fetch(max_wait_ms=1)
        partitions = range(1, PARTITIONS_MAX + 1)
        request = Member(harness, topic_id, partitions=partitions).fetch_request()
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareFetchResponse)
        check(meter, before_s)
        assert [len(topic.partitions) for topic in answer.responses] == [PARTITIONS_MAX]

    check_in_harness(tmp_path, case)


def test_a_session_of_too_many_partitions(tmp_path: Path) -> None:
    """It is refused, and nothing is kept of it."""

    async def case(harness: BrokerHarness, topic_id: bytes) -> None:
        await Member(harness, topic_id, "ben").fetch(max_wait_ms=1)
        request = Member(harness, topic_id, partitions=range(TOO_MANY)).fetch_request()
        before_s = piece_of_work_s()
        answer, meter = await occupation(harness, request, 2, ShareFetchResponse)
        check(meter, before_s)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert len(harness.broker.shares.sessions) == 1

    check_in_harness(tmp_path, case)
