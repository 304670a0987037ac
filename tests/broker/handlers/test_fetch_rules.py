"""Rules of Fetch that Kafka's clients rely on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from broker.harness import BrokerHarness, open_harness, with_harness, with_harness_of
from penstock.records.batch import Codec, iter_batches
from penstock.testing.slowness import patient
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

SessionPosition = tuple[int, int]
NO_SESSION = (0, -1)


def partition_of(
    index: int = 0, offset: int = 0, bytes_max: int = 1 << 20, epoch: int = -1, last: int = -1
) -> FetchRequest.Partition:
    return FetchRequest.Partition(
        index,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last,
        partition_max_bytes=bytes_max,
    )


async def fetch(
    harness: BrokerHarness,
    *partitions: FetchRequest.Partition,
    version: int = 11,
    topic: str = "orders",
    topic_id: bytes = bytes(16),
    session: SessionPosition = NO_SESSION,
    bytes_max: int = 1 << 20,
    isolation: int = 0,
) -> FetchResponse:
    named = FetchRequest.Topic(
        "" if version >= 13 else topic, topic_id if version >= 13 else bytes(16), [*partitions]
    )
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=bytes_max,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[named] if partitions else [],
    )
    return await harness.ask(request, version, FetchResponse)


def only(response: FetchResponse) -> FetchResponse.Partition:
    (answer,) = response.responses[0].partitions
    return answer


def spans(answer: FetchResponse.Partition) -> list[tuple[int, int]]:
    given = answer.records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    return [(header.base_offset, header.last_offset) for _, header in iter_batches(data)]


@with_harness
async def test_a_fetch_returns_the_whole_batch_that_contains_the_offset(
    harness: BrokerHarness,
) -> None:
    """Clients skip the records that they did not ask for. Without the batch they would wait for
    ever.
    """
    await harness.create("orders")
    for codec in (Codec.NONE, Codec.GZIP):
        await harness.produce("orders", [b"x"] * 5, codec=codec)
    for offset in range(10):
        first = spans(only(await fetch(harness, partition_of(offset=offset))))[0]
        assert first == ((0, 4) if offset < 5 else (5, 9))
    at_end = only(await fetch(harness, partition_of(offset=10)))
    assert (at_end.error_code, spans(at_end)) == (0, [])
    beyond = only(await fetch(harness, partition_of(offset=11)))
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@with_harness
async def test_the_first_batch_is_returned_even_if_it_exceeds_the_limits(
    harness: BrokerHarness,
) -> None:
    """This holds for the first partition that has a batch. The others stay within the rest of the
    limit (KIP-74).
    """
    await harness.create("orders", 2)
    for index in (0, 1):
        for _ in range(2):
            await harness.produce("orders", [bytes(5_000)], index)
    small = [partition_of(index, bytes_max=10) for index in (0, 1)]
    response = await fetch(harness, *small, bytes_max=10)
    assert [spans(each) for each in response.responses[0].partitions] == [[(0, 0)], []]
    response = await fetch(harness, partition_of(bytes_max=1 << 20), bytes_max=7_000)
    assert spans(only(response)) == [(0, 0)]


@with_harness
async def test_fetch_sessions_are_begun_continued_and_ended(harness: BrokerHarness) -> None:
    """By session id and epoch. An incremental response has only the partitions with changes
    (KIP-227).
    """
    await harness.create("orders", 2)
    both = [partition_of(0), partition_of(1)]
    none = await fetch(harness, *both, session=(0, -1))
    assert (none.session_id, len(none.responses[0].partitions)) == (0, 2)
    begun = await fetch(harness, *both, session=(0, 0))
    assert begun.session_id > 0
    assert len(begun.responses[0].partitions) == 2
    session_id = begun.session_id
    idle = await fetch(harness, session=(session_id, 1))
    assert (idle.session_id, idle.responses) == (session_id, [])
    await harness.produce("orders", [b"x"], 1)
    news = only(await fetch(harness, session=(session_id, 2)))
    assert (news.partition_index, spans(news)) == (1, [(0, 0)])
    wrong = await fetch(harness, session=(session_id, 7))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    again = await fetch(harness, *both, session=(session_id, 0))
    assert again.session_id not in (0, session_id)
    ended = await fetch(harness, *both, session=(again.session_id, -1))
    assert (ended.session_id, ended.error_code) == (0, 0)
    for gone in (session_id, again.session_id, 12345):
        answer = await fetch(harness, session=(gone, 1))
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@with_harness
async def test_from_version_13_on_topics_are_identified_by_id(harness: BrokerHarness) -> None:
    """A topic that is created again has another id. The old id is UNKNOWN_TOPIC_ID."""
    old_id = await harness.create("orders")
    await harness.produce("orders", [b"old"])
    for version in range(13, 18):
        answer = await fetch(harness, partition_of(), version=version, topic_id=old_id)
        assert (answer.responses[0].topic_id, spans(only(answer))) == (old_id, [(0, 0)])
    gone = DeleteTopicsRequest([DeleteTopicsRequest.Topic("orders")])
    await harness.ask(gone, 6, DeleteTopicsResponse)
    new_id = await harness.create("orders")
    for version in range(13, 18):
        answer = await fetch(harness, partition_of(), version=version, topic_id=old_id)
        assert only(answer).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert answer.responses[0].topic_id == old_id
        answer = await fetch(harness, partition_of(), version=version, topic_id=new_id)
        assert (only(answer).error_code, spans(only(answer))) == (0, [])


def test_leader_epochs_rise_over_restarts(tmp_path: Path) -> None:
    """Clients ignore metadata with an older leader epoch. If it ever went back, they would be
    stuck.
    """

    async def epoch(create: bool) -> int:
        async with asyncio.timeout(patient(120.0)), open_harness(tmp_path) as harness:
            if create:
                await harness.create("orders")
            request = MetadataRequest([MetadataRequest.Topic(name="orders")], False)
            response = await harness.ask(request, 12, MetadataResponse)
            partition = response.topics[0].partitions[0]
            assert (partition.error_code, partition.leader_id) == (0, 0)
            return partition.leader_epoch

    seen = [asyncio.run(epoch(at == 0)) for at in range(3)]
    assert seen == sorted(set(seen))


@with_harness
async def test_a_request_with_another_leader_epoch_is_refused(harness: BrokerHarness) -> None:
    """FENCED_LEADER_EPOCH if the client is behind, UNKNOWN_LEADER_EPOCH if it is ahead. This
    applies to Fetch, ListOffsets and OffsetForLeaderEpoch (KIP-320).
    """
    await harness.create("orders")
    term = harness.hosted("orders").leadership
    assert term is not None
    term.epoch = 5
    for epoch, code in (
        (-1, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        for version in range(9, 13):
            answer = only(await fetch(harness, partition_of(epoch=epoch), version=version))
            assert answer.error_code == code
        asked = ListOffsetsRequest.Partition(0, epoch, -1)
        offsets = await harness.ask(
            ListOffsetsRequest(-1, 0, [ListOffsetsRequest.Topic("orders", [asked])]),
            5,
            ListOffsetsResponse,
        )
        assert offsets.topics[0].partitions[0].error_code == code
        wanted = OffsetForLeaderEpochRequest.Partition(0, epoch, 5)
        ends = await harness.ask(
            OffsetForLeaderEpochRequest(
                -1, [OffsetForLeaderEpochRequest.Topic("orders", [wanted])]
            ),
            4,
            OffsetForLeaderEpochResponse,
        )
        assert ends.topics[0].partitions[0].error_code == code


@with_harness
async def test_a_client_with_truncated_records_gets_the_diverging_epoch(
    harness: BrokerHarness,
) -> None:
    """From version 12 on, found by the epoch of the client's last record."""
    await harness.create("orders")
    await harness.produce("orders", [b"a", b"b"])
    replicas, image = harness.broker.replicas, harness.broker.cluster.image
    before = image.partition("orders", 0)
    assert before is not None
    after = replace(before, leader_epoch=3, partition_epoch=before.partition_epoch + 1)
    epoch, now_ms = replicas.broker_epoch, replicas.monotonic_ms()
    harness.hosted("orders").lead(0, epoch, after, image.living, now_ms, 30_000)
    await harness.produce("orders", [b"c"])
    answer = only(await fetch(harness, partition_of(offset=3, last=2), version=12))
    assert answer.diverging_epoch is not None
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 2)
    assert spans(answer) == []
    for offset, last in ((2, 0), (3, 3)):
        answer = only(await fetch(harness, partition_of(offset=offset, last=last), version=12))
        assert (answer.error_code, answer.diverging_epoch) == (0, None)


