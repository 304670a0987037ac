"""A leader with followers: what is committed, what readers may see, and which fetches count."""

from __future__ import annotations

from dataclasses import replace

from broker.followers import (
    PATIENT_MS,
    consume,
    create_on,
    epoch_of,
    follow,
    produce,
    shown,
    under_way,
    written,
)
from broker.harness import BrokerHarness, with_harness_of
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.replication.follower_shell import FollowerShell
from penstock.metadata.model import Partition
from penstock.partition.follower import AdvanceHighWatermark, Append, read_spans
from penstock.records.batch import iter_batches
from penstock.storage.checkpoints import decode_checkpoint
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

with_three_brokers = with_harness_of(brokers=3)


def offsets(answer: FetchResponse.Partition) -> list[int]:
    given = answer.records or b""
    data = memoryview(b"".join(given) if isinstance(given, list) else given)
    return [header.base_offset for _, header in iter_batches(data)]


def new_term(harness: BrokerHarness, hosted: HostedPartition) -> Partition:
    """Makes the same broker lead in the next leader epoch, as after an election."""
    before = shown(harness)
    after = replace(
        before,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )
    replicas = harness.broker.replicas
    brokers = harness.broker.cluster.image.living
    hosted.lead(0, replicas.broker_epoch, after, brokers, replicas.monotonic_ms(), 30_000)
    return after


async def latest(
    harness: BrokerHarness, *, timestamp: int = -1, replica: int = -1, version: int = 7
) -> tuple[int, int]:
    """Returns the error code and the offset that ListOffsets gives."""
    asked = ListOffsetsRequest.Partition(0, -1, timestamp)
    request = ListOffsetsRequest(replica, 0, [ListOffsetsRequest.Topic("orders", [asked])])
    response = await harness.ask(request, version, ListOffsetsResponse)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset


@with_three_brokers
async def test_acks_all_waits_for_every_in_sync_replica(harness: BrokerHarness) -> None:
    """Only the offset that a follower fetches from counts. Sending records to it does not."""
    await create_on(harness, 0, 1, 2)
    hosted = harness.hosted("orders")
    async with under_way(produce(harness, [b"a", b"b"])) as sent:
        await written(hosted, 2)
        for replica in (1, 2):
            assert offsets(await follow(harness, replica, 0)) == [0]
        assert (await follow(harness, 1, 2)).high_watermark == 0
        assert not sent.done()
        assert (await follow(harness, 2, 2)).high_watermark == 2
        assert await sent == (0, 0)