@with_harness
async def test_without_transactions_the_last_stable_offset_is_the_high_watermark(
    harness: BrokerHarness,
) -> None:
    """The list of aborted transactions is null for read_uncommitted and empty for
    read_committed.
    """
    await harness.create("orders")
    await harness.produce("orders", [b"x"] * 3)
    for version in range(4, 13):
        for isolation, aborted in ((0, None), (1, [])):
            answer = only(
                await fetch(harness, partition_of(), version=version, isolation=isolation)
            )
            assert (answer.high_watermark, answer.last_stable_offset) == (3, 3)
            assert answer.aborted_transactions == aborted
            assert spans(answer) == [(0, 2)]


@with_harness_of(brokers=2)
async def test_a_consumer_is_not_sent_to_a_broker_without_a_replica(harness: BrokerHarness) -> None:
    """The leader has the only replica, so it names no preferred read replica (version 11). The
    other broker, although in the consumer's rack, answers with the current leader.
    """
    await harness.create("orders")
    leader = harness.broker.cluster.image.topics["orders"].partitions[0].leader
    await harness.until(lambda: harness.brokers[leader].replicas.get("orders", 0) is not None)
    await harness.until(lambda: "orders" in harness.brokers[1 - leader].cluster.image.topics)
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        rack_id="rack-1",
        topics=[FetchRequest.Topic("orders", partitions=[partition_of()])],
    )
    response = await harness.ask(request, 11, FetchResponse, broker=leader)
    assert only(response).preferred_read_replica == -1
    moved = await harness.ask(request, 12, FetchResponse, broker=1 - leader)
    answer = only(moved)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader is not None
    assert answer.current_leader.leader_id == leader