@with_three_brokers
async def test_acks_one_does_not_wait_for_followers(harness: BrokerHarness) -> None:
    """Consumers do not see the record before it is committed."""
    await create_on(harness, 0, 1, 2)
    assert await produce(harness, acks=1) == (0, 0)
    await written(harness.hosted("orders"), 1)
    for offset in (0, 1):
        seen = await consume(harness, offset)
        assert (seen.error_code, offsets(seen), seen.high_watermark) == (0, [], 0)
    assert (await consume(harness, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets(await follow(harness, 1, 0)) == [0]
    for replica in (1, 2):
        await follow(harness, replica, 1)
    assert offsets(await consume(harness, 0)) == [0]


@with_three_brokers
async def test_a_retry_is_not_acknowledged_before_the_original_batch_is_committed(
    harness: BrokerHarness,
) -> None:
    """An idempotent producer that retries must not get an earlier acknowledgement than the first
    request.
    """
    await create_on(harness, 0, 1, 2)
    first = await produce(harness, timeout_ms=1, sequence=0)
    assert first == (ErrorCode.REQUEST_TIMED_OUT, -1)
    await written(harness.hosted("orders"), 1)
    async with under_way(produce(harness, sequence=0)) as again:
        assert not again.done()
        for replica in (1, 2):
            await follow(harness, replica, 1)
        assert await again == (0, 0)
    assert harness.hosted("orders").log.end_offset == 1


@with_three_brokers
async def test_a_waiting_follower_is_answered_when_a_record_is_written(
    harness: BrokerHarness,
) -> None:
    """Not when it is committed: that would wait for the follower itself."""
    await create_on(harness, 0, 1, 2)
    async with under_way(follow(harness, 1, 0, wait_ms=PATIENT_MS)) as waits:
        assert not waits.done()
        assert await produce(harness, acks=1) == (0, 0)
        answer = await waits
        assert (offsets(answer), answer.high_watermark) == ([0], 0)


@with_three_brokers
async def test_a_waiting_consumer_is_answered_when_a_record_is_committed(
    harness: BrokerHarness,
) -> None:
    """Also if it was written before the consumer's request came."""
    await create_on(harness, 0, 1)
    assert await produce(harness, acks=1) == (0, 0)
    await written(harness.hosted("orders"), 1)
    async with under_way(consume(harness, 0, wait_ms=PATIENT_MS)) as waits:
        assert not waits.done()
        await follow(harness, 1, 1)
        answer = await waits
        assert offsets(answer) == [0]


@with_three_brokers
async def test_a_followers_fetch_must_have_the_current_leader_epoch(harness: BrokerHarness) -> None:
    """If the two differ, the one that is behind learns the new epoch from the metadata."""
    await create_on(harness, 0, 1)
    term = new_term(harness, harness.hosted("orders"))
    await harness.until(lambda: harness.hosted("orders").leadership is not None)
    codes = [
        (await follow(harness, 1, 0, leader_epoch=epoch)).error_code
        for epoch in (term.leader_epoch - 1, term.leader_epoch, term.leader_epoch + 1, -1)
    ]
    assert codes == [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
    ]


@with_three_brokers
async def test_a_follower_with_a_diverging_log_gets_the_diverging_epoch(
    harness: BrokerHarness,
) -> None:
    """Its fetch offset does not count, however high it is."""
    await create_on(harness, 0, 1)
    assert await produce(harness, [b"a", b"b"], acks=1) == (0, 0)
    hosted = harness.hosted("orders")
    await written(hosted, 2)
    answer = await follow(harness, 1, 5, last=0)
    assert answer.diverging_epoch is not None
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 2)
    assert (answer.error_code, offsets(answer), hosted.high_watermark) == (0, [], 0)
    unheard_of = await follow(harness, 1, 2, last=9)
    assert unheard_of.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    beyond = await follow(harness, 1, 3)
    assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert hosted.high_watermark == 0
    assert (await follow(harness, 1, 2, last=0)).high_watermark == 2


@with_three_brokers
async def test_only_fetches_of_registered_replicas_count(harness: BrokerHarness) -> None:
    """A made-up replica id must not commit anything, nor keep a replica in sync."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, acks=1) == (0, 0)
    await written(hosted, 1)
    registered = epoch_of(harness, 1)
    stale = ErrorCode.STALE_BROKER_EPOCH
    assert (await follow(harness, 77, 1, broker_epoch=5)).error_code == stale
    for epoch in (-1, registered - 1, registered + 1):
        assert (await follow(harness, 1, 1, broker_epoch=epoch)).error_code == stale
    assert (await follow(harness, 1, 1, version=11)).error_code == stale
    # Registered, but not a replica of this partition as far as the leader knows.
    assert (await follow(harness, 2, 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert hosted.high_watermark == 0
    assert hosted.leadership is not None
    assert hosted.leadership.ends() == {0: 1, 1: -1}


@with_three_brokers
async def test_consumers_may_read_from_a_follower(harness: BrokerHarness) -> None:
    """Up to the follower's high watermark. An offset that it does not have yet is not out of
    range.
    """
    await create_on(harness, 0, 1)
    assert await produce(harness, [b"a"], acks=1) == (0, 0)
    assert await produce(harness, [b"b"], acks=1) == (0, 1)
    hosted = harness.hosted("orders", broker=1)
    piece = harness.hosted("orders").log.read(0, 1 << 20)
    assert piece is not None
    assert hosted.follower is not None
    hosted.log.append_replica(piece.data, 0)
    async with under_way(consume(harness, 0, broker=1, wait_ms=PATIENT_MS)) as waits:
        assert not waits.done()
        hosted.follower.high_watermark = 1
        hosted.on_replicated()
        answer = await waits
        assert (offsets(answer), answer.high_watermark) == ([0], 1)
    assert offsets(await consume(harness, 1, broker=1)) == []
    early = await consume(harness, 3, broker=1)
    assert early.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    late = await consume(harness, 0, broker=1, leader_epoch=7)
    assert late.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    old = await consume(harness, 0, broker=1, version=10)
    assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    hosted.log.delete_before(1)
    gone = await consume(harness, 0, broker=1)
    assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@with_three_brokers
async def test_a_follower_collects_the_bytes_that_a_consumer_asks_for(
    harness: BrokerHarness,
) -> None:
    """The consumer's fetch waits until so many bytes are below the follower's high watermark, or
    until the follower gets another leader epoch.
    """
    await create_on(harness, 0, 1)
    for at in range(3):
        assert await produce(harness, [b"x"], acks=1) == (0, at)
    piece = harness.hosted("orders").log.read(0, 1 << 20)
    assert piece is not None
    hosted, replicas = harness.hosted("orders", broker=1), harness.brokers[1].replicas
    assert hosted.follower is not None
    services = harness.brokers[1].services
    assert services is not None
    shell = FollowerShell(
        hosted, hosted.follower, replicas.flusher, services.env, replicas.monotonic_ms
    )

    def advance(high_watermark: int) -> None:
        assert hosted.follower is not None
        hosted.follower.high_watermark = high_watermark
        assert not shell.carry_out([AdvanceHighWatermark(high_watermark)], b"")

    forever = 3_600_000
    asked = consume(harness, 0, broker=1, wait_ms=forever, min_bytes=len(piece.data))
    async with under_way(asked) as waits:
        spans, _ = read_spans(piece.data)
        assert not shell.carry_out([Append(spans, len(piece.data))], piece.data)
        for high_watermark in (1, 2, 3):
            advance(high_watermark)
        assert offsets(await waits) == [0, 1, 2]
    advance(0)  # as after a repair of the replica
    async with under_way(consume(harness, 0, broker=1, wait_ms=forever, min_bytes=1)) as waits:
        advance(1)
        assert offsets(await waits) == [0]
    advance(3)
    async with under_way(consume(harness, 3, broker=1, wait_ms=forever, min_bytes=1)) as waits:
        before = shown(harness)
        hosted.follow(replace(before, leader_epoch=before.leader_epoch + 1))
        assert offsets(await waits) == []


@with_three_brokers
async def test_a_consumer_is_sent_to_the_replica_in_its_rack(harness: BrokerHarness) -> None:
    """If an in-sync replica there has the requested offset. Otherwise the leader serves the
    consumer.
    """
    await create_on(harness, 0, 1)
    assert await produce(harness, acks=1) == (0, 0)
    await written(harness.hosted("orders"), 1)
    assert (await consume(harness, 0, rack="rack-1")).preferred_read_replica == -1
    await follow(harness, 1, 1)
    sent_on = await consume(harness, 0, rack="rack-1")
    assert (sent_on.preferred_read_replica, offsets(sent_on)) == (1, [])
    for rack in ("rack-0", "rack-2", "nowhere", ""):
        served = await consume(harness, 0, rack=rack)
        assert (served.preferred_read_replica, offsets(served)) == (-1, [0])


@with_three_brokers
async def test_a_leadership_with_followers_begins_once_its_epoch_is_synced(
    harness: BrokerHarness,
) -> None:
    """Nothing is answered in a leader epoch that the log could lose. Committed records stay
    committed.
    """
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, acks=1) == (0, 0)
    await written(hosted, 1)
    await follow(harness, 1, 1)
    term = new_term(harness, hosted)
    assert (hosted.machine.is_beginning, hosted.leadership, hosted.high_watermark) == (
        True,
        None,
        1,
    )
    assert (await consume(harness, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await harness.until(lambda: hosted.leadership is not None)
    assert hosted.require_leader(term.leader_epoch).high_watermark == 1
    path = f"{hosted.log.directory}/penstock-checkpoint"
    file = harness.disks[0].open(path)
    noted = decode_checkpoint(file.pread(1 << 16, 0))
    assert noted.epochs[-1] == (term.leader_epoch, 1)


@with_three_brokers
async def test_a_leadership_without_followers_begins_without_a_write(
    harness: BrokerHarness,
) -> None:
    """Its log stores the leader epoch with the first batch."""
    await create_on(harness, 0)
    hosted = harness.hosted("orders")
    flushes = harness.broker.replicas.flusher.flushes
    new_term(harness, hosted)
    assert hosted.leadership is not None
    assert hosted.log.epochs.entries == ()
    assert harness.broker.replicas.flusher.flushes == flushes


@with_three_brokers
async def test_the_latest_offset_never_goes_back(harness: BrokerHarness) -> None:
    """A new leader does not return it before its high watermark has reached what the old leader may
    have returned.
    """
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, [b"a", b"b"], acks=1) == (0, 0)
    await written(hosted, 2)
    term = new_term(harness, hosted)
    await harness.until(lambda: hosted.leadership is not None)
    unknown = ErrorCode.OFFSET_NOT_AVAILABLE
    assert await latest(harness) == (unknown, -1)
    assert await latest(harness, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert await latest(harness, timestamp=1) == (unknown, -1)
    assert await latest(harness, timestamp=-3) == (unknown, -1)
    assert await latest(harness, timestamp=-2) == (0, 0)
    await follow(harness, 1, 2, leader_epoch=term.leader_epoch)
    assert await latest(harness) == (0, 2)
    assert await latest(harness, timestamp=1) == (0, 0)


@with_three_brokers
async def test_a_follower_gets_the_log_end_offset_from_list_offsets(harness: BrokerHarness) -> None:
    """Whether committed or not. A client that pretends to be a follower gets the high watermark."""
    await create_on(harness, 0, 1)
    assert await produce(harness, [b"a", b"b"], acks=1) == (0, 0)
    assert await latest(harness, replica=1) == (0, 2)
    assert await latest(harness, replica=1, timestamp=-2) == (0, 0)
    assert await latest(harness, replica=77) == (0, 0)
    assert await latest(harness) == (0, 0)


@with_three_brokers
async def test_delete_records_waits_for_every_living_replica(harness: BrokerHarness) -> None:
    """The response is sent when the followers have the leader's log start offset."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, [b"a", b"b"], acks=1) == (0, 0)
    await written(hosted, 2)
    await follow(harness, 1, 2)

    async def delete(before: int, timeout_ms: int) -> tuple[int, int]:
        asked = DeleteRecordsRequest.Partition(0, before)
        topic = DeleteRecordsRequest.Topic("orders", [asked])
        response = await harness.ask(
            DeleteRecordsRequest([topic], timeout_ms), 2, DeleteRecordsResponse
        )
        answer = response.topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert await delete(1, 30) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert hosted.log.log_start_offset == 1
    async with (
        under_way(follow(harness, 1, 2, wait_ms=PATIENT_MS)) as waits,
        under_way(delete(2, PATIENT_MS)) as deletes,
    ):
        answer = await waits
        assert answer.log_start_offset == 2
        assert not deletes.done()
        await follow(harness, 1, 2, log_start=2)
        assert await deletes == (0, 2)


@with_three_brokers
async def test_a_fetch_in_a_leader_epoch_that_has_not_begun_yet_waits(
    harness: BrokerHarness,
) -> None:
    """If it were refused, the follower would back off for a second, and new records would wait for
    it.
    """
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    assert await produce(harness, acks=1) == (0, 0)
    await written(hosted, 1)
    async with under_way(follow(harness, 1, 1, leader_epoch=1, wait_ms=PATIENT_MS)) as waits:
        assert not waits.done()
        after = replace(shown(harness), leader_epoch=1, partition_epoch=1)
        harness.broker.replicas._take_role(hosted, after, harness.broker.configs())
        assert (await waits).error_code == 0
    await harness.until(lambda: hosted.leadership is not None)
    assert (await follow(harness, 1, 1, leader_epoch=1)).high_watermark == 1
    late = await follow(harness, 1, 1, leader_epoch=0, wait_ms=PATIENT_MS)
    assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH


@with_three_brokers
async def test_an_idle_follower_learns_of_a_new_high_watermark_soon(harness: BrokerHarness) -> None:
    """It does not wait for the end of its long poll, because consumers may read from it and it may
    be the next leader.
    """
    await create_on(harness, 0, 1, 2)
    assert await produce(harness, acks=1) == (0, 0)
    await written(harness.hosted("orders"), 1)
    async with under_way(follow(harness, 1, 1, wait_ms=PATIENT_MS)) as waits:
        async with under_way(follow(harness, 2, 1, wait_ms=PATIENT_MS)) as other:
            assert (await waits).high_watermark == 1
            assert (await other).high_watermark == 1
        async with under_way(follow(harness, 1, 1, wait_ms=PATIENT_MS)) as again:
            await harness.broker.replicas.settled()
            assert not again.done()


@with_three_brokers
async def test_a_leader_epoch_lost_by_a_truncation_is_stored_again(harness: BrokerHarness) -> None:
    """A follower may be truncating its log at the moment it is elected."""
    await create_on(harness, 0, 1)
    hosted = harness.hosted("orders")
    term = new_term(harness, hosted)
    hosted.log._appender._forget_unwritten_epochs()
    assert hosted.log.epochs.latest < term.leader_epoch
    await harness.until(lambda: hosted.leadership is not None)
    assert hosted.log.epochs.latest == term.leader_epoch
